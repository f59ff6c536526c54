// SPDX-License-Identifier: Apache-2.0
#include "engine/base/field_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace intrawarp {

absl::Status FieldError(absl::StatusCode code, absl::string_view path, absl::string_view description) {
  absl::Status status(code, absl::StrCat(path, ": ", description));
  status.SetPayload(kFieldPayload, absl::Cord(path));
  return status;
}

absl::Status Within(absl::string_view outer, const absl::Status& status) {
  const std::string path = FieldOf(status);
  if (path.empty()) return status;
  const std::string prefix = absl::StrCat(outer, absl::StartsWith(path, "[") ? "" : ".");
  absl::Status within(status.code(), absl::StrCat(prefix, status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { within.SetPayload(url, payload); });
  within.SetPayload(kFieldPayload, absl::Cord(absl::StrCat(prefix, path)));
  return within;
}

std::string FieldOf(const absl::Status& status) {
  return std::string(status.GetPayload(kFieldPayload).value_or(absl::Cord()));
}

}  // namespace intrawarp
