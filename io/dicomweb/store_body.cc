// SPDX-License-Identifier: Apache-2.0
#include "io/dicomweb/store_body.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"

namespace intrawarp::dicomweb {
namespace {

constexpr size_t kBoundaryBytes = 16;

// Random, so that no file holds it.
std::string MakeBoundary() {
  std::string bytes(kBoundaryBytes, '\0');
  size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t got = getrandom(bytes.data() + have, bytes.size() - have, 0);
    if (got > 0) have += static_cast<size_t>(got);
  }
  return absl::BytesToHexString(bytes);
}

std::string PartHeader(const std::string& boundary, bool is_first) {
  return absl::StrCat(is_first ? "" : "\r\n", "--", boundary, "\r\nContent-Type: application/dicom\r\n\r\n");
}

std::string Closing(const std::string& boundary) { return absl::StrCat("\r\n--", boundary, "--\r\n"); }

absl::Status Changed() { return FieldError(absl::StatusCode::kDataLoss, "file", "has changed while it was sent"); }

}  // namespace

StoreBody::StoreBody(std::vector<File> files) : files_(std::move(files)), boundary_(MakeBoundary()) {
  bytes_ = static_cast<int64_t>(Closing(boundary_).size());
  for (size_t i = 0; i < files_.size(); ++i) {
    bytes_ += static_cast<int64_t>(PartHeader(boundary_, i == 0).size()) + files_[i].bytes;
  }
}

StoreBody::~StoreBody() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::string StoreBody::ContentType() const {
  return absl::StrCat("multipart/related; type=\"application/dicom\"; boundary=", boundary_);
}

// Readies the header of the next file and the file, or after the last one the closing delimiter.
absl::Status StoreBody::OpenNext() {
  text_at_ = 0;
  if (next_ == files_.size()) {
    ++next_;
    text_ = Closing(boundary_);
    return absl::OkStatus();
  }
  const File& file = files_[next_];
  INTRAWARP_ASSIGN_OR_RETURN(const io::RegularFile opened, io::OpenRegularFile(file.path));
  descriptor_ = opened.descriptor;
  if (opened.bytes != file.bytes) return Changed();
  text_ = PartHeader(boundary_, next_ == 0);
  file_left_ = file.bytes;
  ++next_;
  return absl::OkStatus();
}

absl::StatusOr<size_t> StoreBody::ReadFile(char* to, size_t size) {
  const size_t wanted = static_cast<size_t>(std::min<int64_t>(file_left_, static_cast<int64_t>(size)));
  ssize_t got = 0;
  do {
    got = read(descriptor_, to, wanted);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return io::FileError("cannot be read", errno);
  if (got == 0 && wanted > 0) return Changed();
  file_left_ -= got;
  if (file_left_ == 0) close(std::exchange(descriptor_, -1));
  return static_cast<size_t>(got);
}

absl::StatusOr<size_t> StoreBody::Read(char* to, size_t size) {
  size_t filled = 0;
  while (filled < size) {
    if (text_at_ < text_.size()) {
      const size_t part = std::min(text_.size() - text_at_, size - filled);
      std::memcpy(to + filled, text_.data() + text_at_, part);
      text_at_ += part;
      filled += part;
    } else if (descriptor_ >= 0) {
      INTRAWARP_ASSIGN_OR_RETURN(const size_t part, ReadFile(to + filled, size - filled));
      filled += part;
    } else if (next_ <= files_.size()) {
      INTRAWARP_RETURN_IF_ERROR(OpenNext());
    } else {
      break;
    }
  }
  return filled;
}

}  // namespace intrawarp::dicomweb
