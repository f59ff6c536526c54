// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "engine/base/status_macros.h"
#include "io/file/file.h"
#include "server/state/file_layer.h"

namespace intrawarp::state {
namespace {

// A descriptor that is closed when it goes.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  int get() const { return value_; }

 private:
  int value_;
};

absl::Status LastError(const char* what) { return io::FileError(what, errno); }

class PosixFile final : public File {
 public:
  explicit PosixFile(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

  absl::StatusOr<size_t> ReadAt(int64_t offset, void* to, size_t size) override {
    size_t done = 0;
    while (done < size) {
      const ssize_t n =
          pread(descriptor_.get(), static_cast<char*>(to) + done, size - done, offset + static_cast<int64_t>(done));
      if (n == 0) break;
      if (n < 0 && errno != EINTR) return LastError("cannot be read");
      if (n > 0) done += static_cast<size_t>(n);
    }
    return done;
  }

  absl::Status WriteAt(int64_t offset, const void* from, size_t size) override {
    size_t done = 0;
    while (done < size) {
      const ssize_t n = pwrite(descriptor_.get(), static_cast<const char*>(from) + done, size - done,
                               offset + static_cast<int64_t>(done));
      if (n < 0 && errno != EINTR) return LastError("cannot be written");
      if (n > 0) done += static_cast<size_t>(n);
    }
    return absl::OkStatus();
  }

  absl::Status Truncate(int64_t size) override {
    return ftruncate(descriptor_.get(), size) == 0 ? absl::OkStatus() : LastError("cannot be cut");
  }
  absl::Status Sync() override {
    return fsync(descriptor_.get()) == 0 ? absl::OkStatus() : LastError("cannot be synced");
  }
  absl::StatusOr<int64_t> Size() override {
    struct stat info;
    if (fstat(descriptor_.get(), &info) != 0) return LastError("has no size");
    return int64_t{info.st_size};
  }

 private:
  const Descriptor descriptor_;
};

class PosixLock final : public DirectoryLock {
 public:
  explicit PosixLock(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

 private:
  const Descriptor descriptor_;
};

int OpenFlags(OpenMode mode) {
  // A FIFO in a file's place must not hold the server up.
  constexpr int kCommon = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  if (mode == OpenMode::kRead) return kCommon | O_RDONLY;
  return kCommon | O_RDWR | (mode == OpenMode::kWrite ? O_CREAT : 0);
}

class PosixLayer final : public FileLayer {
 public:
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    Descriptor descriptor(open(path.c_str(), OpenFlags(mode), 0600));
    if (descriptor.get() < 0) return LastError("cannot be opened");
    struct stat info;
    if (fstat(descriptor.get(), &info) != 0) return LastError("cannot be opened");
    if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError("file: not a regular file");
    return std::make_unique<PosixFile>(std::move(descriptor));
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    return rename(from.c_str(), to.c_str()) == 0 ? absl::OkStatus() : LastError("cannot be renamed");
  }
  absl::Status Remove(const std::string& path) override {
    return unlink(path.c_str()) == 0 ? absl::OkStatus() : LastError("cannot be removed");
  }
  absl::Status MakeDirectory(const std::string& path) override {
    if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
    return LastError("the folder cannot be made");
  }

  absl::Status SyncDirectory(const std::string& path) override {
    const Descriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder.get() < 0) return LastError("the folder cannot be opened");
    // EINVAL: a file system that does not sync folders.
    if (fsync(folder.get()) == 0 || errno == EINVAL) return absl::OkStatus();
    return LastError("the folder cannot be synced");
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    DIR* const folder = opendir(path.c_str());
    if (folder == nullptr) return LastError("the folder cannot be listed");
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = readdir(folder)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    const int error = errno;
    closedir(folder);
    if (error != 0) return io::FileError("the folder cannot be listed", error);
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::StatusOr<bool> Exists(const std::string& path) override {
    struct stat info;
    if (lstat(path.c_str(), &info) == 0) return true;
    if (errno == ENOENT) return false;
    return LastError("cannot be looked up");
  }

  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    struct statvfs info;
    if (statvfs(path.c_str(), &info) != 0) return LastError("the file system does not answer");
    return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
  }

  absl::StatusOr<std::unique_ptr<DirectoryLock>> Lock(const std::string& path) override {
    Descriptor descriptor(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (descriptor.get() < 0)
      return LastError("the lock file cannot be opened (the folder must exist, and the server may write to it)");
    if (flock(descriptor.get(), LOCK_EX | LOCK_NB) == 0) return std::make_unique<PosixLock>(std::move(descriptor));
    if (errno == EWOULDBLOCK) return absl::FailedPreconditionError("file: another process uses this state directory");
    return LastError("cannot be locked");
  }
};

}  // namespace

FileLayer& PosixFiles() {
  static auto* const layer = new PosixLayer();
  return *layer;
}

}  // namespace intrawarp::state
