// SPDX-License-Identifier: Apache-2.0
// Object identifiers in dotted decimal, which DICOM calls UIDs (PS3.5, section 9.1). Thread-safe.
#ifndef INTRAWARP_ENGINE_BASE_OID_H_
#define INTRAWARP_ENGINE_BASE_OID_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace intrawarp {

// An identifier of PS3.5 is no longer.
inline constexpr size_t kMaxOidBytes = 64;

// 1 to 64 characters: numbers without leading zeros, with a dot between two of them.
inline bool IsOid(absl::string_view text) {
  if (text.empty() || text.size() > kMaxOidBytes) return false;
  while (true) {
    const size_t dot = text.find('.');
    const absl::string_view number = text.substr(0, dot);
    const bool has_leading_zero = number.size() > 1 && number.front() == '0';
    if (number.empty() || has_leading_zero || number.find_first_not_of("0123456789") != absl::string_view::npos) {
      return false;
    }
    if (dot == absl::string_view::npos) return true;
    text.remove_prefix(dot + 1);
  }
}

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_BASE_OID_H_
