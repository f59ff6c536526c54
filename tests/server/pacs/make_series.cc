// SPDX-License-Identifier: Apache-2.0
// make_dicom_series FOLDER SLICES SIDE [UID]: a CT series of 16-bit signed slices with noise, for measurements.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/io/dicom/dicom_maker.h"

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("make_dicom_series FOLDER SLICES SIDE [UID]\n", stderr);
    return 2;
  }
  intrawarp::io::DicomMaker maker(argv[1]);
  intrawarp::io::SliceSpec spec;
  spec.columns = spec.rows = std::atoi(argv[3]);
  spec.series = argc > 4 ? argv[4] : "1.2.826.0.1.3680043.2.1125.9";
  spec.bits_stored = 16;
  spec.high_bit = 15;
  spec.is_signed = true;
  std::mt19937 random(1);
  spec.pixel = [&](int, int) { return static_cast<uint16_t>(random() % 2048); };
  for (int k = 0; k < std::atoi(argv[2]); ++k) {
    spec.z = k;
    const auto file = maker.Slice(spec);
    file->getDataset()->putAndInsertString(DCM_SOPInstanceUID, absl::StrCat(spec.series, ".", k + 1).c_str());
    file->getDataset()->putAndInsertString(DCM_StudyInstanceUID, absl::StrCat(spec.series, ".0").c_str());
    file->getDataset()->putAndInsertString(DCM_PatientID, "1");
    maker.Save(*file, absl::StrCat("slice", k));
  }
  return 0;
}
