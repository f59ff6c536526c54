// SPDX-License-Identifier: Apache-2.0
#include "server/identity/watched_file.h"

#include "io/file.h"
#include "server/identity/credentials.h"

namespace intrawarp::server {

absl::StatusOr<std::optional<std::string>> WatchedFile::Changed() {
  if (!is_set()) return std::nullopt;
  absl::StatusOr<std::string> content = io::ReadSmallFile(path_, kMaxCredentialFile);
  if (!content.ok()) {
    if (content.status() == failed_) return std::nullopt;
    failed_ = content.status();
    return failed_;
  }
  const bool has_recovered = !failed_.ok();
  failed_ = absl::OkStatus();
  if (was_read_ && !has_recovered && *content == content_) return std::nullopt;
  was_read_ = true;
  content_ = *std::move(content);
  return content_;
}

}  // namespace intrawarp::server
