// SPDX-License-Identifier: Apache-2.0
// WatchedFile: a small file that may be replaced while the server runs. The whole content is compared, so that no
// resolution of a time stamp hides a change.
//
// A file that is written in place is empty or cut for a moment. A change therefore counts only after two readings in a
// row, at least kSettleTime apart, have shown the same content. Whoever writes a temporary file and renames it avoids
// the moment, and waits the same time.
//
// Thread safety: thread-compatible.
#ifndef INTRAWARP_SERVER_IDENTITY_WATCHED_FILE_H_
#define INTRAWARP_SERVER_IDENTITY_WATCHED_FILE_H_

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace intrawarp::server {

class WatchedFile {
 public:
  // An empty path stands for no file, whose content never changes.
  explicit WatchedFile(std::string path) : path_(std::move(path)) {}

  bool is_set() const { return !path_.empty(); }
  const std::string& path() const { return path_; }
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kSettleTime{2};

  // The content at the first call, and later when another one has settled at `now`; nullopt otherwise. A file that
  // cannot be read is an error once, until it can be read again or the error is another; the content is then answered
  // anew.
  absl::StatusOr<std::optional<std::string>> Changed(Time now);

 private:
  // A content that was read at `since` and at every reading after it.
  struct Reading {
    std::string content;
    Time since;
  };
  // Whether `content` is one to answer with.
  bool HasSettled(const std::string& content, Time now);

  const std::string path_;
  // What Changed answered last.
  std::optional<std::string> content_;
  // Another content that has not settled.
  std::optional<Reading> waiting_;
  absl::Status failed_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_IDENTITY_WATCHED_FILE_H_
