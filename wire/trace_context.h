// SPDX-License-Identifier: Apache-2.0
// The header `traceparent` of W3C Trace Context (Recommendation of 2021-11-23, section 3.2), which names the
// distributed trace that a call belongs to. Pure functions.
#ifndef INTRAWARP_WIRE_TRACE_CONTEXT_H_
#define INTRAWARP_WIRE_TRACE_CONTEXT_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace intrawarp {

// The key of gRPC metadata.
inline constexpr char kTraceparentKey[] = "traceparent";

// The trace id of a header's value, 32 lower-case hexadecimal digits; nullopt for a value that the specification does
// not allow. A version above 00 may have further fields behind a dash, which are passed over.
std::optional<std::string> TraceIdIn(absl::string_view traceparent);

}  // namespace intrawarp

#endif  // INTRAWARP_WIRE_TRACE_CONTEXT_H_
