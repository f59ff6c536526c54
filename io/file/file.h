// SPDX-License-Identifier: Apache-2.0
// Files: opening files that may be hostile, replacing a file at once or not at all, whole small files, numbers as text.
//
// Errors begin with "file: ". FileError gives the code; a path that is not a regular file, where a reader wants one, is
// INVALID_ARGUMENT "file: not a regular file". The functions are thread-safe, AtomicFile is thread-compatible.
#ifndef INTRAWARP_IO_FILE_FILE_H_
#define INTRAWARP_IO_FILE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct gzFile_s;  // zlib's

namespace intrawarp::io {

// A regular file that is open for reading. The caller closes `descriptor`.
struct RegularFile {
  int descriptor = -1;
  int64_t bytes = 0;
};
// Refuses folders, devices and FIFOs, and does not wait for a FIFO's writer.
absl::StatusOr<RegularFile> OpenRegularFile(const std::string& path);

// A file that replaces the file at its path when it is committed. Until then the bytes go to a temporary file
// in the same folder (".intrawarp-..."), so that a failure or a crash leaves the old file as it was; without a Commit
// the destructor removes the temporary file (a crash leaves it behind). A new file has the mode of the umask, a
// replaced one keeps its mode, and a symbolic link goes on pointing to the file that was replaced.
//
// A path that names an open descriptor (/dev/stdout) or something other than a regular file (a pipe, a device) is
// written to directly, which is not atomic. A file that is a mount point of its own cannot be replaced, which is an
// error.
class AtomicFile {
 public:
  enum class Coding { kPlain, kGzip };

  // kGzip compresses fast (level 1). Its header holds neither a name nor a time, so that equal input gives equal bytes.
  static absl::StatusOr<AtomicFile> Create(const std::string& path, Coding coding = Coding::kPlain);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  absl::Status Write(const void* data, size_t size);
  // Brings everything to the disk, renames the file, and brings the folder to the disk; the new file is in place when
  // only the last of these fails. Called once, after the last Write.
  absl::Status Commit();

 private:
  AtomicFile() = default;
  absl::Status Open(const std::string& path);
  absl::Status OpenTemporary(const std::string& folder);

  std::string target_;
  std::string temporary_;  // empty for a target that is written directly
  int descriptor_ = -1;
  gzFile_s* stream_ = nullptr;
};

// RESOURCE_EXHAUSTED above `max_bytes`.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);
// Replaces the file, as AtomicFile does.
absl::Status WriteSmallFile(const std::string& path, absl::string_view contents);

// The status of a failed call on a file: NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED, INVALID_ARGUMENT (a
// path that no file can have, or a link where none is followed) or UNKNOWN. `errno_value` is 0 where the library did
// not say.
absl::Status FileError(absl::string_view what, int errno_value);

// A finite decimal number, with no regard to the locale; INVALID_ARGUMENT otherwise.
absl::StatusOr<double> ParseFinite(absl::string_view text);
// The shortest text that ParseFinite turns back into exactly `value`.
std::string FormatDouble(double value);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FILE_FILE_H_
