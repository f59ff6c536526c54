// SPDX-License-Identifier: Apache-2.0
#include "server/base/paging.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "io/file/digest.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

constexpr size_t kTokenCheckBytes = 6;

}  // namespace

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
