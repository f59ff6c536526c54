// SPDX-License-Identifier: Apache-2.0
// StoreBody: the body of a STOW-RS request (PS3.18, section 10.5.1), read from its files as it is sent.
//
// Thread safety: thread-compatible.
#ifndef INTRAWARP_IO_DICOMWEB_STORE_BODY_H_
#define INTRAWARP_IO_DICOMWEB_STORE_BODY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::dicomweb {

class StoreBody {
 public:
  // A file and its size, in which it is sent.
  struct File {
    std::string path;
    int64_t bytes = 0;
  };

  explicit StoreBody(std::vector<File> files);
  ~StoreBody();
  StoreBody(const StoreBody&) = delete;

  std::string ContentType() const;
  int64_t bytes() const { return bytes_; }
  // Fills `to` with what comes next; 0 at the end. Errors of opening a file, and DATA_LOSS "file: ..." for one whose
  // size has changed.
  absl::StatusOr<size_t> Read(char* to, size_t size);

 private:
  absl::Status OpenNext();
  absl::StatusOr<size_t> ReadFile(char* to, size_t size);

  const std::vector<File> files_;
  const std::string boundary_;
  int64_t bytes_ = 0;
  size_t next_ = 0;   // the first file that is not open yet
  std::string text_;  // what is sent before the open file, or at the end
  size_t text_at_ = 0;
  int descriptor_ = -1;
  int64_t file_left_ = 0;
};

}  // namespace intrawarp::dicomweb

#endif  // INTRAWARP_IO_DICOMWEB_STORE_BODY_H_
