// SPDX-License-Identifier: Apache-2.0
#include "io/file/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"

namespace intrawarp::io {
namespace {

constexpr size_t kReadStep = size_t{1} << 16;
constexpr size_t kWriteStep = size_t{1} << 20;
constexpr unsigned kStreamBuffer = 1 << 18;

// The file that a path leads to. A link to a file that does not exist yet is itself the file.
std::string WithoutLinks(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  return error ? path : real.string();
}

std::string FolderOf(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

// Descriptors that a shell may have opened. The output goes into the very file that the shell has open.
bool IsDescriptorPath(const std::string& path) {
  return absl::StartsWith(path, "/dev/std") || absl::StartsWith(path, "/dev/fd/") || absl::StartsWith(path, "/proc/");
}

// A name that no other file of this process has had.
std::string TemporaryName(const std::string& folder) {
  static std::atomic<uint64_t> count{0};
  return absl::StrCat(folder, "/.intrawarp-", getpid(), "-", count.fetch_add(1));
}

absl::Status SyncFolder(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return FileError("the folder cannot be opened", errno);
  // EINVAL: a file system that does not sync folders.
  const int error = fsync(descriptor) == 0 || errno == EINVAL ? 0 : errno;
  close(descriptor);
  return error == 0 ? absl::OkStatus() : FileError("the folder cannot be written", error);
}

}  // namespace

absl::Status FileError(absl::string_view what, int errno_value) {
  const std::string message =
      errno_value == 0 ? std::string(what) : absl::StrCat(what, ": ", std::strerror(errno_value));
  switch (errno_value) {
    case ENOENT:
    case ENOTDIR:
      return FieldError(absl::StatusCode::kNotFound, "file", message);
    case EACCES:
    case EPERM:
    case EROFS:
      return FieldError(absl::StatusCode::kPermissionDenied, "file", message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return FieldError(absl::StatusCode::kResourceExhausted, "file", message);
    case ENAMETOOLONG:
    case ELOOP:
      return FieldError(absl::StatusCode::kInvalidArgument, "file", message);
    default:
      return FieldError(absl::StatusCode::kUnknown, "file", message);
  }
}

absl::StatusOr<RegularFile> OpenRegularFile(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer. Reading a regular file is the same with it.
  const int descriptor = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return FileError("cannot be opened", errno);
  struct stat info;
  if (fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode)) return RegularFile{descriptor, info.st_size};
  close(descriptor);
  return FieldError(absl::StatusCode::kInvalidArgument, "file", "not a regular file");
}

absl::StatusOr<AtomicFile> AtomicFile::Create(const std::string& path, Coding coding) {
  AtomicFile file;
  INTRAWARP_RETURN_IF_ERROR(file.Open(path));
  // The stream closes its own descriptor; Commit syncs through the other one.
  const int descriptor = fcntl(file.descriptor_, F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) return FileError("cannot be created", errno);
  file.stream_ = gzdopen(descriptor, coding == Coding::kGzip ? "wb1" : "wbT");
  if (file.stream_ == nullptr) {
    close(descriptor);
    return FieldError(absl::StatusCode::kResourceExhausted, "file", "no memory to write it");
  }
  gzbuffer(file.stream_, kStreamBuffer);
  return file;
}

absl::Status AtomicFile::Open(const std::string& path) {
  target_ = WithoutLinks(path);
  struct stat info;
  const bool exists = stat(target_.c_str(), &info) == 0;
  if (IsDescriptorPath(path) || (exists && !S_ISREG(info.st_mode))) {
    descriptor_ = open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
    return descriptor_ < 0 ? FileError("cannot be created", errno) : absl::OkStatus();
  }
  if (exists && access(target_.c_str(), W_OK) != 0) return FileError("cannot be replaced", errno);
  INTRAWARP_RETURN_IF_ERROR(OpenTemporary(FolderOf(target_)));
  if (exists && fchmod(descriptor_, info.st_mode & 07777) != 0) return FileError("cannot be created", errno);
  return absl::OkStatus();
}

absl::Status AtomicFile::OpenTemporary(const std::string& folder) {
  constexpr int kTries = 100;  // other hosts may share the folder and the process id
  for (int i = 0; i < kTries; ++i) {
    const std::string name = TemporaryName(folder);
    descriptor_ = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno == EEXIST) continue;
    if (descriptor_ < 0) return FileError("cannot be created", errno);
    temporary_ = name;
    return absl::OkStatus();
  }
  return FileError("cannot be created", EEXIST);
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)),
      stream_(std::exchange(other.stream_, nullptr)) {}

AtomicFile::~AtomicFile() {
  if (stream_ != nullptr) gzclose_w(stream_);
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status AtomicFile::Write(const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const unsigned step = static_cast<unsigned>(std::min(size, kWriteStep));
    errno = 0;
    if (gzwrite(stream_, next, step) != static_cast<int>(step)) return FileError("cannot be written", errno);
    next += step;
    size -= step;
  }
  return absl::OkStatus();
}

absl::Status AtomicFile::Commit() {
  errno = 0;
  if (gzclose_w(std::exchange(stream_, nullptr)) != Z_OK) return FileError("cannot be written", errno);
  if (temporary_.empty()) return absl::OkStatus();
  if (fsync(descriptor_) != 0) return FileError("cannot be written", errno);
  if (rename(temporary_.c_str(), target_.c_str()) != 0) return FileError("cannot be replaced", errno);
  temporary_.clear();
  return SyncFolder(FolderOf(target_));
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(path));
  std::string contents;
  ssize_t got = 1;
  while (got > 0 && contents.size() <= max_bytes) {
    const size_t before = contents.size();
    contents.resize(before + kReadStep);
    got = read(file.descriptor, contents.data() + before, kReadStep);
    contents.resize(before + std::max<ssize_t>(got, 0));
  }
  const int error = got < 0 ? errno : 0;
  close(file.descriptor);
  if (error != 0) return FileError("cannot be read", error);
  if (contents.size() <= max_bytes) return contents;
  return FieldError(absl::StatusCode::kResourceExhausted, "file", absl::StrCat("longer than ", max_bytes, " bytes"));
}

absl::Status WriteSmallFile(const std::string& path, absl::string_view contents) {
  INTRAWARP_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  INTRAWARP_RETURN_IF_ERROR(file.Write(contents.data(), contents.size()));
  return file.Commit();
}

absl::StatusOr<double> ParseFinite(absl::string_view text) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  const char* begin = trimmed.data();
  const char* end = begin + trimmed.size();
  if (trimmed.size() > 1 && trimmed[0] == '+' && trimmed[1] != '-') ++begin;
  double value = 0;
  const auto [rest, error] = std::from_chars(begin, end, value);
  if (begin == end || error != std::errc() || rest != end) return absl::InvalidArgumentError("not a number");
  if (!std::isfinite(value)) return absl::InvalidArgumentError("not finite");
  return value;
}

std::string FormatDouble(double value) {
  char text[32];
  const auto result = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, result.ptr);
}

}  // namespace intrawarp::io
