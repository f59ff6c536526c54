// SPDX-License-Identifier: Apache-2.0
#include "server/base/names.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

constexpr int kMaxIdLength = 63;

bool IsIdChar(char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-'; }

absl::StatusOr<std::string> ParseName(absl::string_view name, absl::string_view collection, absl::string_view field) {
  absl::string_view id = name;
  if (!absl::StartsWith(name, collection)) {
    return InvalidField(field, absl::StrCat("must be \"", collection, "{id}\""));
  }
  id.remove_prefix(collection.size());
  if (!IsValidId(id)) {
    return InvalidField(field,
                        absl::StrCat("the id in \"", collection, "{id}\" must match [A-Za-z0-9][A-Za-z0-9._-]{0,62}"));
  }
  return std::string(id);
}

}  // namespace

bool IsValidId(absl::string_view id) {
  if (id.empty() || id.size() > kMaxIdLength || !absl::ascii_isalnum(id[0])) return false;
  for (char c : id) {
    if (!IsIdChar(c)) return false;
  }
  return true;
}

absl::Status ValidateId(absl::string_view id, absl::string_view field) {
  if (IsValidId(id)) return absl::OkStatus();
  return InvalidField(field, "must match [A-Za-z0-9][A-Za-z0-9._-]{0,62}");
}

std::string VolumeName(absl::string_view id) { return absl::StrCat("volumes/", id); }
std::string TransformName(absl::string_view id) { return absl::StrCat("transforms/", id); }
std::string SparseMatrixName(absl::string_view id) { return absl::StrCat("sparseMatrices/", id); }
std::string SessionName(absl::string_view id) { return absl::StrCat("sessions/", id); }
std::string OperationName(absl::string_view id) { return absl::StrCat("operations/", id); }

absl::StatusOr<std::string> ParseVolumeName(absl::string_view name, absl::string_view field) {
  return ParseName(name, "volumes/", field);
}

absl::StatusOr<std::string> ParseTransformName(absl::string_view name, absl::string_view field) {
  return ParseName(name, "transforms/", field);
}

absl::StatusOr<std::string> ParseSparseMatrixName(absl::string_view name, absl::string_view field) {
  return ParseName(name, "sparseMatrices/", field);
}

absl::StatusOr<std::string> ParseSessionName(absl::string_view name, absl::string_view field) {
  return ParseName(name, "sessions/", field);
}

absl::StatusOr<std::string> ParseOperationName(absl::string_view name, absl::string_view field) {
  return ParseName(name, "operations/", field);
}

}  // namespace intrawarp::server
