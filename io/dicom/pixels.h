// SPDX-License-Identifier: Apache-2.0
// The stored values of the frames of one data set, decoded a frame at a time.
#ifndef INTRAWARP_IO_DICOM_PIXELS_H_
#define INTRAWARP_IO_DICOM_PIXELS_H_

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dcxfer.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "io/dicom/instance.h"

class DcmDataset;
class DcmPixelData;
class DcmPixelSequence;

namespace intrawarp::io::dicom {

// UNIMPLEMENTED "transfer_syntax: ..." by name, unless a decoder for it is there; "bits: ..." for combinations that the
// decoders do not have.
absl::Status CheckTransferSyntax(E_TransferSyntax syntax, const PixelLayout& layout);

// Thread-compatible. Cheapest when frames are read in their stored order.
class PixelReader {
 public:
  // The data set outlives the reader. DATA_LOSS "data: ..." when there are fewer bytes than the layout says.
  static absl::StatusOr<PixelReader> Open(DcmDataset* dataset, const PixelLayout& layout);

  // Stored values, exact in double; columns * rows of them.
  absl::Status Read(int64_t frame, std::vector<double>* values);

 private:
  PixelReader(DcmDataset* dataset, const PixelLayout& layout) : dataset_(dataset), layout_(layout) {}
  absl::Status OpenNative();
  absl::Status OpenEncapsulated();
  absl::Status FindFragments();
  absl::StatusOr<absl::Span<const uint8_t>> Fragment(size_t i) const;
  absl::StatusOr<std::vector<uint8_t>> FrameStream(int64_t frame) const;
  absl::Status ReadJpeg2000(int64_t frame, std::vector<double>* values);
  absl::Status ReadRle(int64_t frame, std::vector<double>* values);
  // JPEG and JPEG-LS, by DCMTK.
  absl::Status ReadDecoded(int64_t frame, std::vector<double>* values);

  DcmDataset* dataset_;
  PixelLayout layout_;
  E_TransferSyntax syntax_ = EXS_Unknown;
  // Native pixels.
  absl::Span<const uint8_t> bytes_;
  // Encapsulated ones.
  DcmPixelData* element_ = nullptr;
  std::vector<absl::Span<const uint8_t>> fragments_;
  // The first fragment of each frame, and the number of fragments as one more; empty when the file does not say.
  std::vector<size_t> first_fragment_;
  uint32_t next_fragment_ = 0;
  int64_t next_frame_ = 0;
  std::vector<uint8_t> decoded_;
};

}  // namespace intrawarp::io::dicom

#endif  // INTRAWARP_IO_DICOM_PIXELS_H_
