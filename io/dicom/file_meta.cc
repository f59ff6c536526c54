// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/file_meta.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"

namespace intrawarp::io {
namespace {

constexpr size_t kPreambleBytes = 128;
constexpr absl::string_view kPrefix = "DICM";
constexpr size_t kMaxUidBytes = 64;
constexpr uint16_t kMetaGroup = 0x0002;
constexpr uint16_t kSopClass = 0x0002;
constexpr uint16_t kSopInstance = 0x0003;
constexpr uint16_t kTransferSyntax = 0x0010;
constexpr char kDirectoryStorage[] = "1.2.840.10008.1.3.10";

absl::Status Broken() { return FieldError(absl::StatusCode::kDataLoss, "file", "its meta header is broken"); }

size_t Little(absl::string_view bytes, size_t at, size_t size) {
  size_t value = 0;
  for (size_t i = 0; i < size; ++i) value |= static_cast<size_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return value;
}

// Explicit VR little endian, as every meta header is.
struct Element {
  uint16_t group = 0, element = 0;
  size_t value = 0;  // where it begins
  size_t size = 0;
};

absl::StatusOr<Element> ElementAt(absl::string_view bytes, size_t at) {
  constexpr size_t kShort = 8, kLong = 12;
  if (bytes.size() - at < kShort) return Broken();
  Element element{static_cast<uint16_t>(Little(bytes, at, 2)), static_cast<uint16_t>(Little(bytes, at + 2, 2))};
  const absl::string_view vr = bytes.substr(at + 4, 2);
  const bool is_long = vr == "OB" || vr == "UN" || vr == "OW" || vr == "SQ" || vr == "UT";
  if (is_long && bytes.size() - at < kLong) return Broken();
  element.value = at + (is_long ? kLong : kShort);
  element.size = is_long ? Little(bytes, at + 8, 4) : Little(bytes, at + 6, 2);
  return element;
}

std::string UidOf(absl::string_view value) {
  while (!value.empty() && (value.back() == '\0' || value.back() == ' ')) value.remove_suffix(1);
  const bool is_uid = value.size() <= kMaxUidBytes && std::all_of(value.begin(), value.end(), [](char c) {
                        return c == '.' || absl::ascii_isdigit(c);
                      });
  return is_uid ? std::string(value) : "";
}

}  // namespace

bool FileMeta::is_directory() const { return sop_class == kDirectoryStorage; }

absl::StatusOr<FileMeta> ParseFileMeta(absl::string_view bytes) {
  bytes = bytes.substr(0, kMaxFileMetaBytes);
  if (bytes.size() < kPreambleBytes + kPrefix.size() || bytes.substr(kPreambleBytes, kPrefix.size()) != kPrefix) {
    return FieldError(absl::StatusCode::kNotFound, "file", "is not DICOM");
  }
  FileMeta meta;
  meta.size = kPreambleBytes + kPrefix.size();
  // The group ends where another begins; its length is not trusted.
  while (bytes.size() - meta.size >= 2 && Little(bytes, meta.size, 2) == kMetaGroup) {
    INTRAWARP_ASSIGN_OR_RETURN(const Element element, ElementAt(bytes, meta.size));
    if (element.size > bytes.size() - element.value) return Broken();
    const absl::string_view value = bytes.substr(element.value, element.size);
    if (element.element == kSopClass) meta.sop_class = UidOf(value);
    if (element.element == kSopInstance) meta.sop_instance = UidOf(value);
    if (element.element == kTransferSyntax) meta.transfer_syntax = UidOf(value);
    meta.size = element.value + element.size;
  }
  if (meta.sop_class.empty() || meta.sop_instance.empty() || meta.transfer_syntax.empty()) return Broken();
  return meta;
}

absl::StatusOr<FileMeta> ReadFileMeta(const std::string& path) {
  INTRAWARP_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(path));
  std::string bytes(static_cast<size_t>(std::min<int64_t>(file.bytes, kMaxFileMetaBytes)), '\0');
  size_t have = 0;
  int error = 0;
  while (have < bytes.size() && error == 0) {
    const ssize_t got = read(file.descriptor, bytes.data() + have, bytes.size() - have);
    if (got == 0) break;
    if (got > 0) have += static_cast<size_t>(got);
    if (got < 0 && errno != EINTR) error = errno;
  }
  close(file.descriptor);
  if (error != 0) return FileError("cannot be read", error);
  return ParseFileMeta(absl::string_view(bytes).substr(0, have));
}

}  // namespace intrawarp::io
