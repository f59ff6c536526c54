// SPDX-License-Identifier: Apache-2.0
// Files of a DICOM series, as a peer or an archive would send them. Thread-compatible.
#ifndef INTRAWARP_TESTS_SERVER_PACS_SERIES_MAKER_H_
#define INTRAWARP_TESTS_SERVER_PACS_SERIES_MAKER_H_

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/io/dicom/dicom_maker.h"

namespace intrawarp::server {

inline constexpr char kMadeStudy[] = "1.2.5";

// The UID of slice k.
inline std::string InstanceUid(const std::string& series, int k) { return absl::StrCat(series, ".", k + 1); }

// The files (PS3.10) of `count` slices of a series of kMadeStudy. `announced`: the images that each says there are; 0:
// it does not say. Uses `folder`, which exists.
inline std::vector<std::string> MakeSlices(const std::string& folder, const std::string& series, int count,
                                           int announced = 0) {
  io::DicomMaker maker(folder);
  io::SliceSpec spec;
  spec.series = series;
  std::vector<std::string> slices;
  for (int k = 0; k < count; ++k) {
    spec.z = 2 * k;
    const auto file = maker.Slice(spec);
    DcmDataset& data = *file->getDataset();
    data.putAndInsertString(DCM_SOPInstanceUID, InstanceUid(series, k).c_str());
    data.putAndInsertString(DCM_StudyInstanceUID, kMadeStudy);
    if (announced > 0) data.putAndInsertString(DCM_ImagesInAcquisition, absl::StrCat(announced).c_str());
    const std::string path = maker.Save(*file, "slice");
    std::ifstream saved(path, std::ios::binary);
    slices.emplace_back(std::istreambuf_iterator<char>(saved), std::istreambuf_iterator<char>());
    std::filesystem::remove(path);
  }
  return slices;
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_PACS_SERIES_MAKER_H_
