// SPDX-License-Identifier: Apache-2.0
// Names, ids and counts that every RPC service needs beside its own work.
#ifndef INTRAWARP_SERVER_BASE_NAMES_H_
#define INTRAWARP_SERVER_BASE_NAMES_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/status/errors.h"

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

// Random and time come in here, so that tests can replace them. Safe for concurrent use.
struct Seams {
  // 32 random bits.
  std::function<uint32_t()> random;
  std::function<std::chrono::steady_clock::time_point()> steady_now;
  std::function<std::chrono::system_clock::time_point()> system_now;
};
// std::random_device and the machine's clocks.
Seams SystemSeams();

// 16 random hexadecimal digits: an id that the server chooses.
std::string RandomId(const Seams& seams);

// The longest time that a client may give an object to live.
inline constexpr std::chrono::hours kMaxTtl{24 * 366};

// How many a page holds for a request's page_size: 100 for 0, at most 1000. INVALID_ARGUMENT "page_size: ..." below 0.
absl::StatusOr<int> PageSize(int32_t page_size);
// An opaque page token, which names the id that a page ended with; the object need not exist any more. A token is bound
// to its collection ("volumes").
std::string PageToken(absl::string_view collection, absl::string_view last_id);
// The id in a token; "" for no token. The error names "page_token" for a string that is no token of the collection.
absl::StatusOr<std::string> ParsePageToken(absl::string_view collection, absl::string_view token);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BASE_NAMES_H_
