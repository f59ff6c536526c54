// SPDX-License-Identifier: Apache-2.0
// A folder of DICOM files, and its first file by itself, as the loader, the reader of registrations and the reader of
// references take them. The first byte holds the options; the files follow (parts.h). Files of the corpus hold
// kPlanted where a patient's name stands: no answer may have it.
#include <sys/stat.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/geometry/geometry.h"
#include "io/dicom/dicom.h"
#include "io/dicom/reference.h"
#include "io/dicom/registration_object.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/parts.h"

namespace {

namespace io = intrawarp::io;
using intrawarp::fuzz::Require;

constexpr size_t kMostFiles = 8;
constexpr int64_t kMaxVolumeBytes = int64_t{1} << 18;
constexpr char kPlanted[] = "PLANTED";

void RequireSilent(absl::string_view text) {
  Require(text.find(kPlanted) == absl::string_view::npos, "no text of a patient");
}

void RequireRefusal(const absl::Status& status) {
  intrawarp::fuzz::RequireRefusal(status);
  RequireSilent(status.message());
}

// A folder of its own in memory, one at a time in a process.
class Folder {
 public:
  Folder() : path_(absl::StrCat("/dev/shm/intrawarp-fuzz-dicom-", getpid())) {
    Require(mkdir(path_.c_str(), 0700) == 0, "mkdir");
  }
  Folder(const Folder&) = delete;
  ~Folder() {
    for (size_t i = 0; i < files_; ++i) unlink(PathOf(i).c_str());
    rmdir(path_.c_str());
  }

  void Add(const std::string& bytes) {
    std::FILE* const file = std::fopen(PathOf(files_).c_str(), "wb");
    Require(file != nullptr, "fopen");
    ++files_;
    Require(std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size(), "fwrite");
    Require(std::fclose(file) == 0, "fclose");
  }
  const std::string& path() const { return path_; }
  std::string PathOf(size_t file) const { return absl::StrCat(path_, "/IM", file); }

 private:
  const std::string path_;
  size_t files_ = 0;
};

void RequireVolume(const io::DicomVolume& read) {
  const io::HostVolume& volume = read.volume;
  Require(intrawarp::ValidateGeometry(volume.geometry).ok(), "a valid geometry");
  Require(static_cast<int64_t>(volume.pixels.size()) ==
              volume.geometry.voxels() * intrawarp::BytesPerPixel(volume.pixel_type),
          "as many pixels as the geometry says");
  Require(static_cast<int64_t>(volume.pixels.size()) <= kMaxVolumeBytes, "no more than allowed");
  for (const std::string& note : read.notes) RequireSilent(note);
  RequireSilent(read.provenance.modality);
}

void TryEach(const std::string& path, const io::DicomOptions& options) {
  const absl::Status status = io::ReadEachDicom(path, options, [](const io::DicomEntry& entry, const auto& read) {
    RequireRefusal(entry.status);
    for (const std::string& note : entry.notes) RequireSilent(note);
    RequireSilent(io::DescribeDicomEntry(entry, 1));
    if (entry.status.ok()) Require(intrawarp::ValidateGeometry(entry.geometry).ok(), "a valid geometry");
    const absl::StatusOr<io::DicomVolume> volume = read();
    RequireRefusal(volume.status());
    Require(entry.status.ok() || volume.status() == entry.status, "what the listing says");
    if (!volume.ok()) return;
    RequireVolume(*volume);
    Require(SizeString(volume->volume.geometry) == SizeString(entry.geometry), "the size of the listing");
  });
  RequireRefusal(status);
}

void TryRegistration(const std::string& path) {
  const absl::StatusOr<io::ItkTransform> transform = io::ReadDicomRegistration(path, kMaxVolumeBytes);
  RequireRefusal(transform.status());
  if (!transform.ok()) return;
  const bool is_affine = transform->kind == io::ItkTransform::Kind::kAffine;
  Require(static_cast<int64_t>(transform->vectors.size()) == (is_affine ? 0 : 3 * transform->grid.voxels()),
          "three components a node");
  for (const float component : transform->vectors) Require(!std::isnan(component), "defined vectors");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  Folder folder;
  const std::vector<std::string> files = intrawarp::fuzz::SplitParts(data + 1, size - 1, kMostFiles);
  if (files.empty()) return 0;
  for (const std::string& file : files) folder.Add(file);
  io::DicomOptions options;
  options.resample = (data[0] & 1) != 0;
  options.keep_padding = (data[0] & 2) != 0;
  options.limits.max_file_bytes = int64_t{1} << 20;
  options.limits.max_total_bytes = int64_t{4} << 20;
  options.limits.max_frames = 1000;
  options.limits.max_volumes = 32;
  options.limits.max_volume_bytes = kMaxVolumeBytes;
  TryEach(folder.path(), options);
  if (files.size() > 1 || (data[0] & 4) != 0) TryEach(folder.PathOf(0), options);
  if ((data[0] & 8) != 0) TryRegistration(folder.PathOf(0));
  if ((data[0] & 16) != 0) {
    options.series = std::string(1, '1');
    RequireRefusal(io::DicomReference::Read(folder.path(), options).status());
  }
  return 0;
}
