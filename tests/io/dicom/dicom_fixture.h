// SPDX-License-Identifier: Apache-2.0
// A folder of DICOM files that a test makes, and its reader.
#ifndef INTRAWARP_TESTS_IO_DICOM_DICOM_FIXTURE_H_
#define INTRAWARP_TESTS_IO_DICOM_DICOM_FIXTURE_H_

#include <string>

#include "io/dicom/dicom.h"
#include "tests/io/dicom/dicom_maker.h"
#include "tests/io/io_test.h"

namespace intrawarp::io {

using Code = absl::StatusCode;

class DicomTest : public FileTest {
 protected:
  DicomTest() : maker_(folder_.string()) {}

  absl::StatusOr<DicomVolume> Read(const DicomOptions& options = {}) const {
    return ReadDicom(folder_.string(), options);
  }
  DicomVolume ReadOk(const std::string& path, const DicomOptions& options = {}) const {
    absl::StatusOr<DicomVolume> volume = ReadDicom(path, options);
    EXPECT_THAT(volume, Succeeds());
    return volume.ok() ? *std::move(volume) : DicomVolume();
  }
  DicomVolume ReadOk() const { return ReadOk(folder_.string()); }
  DicomVolume ReadFolder(const DicomOptions& options) const { return ReadOk(folder_.string(), options); }
  DicomListing List() const {
    const absl::StatusOr<DicomListing> listing = ListDicom(folder_.string());
    EXPECT_THAT(listing, Succeeds());
    return listing.ok() ? *listing : DicomListing();
  }

  static double At(const DicomVolume& v, int x, int y, int z) {
    const Int3 size = v.volume.geometry.size;
    return ToFloat(v.volume).at((static_cast<size_t>(z) * size.y + y) * size.x + x);
  }
  // The number of voxels that are not those of `Series` with the default pixels.
  static int64_t Wrong(const DicomVolume& v, double intercept = -1024) {
    const std::vector<float> values = ToFloat(v.volume);
    const Int3 size = v.volume.geometry.size;
    int64_t wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const int x = static_cast<int>(i % size.x), y = static_cast<int>(i / size.x % size.y);
      const int z = static_cast<int>(i / size.x / size.y);
      wrong += values[i] != static_cast<float>(7 * x + 100 * y + z + intercept);
    }
    return wrong;
  }

  DicomMaker maker_;
};

// ---- Several frames -------------------------------------------------------------------------------------------------
// An enhanced file: frame f at position order[f], with a rescaling of its own when `scaled`.
std::unique_ptr<DcmFileFormat> Enhanced(DicomMaker& maker, const std::vector<int>& order, bool scaled);

}  // namespace intrawarp::io

#endif  // INTRAWARP_TESTS_IO_DICOM_DICOM_FIXTURE_H_
