// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/instance_file.h"

#include <semaphore>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "io/dicom/dicom.h"
#include "io/digest.h"

namespace intrawarp::server {
namespace {

constexpr char kImplementationUid[] = "2.25.250133310374419385241720383124083871733";
constexpr int kReadAtOnce = 2;

void PutLittle(size_t value, int count, std::string& to) {
  for (int i = 0; i < count; ++i) to.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

// An element of the file meta header, in explicit little endian.
void AddMeta(uint16_t element, const char* vr, absl::string_view value, std::string& to) {
  std::string even(value);
  if (even.size() % 2 != 0) even.push_back('\0');
  PutLittle(2, 2, to);
  PutLittle(element, 2, to);
  to += vr;
  if (absl::string_view(vr) == "OB") {
    PutLittle(0, 2, to);
    PutLittle(even.size(), 4, to);
  } else {
    PutLittle(even.size(), 2, to);
  }
  to += even;
}

}  // namespace

std::string FileHeader(const std::string& sop_class, const std::string& instance, const std::string& transfer_syntax) {
  std::string meta;
  AddMeta(0x0001, "OB", absl::string_view("\0\1", 2), meta);
  AddMeta(0x0002, "UI", sop_class, meta);
  AddMeta(0x0003, "UI", instance, meta);
  AddMeta(0x0010, "UI", transfer_syntax, meta);
  AddMeta(0x0012, "UI", kImplementationUid, meta);
  std::string length, header(128, '\0');
  PutLittle(meta.size(), 4, length);
  header += "DICM";
  AddMeta(0x0000, "UL", length, header);
  return header + meta;
}

absl::StatusOr<std::string> SeriesOfFile(const std::string& path) {
  // Each has a whole file in memory.
  static std::counting_semaphore<kReadAtOnce> readers(kReadAtOnce);
  readers.acquire();
  const auto release = absl::MakeCleanup([] { readers.release(); });
  io::DicomOptions options;
  options.limits.max_file_bytes = kMaxInstanceBytes;
  INTRAWARP_ASSIGN_OR_RETURN(const io::DicomListing listing, io::ListDicom(path, options));
  if (listing.volumes.empty()) return absl::InvalidArgumentError("holds no image");
  for (const io::DicomEntry& entry : listing.volumes) INTRAWARP_RETURN_IF_ERROR(entry.status);
  const std::string& series = listing.volumes.front().provenance.series;
  if (series.empty()) return absl::InvalidArgumentError("has no series");
  return series;
}

std::string InstanceHash(const std::string& uid) {
  return absl::BytesToHexString(io::Sha256Of(uid.data(), uid.size()));
}

}  // namespace intrawarp::server
