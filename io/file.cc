// SPDX-License-Identifier: Apache-2.0
#include "io/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace intrawarp::io {
namespace {

constexpr size_t kReadStep = size_t{1} << 16;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

}  // namespace

absl::Status FileError(absl::string_view what, int errno_value) {
  const std::string message =
      errno_value == 0 ? absl::StrCat("file: ", what) : absl::StrCat("file: ", what, ": ", std::strerror(errno_value));
  switch (errno_value) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::UnknownError(message);
  }
}

void RemovePartialFile(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode)) unlink(path.c_str());
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  File file(std::fopen(path.c_str(), "rb"));
  if (!file) return FileError("cannot be opened", errno);
  std::string contents;
  while (contents.size() <= max_bytes) {
    const size_t before = contents.size();
    contents.resize(before + kReadStep);
    const size_t got = std::fread(contents.data() + before, 1, kReadStep, file.get());
    contents.resize(before + got);
    if (got == kReadStep) continue;
    if (std::ferror(file.get())) return FileError("cannot be read", errno);
    break;
  }
  if (contents.size() > max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("file: longer than ", max_bytes, " bytes"));
  }
  return contents;
}

absl::Status WriteSmallFile(const std::string& path, absl::string_view contents) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return FileError("cannot be created", errno);
  errno = 0;
  const bool written = std::fwrite(contents.data(), 1, contents.size(), file) == contents.size();
  int error = written ? 0 : errno;
  const bool closed = std::fclose(file) == 0;
  if (written && closed) return absl::OkStatus();
  if (error == 0) error = errno;
  RemovePartialFile(path);
  return FileError("cannot be written", error);
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
