// SPDX-License-Identifier: Apache-2.0
#include "server/base/names.h"

#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "io/digest.h"

namespace intrawarp::server {
namespace {

constexpr int kMaxIdLength = 63;
constexpr size_t kTokenCheckBytes = 6;

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

Seams SystemSeams() {
  return {[] {
            // One per thread: std::random_device itself makes no promise about concurrent use.
            thread_local std::random_device device;
            return static_cast<uint32_t>(device());
          },
          [] { return std::chrono::steady_clock::now(); }, [] { return std::chrono::system_clock::now(); }};
}

std::string RandomId(const Seams& seams) {
  const uint32_t high = seams.random();
  const uint32_t low = seams.random();
  return absl::StrFormat("%08x%08x", high, low);
}

absl::StatusOr<int> PageSize(int32_t page_size) {
  constexpr int kDefault = 100;
  constexpr int kMax = 1000;
  if (page_size < 0) return InvalidField("page_size", "must not be negative");
  if (page_size == 0) return kDefault;
  return page_size < kMax ? page_size : kMax;
}

std::string PageToken(absl::string_view collection, absl::string_view last_id) {
  const std::string content = absl::StrCat(collection, "/", last_id);
  const std::string check = io::Sha256Of(content.data(), content.size()).substr(0, kTokenCheckBytes);
  return absl::WebSafeBase64Escape(absl::StrCat(check, content));
}

absl::StatusOr<std::string> ParsePageToken(absl::string_view collection, absl::string_view token) {
  if (token.empty()) return "";
  std::string bytes;
  if (absl::WebSafeBase64Unescape(token, &bytes) && bytes.size() > kTokenCheckBytes) {
    absl::string_view id = absl::string_view(bytes).substr(kTokenCheckBytes);
    const bool is_of_collection = absl::ConsumePrefix(&id, absl::StrCat(collection, "/"));
    if (is_of_collection && PageToken(collection, id) == token) return std::string(id);
  }
  return InvalidField("page_token", "is not one that this server gave for this list");
}

}  // namespace intrawarp::server
