// SPDX-License-Identifier: Apache-2.0
// DICOM files for tests, made with DCMTK: images with a known pixel at each place, one tag at a time out of the
// ordinary. Thread-compatible.
#ifndef INTRAWARP_TESTS_IO_DICOM_DICOM_MAKER_H_
#define INTRAWARP_TESTS_IO_DICOM_DICOM_MAKER_H_

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dctk.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace intrawarp::io {

inline constexpr char kSeriesUid[] = "1.2.826.0.1.3680043.2.1125.1.11";
inline constexpr char kFrameUid[] = "1.2.826.0.1.3680043.2.1125.1.12";

// An image of 16 bits allocated. Its pixels are those of `pixel(x, y)`, as cells: bits outside of the stored ones too.
struct SliceSpec {
  int columns = 12, rows = 10;
  double x = -20, y = 30, z = 0;
  std::string orientation = "1\\0\\0\\0\\1\\0";
  std::string spacing = "0.75\\0.5";  // between rows, between columns
  std::string series = kSeriesUid;
  std::string modality = "CT";
  int bits_stored = 12, high_bit = 11;
  bool is_signed = false;
  std::function<uint16_t(int x, int y)> pixel = [](int x, int y) { return static_cast<uint16_t>(7 * x + 100 * y); };
};

class DicomMaker {
 public:
  explicit DicomMaker(std::string folder) : folder_(std::move(folder)) {}

  // A data set with a UID of its own.
  std::unique_ptr<DcmFileFormat> Slice(const SliceSpec& spec);
  // Writes it, transcoded to the syntax, and returns its path.
  std::string Save(DcmFileFormat& file, const std::string& name,
                   E_TransferSyntax syntax = EXS_LittleEndianExplicit) const;
  // Slices of this spec at z, z + step, ..., under names in no order. Pixel (x, y) of slice k is spec.pixel(x, y) + k.
  void Series(SliceSpec spec, int count, double step);

  // An encapsulated file whose fragments are given, the first one after an empty offset table.
  std::string SaveEncapsulated(DcmFileFormat& file, const std::string& name, E_TransferSyntax syntax,
                               const std::vector<std::vector<uint8_t>>& fragments) const;

 private:
  std::string folder_;
  int made_ = 0;
};

// The cells of a 16-bit image as a lossless JPEG 2000 code stream of this precision.
std::vector<uint8_t> EncodeJpeg2000(const std::vector<uint16_t>& cells, int columns, int rows, int precision,
                                    bool is_signed);

}  // namespace intrawarp::io

#endif  // INTRAWARP_TESTS_IO_DICOM_DICOM_MAKER_H_
