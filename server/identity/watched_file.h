// SPDX-License-Identifier: Apache-2.0
// WatchedFile: a small file that may be replaced while the server runs. The whole content is compared, so that no
// resolution of a time stamp hides a change.
//
// Thread safety: thread-compatible.
#ifndef INTRAWARP_SERVER_IDENTITY_WATCHED_FILE_H_
#define INTRAWARP_SERVER_IDENTITY_WATCHED_FILE_H_

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
  // The content when it is another than at the last call, nullopt when it is the same. A file that cannot be read is an
  // error once, until it can be read again or the error is another; the first call always answers.
  absl::StatusOr<std::optional<std::string>> Changed();

 private:
  const std::string path_;
  bool was_read_ = false;
  std::string content_;
  absl::Status failed_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_IDENTITY_WATCHED_FILE_H_
