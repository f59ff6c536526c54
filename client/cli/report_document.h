// SPDX-License-Identifier: Apache-2.0
// The report of a registration as pages for a person. Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_REPORT_DOCUMENT_H_
#define INTRAWARP_CLIENT_CLI_REPORT_DOCUMENT_H_

#include "client/cli/report_json.h"
#include "io/picture/report_pdf.h"

namespace intrawarp::cli {

inline constexpr char kReportTitle[] = "Registration quality report";

// `report` is ReportToJson's. Verdict and reasons, expected error, similarity before and after, overlap, deformation,
// stages, timings, and every option. Names of resources, which users choose, are left out. The picture and the time are
// the caller's.
io::ReportDocument ReportDocumentOf(const Json& report);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_REPORT_DOCUMENT_H_
