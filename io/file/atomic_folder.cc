// SPDX-License-Identifier: Apache-2.0
#include "io/file/atomic_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"

namespace intrawarp::io {
namespace {

absl::Status Occupied() {
  return FieldError(absl::StatusCode::kAlreadyExists, "file",
                    "is there already; a folder of results must be new or empty");
}

absl::Status SyncFolder(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return FileError("the folder cannot be opened", errno);
  // EINVAL: a file system that does not sync folders.
  const int error = fsync(descriptor) == 0 || errno == EINVAL ? 0 : errno;
  close(descriptor);
  return error == 0 ? absl::OkStatus() : FileError("the folder cannot be written", error);
}

std::string Around(const std::string& target) {
  const std::filesystem::path parent = std::filesystem::path(target).parent_path();
  return parent.empty() ? "." : parent.string();
}

// A name that no other file of this process has had.
std::string TemporaryName(const std::string& folder) {
  static std::atomic<uint64_t> count{0};
  return absl::StrCat(folder, "/.intrawarp-", getpid(), "-folder", count.fetch_add(1));
}

}  // namespace

absl::StatusOr<AtomicFolder> AtomicFolder::Create(const std::string& target) {
  std::string name = target;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(name, error);
  if (std::filesystem::exists(status)) {
    const bool is_empty_folder = std::filesystem::is_directory(status) && std::filesystem::is_empty(name, error);
    if (!is_empty_folder) return Occupied();
  }
  std::string temporary = TemporaryName(Around(name));
  if (mkdir(temporary.c_str(), 0777) != 0) return FileError("the folder cannot be made", errno);
  return AtomicFolder(std::move(name), std::move(temporary));
}

AtomicFolder::AtomicFolder(AtomicFolder&& other) noexcept
    : target_(std::move(other.target_)), temporary_(std::exchange(other.temporary_, "")) {}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
}

absl::Status AtomicFolder::Commit() {
  INTRAWARP_RETURN_IF_ERROR(SyncFolder(temporary_));
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) {
    if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR) return Occupied();
    return FileError("the folder cannot be renamed", errno);
  }
  temporary_.clear();
  return SyncFolder(Around(target_));
}

}  // namespace intrawarp::io
