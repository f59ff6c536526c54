// SPDX-License-Identifier: Apache-2.0
// Fuzz targets have this in common: a file in memory with an input's bytes, and checks that end the program.
#ifndef INTRAWARP_TESTS_FUZZ_FUZZ_INPUT_H_
#define INTRAWARP_TESTS_FUZZ_FUZZ_INPUT_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace intrawarp::fuzz {

// Ends the program, which a fuzzer takes for a finding.
inline void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

// A refusal has a code that readers of untrusted files may give, a message of one line, and no unbounded text of the
// file.
inline void RequireRefusal(const absl::Status& status) {
  if (status.ok()) return;
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
      break;
    default:
      Require(false, "the code of a refusal");
  }
  Require(!status.message().empty() && status.message().size() < 1000, "the length of a message");
  Require(status.message().find('\n') == absl::string_view::npos, "one line");
}

// A regular file in memory with these bytes, which has a path of this process.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    Require(descriptor_ >= 0, "memfd_create");
    size_t done = 0;
    while (done < size) {
      const ssize_t n = write(descriptor_, data + done, size - done);
      Require(n > 0, "write");
      done += static_cast<size_t>(n);
    }
  }
  MemoryFile(const MemoryFile&) = delete;
  ~MemoryFile() { close(descriptor_); }
  std::string path() const { return absl::StrCat("/proc/self/fd/", descriptor_); }

 private:
  const int descriptor_;
};

// A file in memory whose name has a suffix; one at a time in a process.
class NamedFile {
 public:
  NamedFile(const uint8_t* data, size_t size, const char* suffix)
      : path_(absl::StrCat("/dev/shm/intrawarp-fuzz-", getpid(), suffix)) {
    std::FILE* const file = std::fopen(path_.c_str(), "wb");
    Require(file != nullptr, "fopen");
    Require(std::fwrite(data, 1, size, file) == size && std::fclose(file) == 0, "fwrite");
  }
  NamedFile(const NamedFile&) = delete;
  ~NamedFile() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

}  // namespace intrawarp::fuzz

#endif  // INTRAWARP_TESTS_FUZZ_FUZZ_INPUT_H_
