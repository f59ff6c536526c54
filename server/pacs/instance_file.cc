// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/instance_file.h"

#include <semaphore>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "io/file/digest.h"
#include "server/context/limits.h"

namespace intrawarp::server {
namespace {

constexpr char kImplementationUid[] = "2.25.250133310374419385241720383124083871733";
constexpr int kReadAtOnce = 2;
constexpr size_t kSubjectDigits = 16;

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

InstanceDescription DescribeInstance(const std::string& path, const io::DicomRoomFn& reading) {
  // Each has a whole file in memory.
  static std::counting_semaphore<kReadAtOnce> readers(kReadAtOnce);
  readers.acquire();
  const auto release = absl::MakeCleanup([] { readers.release(); });
  io::DicomOptions options;
  options.limits.max_file_bytes = kMaxInstanceBytes;
  options.limits.room = reading;
  const absl::StatusOr<io::DicomListing> listing = io::ListDicom(path, options);
  InstanceDescription described;
  if (!listing.ok()) {
    described.has_room = !absl::IsResourceExhausted(listing.status());
    described.status = listing.status();
    return described;
  }
  if (listing->volumes.empty()) {
    described.is_slice = false;
    described.status = absl::InvalidArgumentError("holds no image");
    return described;
  }
  const io::DicomEntry& first = listing->volumes.front();
  described.series = first.provenance.series;
  if (!described.series.empty()) {
    described.group = described.series + first.provenance.subject.substr(0, kSubjectDigits);
  }
  described.instance = first.instance;
  described.announced = first.announced_images;
  described.status = first.uids;
  for (const io::DicomEntry& entry : listing->volumes) described.status.Update(entry.status);
  if (described.series.empty()) described.status.Update(absl::InvalidArgumentError("has no series"));
  described.is_slice = !first.is_colour;
  return described;
}

std::string InstanceHash(const std::string& uid) {
  return absl::BytesToHexString(io::Sha256Of(uid.data(), uid.size()));
}

}  // namespace intrawarp::server
