// SPDX-License-Identifier: Apache-2.0
// FileLayer: the file operations of a state directory, all of them, so that a test can make any one of them fail and
// can take away what was not synced.
//
// Errors begin with "file: " and have the codes of io/file/file.h's FileError: NOT_FOUND, PERMISSION_DENIED,
// RESOURCE_EXHAUSTED (full), UNKNOWN. Thread safety: a layer is safe for concurrent use, a file is thread-compatible.
#ifndef INTRAWARP_SERVER_STATE_FILE_LAYER_H_
#define INTRAWARP_SERVER_STATE_FILE_LAYER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace intrawarp::state {

enum class OpenMode {
  kRead,           // NOT_FOUND when there is none
  kWrite,          // for reading and writing; made when there is none
  kWriteExisting,  // for reading and writing; NOT_FOUND when there is none
};

// An open regular file; closed when it goes.
class File {
 public:
  virtual ~File() = default;
  // Reads up to `size` bytes; fewer at the end of the file alone.
  virtual absl::StatusOr<size_t> ReadAt(int64_t offset, void* to, size_t size) = 0;
  // Writes all bytes. After an error a part of them may be in the file.
  virtual absl::Status WriteAt(int64_t offset, const void* from, size_t size) = 0;
  virtual absl::Status Truncate(int64_t size) = 0;
  // Bytes that were written and the file's size outlive a loss of power. The name of a new file takes SyncDirectory.
  virtual absl::Status Sync() = 0;
  virtual absl::StatusOr<int64_t> Size() = 0;
};

// A lock that goes with the object, and with the process.
class DirectoryLock {
 public:
  virtual ~DirectoryLock() = default;
};

class FileLayer {
 public:
  virtual ~FileLayer() = default;
  virtual absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) = 0;
  // Replaces a file at `to`.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;
  // Makes the directory unless it is there.
  virtual absl::Status MakeDirectory(const std::string& path) = 0;
  // Names made, renamed and removed in the directory before outlive a loss of power.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // Names of the files in a directory, sorted.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;
  virtual absl::StatusOr<bool> Exists(const std::string& path) = 0;
  // The bytes that an unprivileged process may still write to the file system of `path`.
  virtual absl::StatusOr<int64_t> FreeBytes(const std::string& path) = 0;
  // Makes the lock file and locks it. FAILED_PRECONDITION when another process or object has the lock.
  virtual absl::StatusOr<std::unique_ptr<DirectoryLock>> Lock(const std::string& path) = 0;
};

// POSIX's files. Lives as long as the process.
FileLayer& PosixFiles();

}  // namespace intrawarp::state

#endif  // INTRAWARP_SERVER_STATE_FILE_LAYER_H_
