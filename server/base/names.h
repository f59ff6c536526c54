// SPDX-License-Identifier: Apache-2.0
// The ids of objects, and the names of resources that have them. Pure functions.
#ifndef INTRAWARP_SERVER_BASE_NAMES_H_
#define INTRAWARP_SERVER_BASE_NAMES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::server {

// [A-Za-z0-9][A-Za-z0-9._-]{0,62}
bool IsValidId(absl::string_view id);
// INVALID_ARGUMENT "{field}: ..." for another one.
absl::Status ValidateId(absl::string_view id, absl::string_view field);

std::string VolumeName(absl::string_view id);
std::string TransformName(absl::string_view id);
std::string SparseMatrixName(absl::string_view id);
std::string SessionName(absl::string_view id);
std::string OperationName(absl::string_view id);
// The id in "volumes/{id}" ("transforms/{id}", "sparseMatrices/{id}", "sessions/{id}", "operations/{id}");
// INVALID_ARGUMENT "{field}: ..." when `name` is none.
absl::StatusOr<std::string> ParseVolumeName(absl::string_view name, absl::string_view field);
absl::StatusOr<std::string> ParseTransformName(absl::string_view name, absl::string_view field);
absl::StatusOr<std::string> ParseSparseMatrixName(absl::string_view name, absl::string_view field);
absl::StatusOr<std::string> ParseSessionName(absl::string_view name, absl::string_view field);
absl::StatusOr<std::string> ParseOperationName(absl::string_view name, absl::string_view field);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BASE_NAMES_H_
