// SPDX-License-Identifier: Apache-2.0
#include "tests/io/dicom/dicom_items.h"

#include <nifti1.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/base/status_macros.h"
#include "io/format/nifti.h"

namespace intrawarp::io {
namespace {

namespace fs = std::filesystem;

// In voxels: positions in files are rounded, and dcm2niix takes the spacing from the first two of them.
constexpr double kOnVoxel = 0.2;

bool Run(const std::string& command) { return std::system(absl::StrCat(command, " >/dev/null 2>&1").c_str()) == 0; }

// The reference made by dcm2niix, which writes one file for each volume; empty without it or with several.
std::string Convert(const std::string& path, const std::string& folder) {
  fs::create_directories(folder);
  const bool is_folder = fs::is_directory(path);
  // -z n: plain files; -b n: no JSON; -p n: the rescaling of the standard; -s y: a single file alone.
  if (!Run(absl::StrCat("dcm2niix -z n -b n -p n ", is_folder ? "" : "-s y ", "-f made -o ", folder, " ", path)))
    return "";
  std::vector<std::string> made;
  for (const auto& entry : fs::directory_iterator(folder)) made.push_back(entry.path().string());
  if (made.size() != 1) made.assign(1, std::string());
  return made[0];
}

struct Item {
  std::string name;
  std::string path;        // what is read
  std::string comparable;  // a DICOM file or folder that is read for comparison; empty: none
  std::string nifti;       // a NIfTI file beside the data; empty: dcm2niix is asked
};

std::string Unpack(const std::string& file, const std::string& scratch) {
  const std::string name = fs::path(file).filename().string();
  if (absl::EndsWith(name, ".tar.xz")) {
    const std::string folder = absl::StrCat(scratch, "/", name.substr(0, name.size() - 7));
    fs::create_directories(folder);
    return Run(absl::StrCat("tar -xJf ", file, " -C ", folder)) ? folder : file;
  }
  if (!absl::EndsWith(name, ".gz")) return file;
  const std::string plain = absl::StrCat(scratch, "/", name.substr(0, name.size() - 3));
  return Run(absl::StrCat("sh -c 'gzip -dc ", file, " > ", plain, "'")) ? plain : file;
}

// CT1_J2KR.dcm has its pixels in CT1_REF.dcm.gz, MR_small_RLE.dcm in MR_small.dcm.
std::string Uncompressed(const std::string& file, const std::string& scratch) {
  const std::string name = fs::path(file).filename().string();
  if (absl::StartsWith(name, "MR_small_")) return absl::StrCat(fs::path(file).parent_path().string(), "/MR_small.dcm");
  const std::string reference =
      absl::StrCat(fs::path(file).parent_path().string(), "/", name.substr(0, name.find('_')), "_REF.dcm.gz");
  if (fs::path(file).parent_path().filename() != "wg04" || reference == file || !fs::exists(reference)) return "";
  return Unpack(reference, scratch);
}

std::vector<Item> FindItems(const std::string& data, const std::string& scratch) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(absl::StrCat(data, "/dicom"))) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && !absl::EndsWith(name, ".nii.gz")) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  std::vector<Item> items;
  for (const std::string& file : files) {
    Item item;
    item.name = file.substr(data.size() + 1);
    item.path = Unpack(file, scratch);
    item.comparable = Uncompressed(file, scratch);
    if (absl::StrContains(file, "generic_anatomical")) {
      item.nifti = absl::StrCat(data, "/dicom/dicom2nifti/generic_anatomical_001_ground_truth.nii.gz");
    }
    if (absl::StrContains(file, "mosaic")) item.nifti = absl::StrCat(data, "/dicom/siemens_mosaic_axasc35.ref.nii.gz");
    items.push_back(item);
  }
  return items;
}

bool HasPosition(const DicomVolume& volume) {
  return std::none_of(volume.notes.begin(), volume.notes.end(),
                      [](const std::string& note) { return absl::StartsWith(note, "has no position"); });
}

absl::StatusOr<Difference> CompareItem(const Item& item, const DicomOptions& options, const HostVolume& volume,
                                       bool has_position, const std::string& scratch) {
  if (!item.comparable.empty()) {
    INTRAWARP_ASSIGN_OR_RETURN(const DicomVolume reference, ReadDicom(item.comparable, options));
    return Compare(volume, reference.volume, "uncompressed file");
  }
  if (absl::StrContains(item.name, "mosaic")) {
    INTRAWARP_ASSIGN_OR_RETURN(const HostVolume reference, ReadTimePoint(item.nifti, 0, scratch));
    return Compare(volume, reference, "dcm2niix file, first time point");
  }
  if (!item.nifti.empty()) {
    INTRAWARP_ASSIGN_OR_RETURN(const HostVolume reference, ReadNifti(item.nifti));
    return Compare(volume, reference, "dicom2nifti file");
  }
  // dcm2niix turns an image without a position by a rule of its own.
  if (!has_position) return absl::NotFoundError("no reference");
  const std::string made =
      Convert(item.path, absl::StrCat(scratch, "/", absl::StrReplaceAll(item.name, {{"/", "_"}}), ".nii"));
  if (made.empty()) return absl::NotFoundError("no reference");
  INTRAWARP_ASSIGN_OR_RETURN(const HostVolume reference, ReadNifti(made));
  return Compare(volume, reference, "dcm2niix run here");
}

}  // namespace

absl::StatusOr<Difference> Compare(const HostVolume& volume, const HostVolume& reference, const std::string& name) {
  const Int3 size = volume.geometry.size, other = reference.geometry.size;
  if (volume.geometry.voxels() != reference.geometry.voxels()) {
    return absl::InvalidArgumentError("there are more voxels in one than in the other");
  }
  const AffineMap to_physical = IndexToPhysical(volume.geometry);
  const AffineMap back = IndexToPhysical(reference.geometry);
  const AffineMap map = Compose(PhysicalToIndex(reference.geometry), to_physical);
  const std::vector<float> a = ToFloat(volume), b = ToFloat(reference);
  Difference difference;
  difference.reference = name;
  size_t i = 0;
  for (int z = 0; z < size.z; ++z) {
    for (int y = 0; y < size.y; ++y) {
      for (int x = 0; x < size.x; ++x, ++i) {
        const Vec3d index{1.0 * x, 1.0 * y, 1.0 * z};
        const Vec3d p = map(index);
        const Vec3d nearest{std::round(p.x), std::round(p.y), std::round(p.z)};
        const Vec3d off = back(nearest) - to_physical(index);
        for (int c = 0; c < 3; ++c) {
          if (std::abs(p[c] - nearest[c]) > kOnVoxel || nearest[c] < 0 || nearest[c] >= other[c]) {
            return absl::InvalidArgumentError("a voxel does not lie on one of the reference");
          }
        }
        difference.geometry_mm = std::max(difference.geometry_mm, std::sqrt(Dot(off, off)));
        const size_t j = (static_cast<size_t>(nearest.z) * other.y + static_cast<size_t>(nearest.y)) * other.x +
                         static_cast<size_t>(nearest.x);
        difference.intensity = std::max(difference.intensity, static_cast<double>(std::abs(a[i] - b[j])));
      }
    }
  }
  return difference;
}

absl::StatusOr<HostVolume> ReadTimePoint(const std::string& path, int time, const std::string& scratch) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return absl::NotFoundError("file: cannot be opened");
  std::string bytes(352, '\0');
  nifti_1_header header;
  const bool whole = gzread(file, bytes.data(), 352) == 352;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (!whole || header.datatype != DT_INT16 || header.dim[0] != 4 || time >= header.dim[4]) {
    gzclose(file);
    return absl::InvalidArgumentError("not a 4-D file of int16");
  }
  const int64_t volume = int64_t{2} * header.dim[1] * header.dim[2] * header.dim[3];
  std::string voxels(static_cast<size_t>(volume), '\0');
  gzseek(file, static_cast<z_off_t>(header.vox_offset) + time * volume, SEEK_SET);
  const bool read = gzread(file, voxels.data(), static_cast<unsigned>(volume)) == volume;
  gzclose(file);
  if (!read) return absl::DataLossError("data: is cut short");
  header.dim[0] = 3;
  header.dim[4] = 1;
  header.vox_offset = 352;
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::fill(bytes.begin() + 348, bytes.end(), '\0');
  const std::string one = absl::StrCat(scratch, "/time", time, ".nii");
  FILE* out = std::fopen(one.c_str(), "wb");
  if (out == nullptr) return absl::UnknownError("cannot write");
  std::fwrite(bytes.data(), 1, bytes.size(), out);
  std::fwrite(voxels.data(), 1, voxels.size(), out);
  std::fclose(out);
  return ReadNifti(one);
}

std::vector<ItemResult> ReadItems(const std::string& data, const std::string& scratch) {
  std::vector<ItemResult> results;
  for (const Item& item : FindItems(data, scratch)) {
    DicomOptions options;
    options.keep_padding = true;
    ItemResult result{item.name, ReadDicom(item.path, options), std::nullopt};
    if (!result.volume.ok() && absl::StrContains(item.name, "mosaic")) {
      options.series.assign(1, '1');
      result.volume = ReadDicom(item.path, options);
    }
    if (result.volume.ok()) {
      absl::StatusOr<Difference> difference =
          CompareItem(item, options, result.volume->volume, HasPosition(*result.volume), scratch);
      if (difference.ok()) result.difference = *difference;
      if (absl::IsInvalidArgument(difference.status())) {
        result.difference = Difference{HUGE_VAL, HUGE_VAL, std::string(difference.status().message())};
      }
    }
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace intrawarp::io
