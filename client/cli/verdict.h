// SPDX-License-Identifier: Apache-2.0
// The verdict of a report in one line for people: "verdict: review: unrelated images (agreement 0.01, chance 0.08)".
// Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_VERDICT_H_
#define INTRAWARP_CLIENT_CLI_VERDICT_H_

#include <string>
#include <vector>

#include "intrawarp/v1/registration.pb.h"

namespace intrawarp::cli {

// Only VERDICT_OK is ok: a report without a verdict is none that a caller may rely on.
bool IsOk(const v1::Report& report);

// "ok", "review", or "unknown" for a report without a verdict.
std::string VerdictWord(const v1::Report& report);

// The cause as a word of the report file: "error_above_limit". Empty for UNSPECIFIED and for causes of a later version.
std::string CauseWord(v1::VerdictCause cause);

// The cause in words, with the number that was judged and the number that it was held against, each with its unit.
std::string ReasonText(const v1::VerdictReason& reason, const v1::Report& report);
std::vector<std::string> ReasonTexts(const v1::Report& report);

// "expected error 0.56 mm, bound 1.9 mm, limit 5 mm"; says so where the error is not known. The bound is the median.
std::string ExpectedErrorText(const v1::Report& report);

// Whether anything slid: "two layers; the second one has 31.2 % of the voxels". Empty where no stage had `sliding`; the
// last such stage counts.
std::string SlidingText(const v1::Report& report);

// "verdict: ...", without a line end.
std::string VerdictLine(const v1::Report& report);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_VERDICT_H_
