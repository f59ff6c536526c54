// SPDX-License-Identifier: Apache-2.0
#include "wire/trace_context.h"

#include <algorithm>

namespace intrawarp {
namespace {

// version "-" trace-id "-" parent-id "-" trace-flags
constexpr size_t kVersionDigits = 2, kTraceDigits = 32, kParentDigits = 16, kFlagDigits = 2;
constexpr size_t kTraceBegin = kVersionDigits + 1;
constexpr size_t kParentBegin = kTraceBegin + kTraceDigits + 1;
constexpr size_t kFlagsBegin = kParentBegin + kParentDigits + 1;
constexpr size_t kLength = kFlagsBegin + kFlagDigits;

bool IsLowerHex(absl::string_view digits) {
  return std::all_of(digits.begin(), digits.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsZero(absl::string_view digits) {
  return std::all_of(digits.begin(), digits.end(), [](char c) { return c == '0'; });
}

}  // namespace

std::optional<std::string> TraceIdIn(absl::string_view traceparent) {
  if (traceparent.size() < kLength) return std::nullopt;
  const absl::string_view version = traceparent.substr(0, kVersionDigits);
  const absl::string_view trace = traceparent.substr(kTraceBegin, kTraceDigits);
  const absl::string_view parent = traceparent.substr(kParentBegin, kParentDigits);
  for (const size_t dash : {kTraceBegin - 1, kParentBegin - 1, kFlagsBegin - 1}) {
    if (traceparent[dash] != '-') return std::nullopt;
  }
  for (const absl::string_view digits : {version, trace, parent, traceparent.substr(kFlagsBegin, kFlagDigits)}) {
    if (!IsLowerHex(digits)) return std::nullopt;
  }
  if (version == "ff" || IsZero(trace) || IsZero(parent)) return std::nullopt;
  const bool is_longer = traceparent.size() > kLength;
  if (is_longer && (version == "00" || traceparent[kLength] != '-')) return std::nullopt;
  return std::string(trace);
}

}  // namespace intrawarp
