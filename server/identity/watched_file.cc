// SPDX-License-Identifier: Apache-2.0
#include "server/identity/watched_file.h"

#include "io/file/file.h"
#include "server/identity/credentials.h"

namespace intrawarp::server {

bool WatchedFile::HasSettled(const std::string& content, Time now) {
  if (!content_) return true;
  if (!waiting_ || waiting_->content != content) waiting_ = Reading{content, now};
  return now - waiting_->since >= kSettleTime;
}

absl::StatusOr<std::optional<std::string>> WatchedFile::Changed(Time now) {
  if (!is_set()) return std::nullopt;
  absl::StatusOr<std::string> content = io::ReadSmallFile(path_, kMaxCredentialFile);
  if (!content.ok()) {
    waiting_.reset();
    if (content.status() == failed_) return std::nullopt;
    failed_ = content.status();
    return failed_;
  }
  const bool has_recovered = !failed_.ok();
  failed_ = absl::OkStatus();
  if (content_ == *content) {
    waiting_.reset();
    return has_recovered ? content_ : std::nullopt;
  }
  if (!HasSettled(*content, now)) return std::nullopt;
  waiting_.reset();
  content_ = *std::move(content);
  return content_;
}

}  // namespace intrawarp::server
