// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/pixels.h"

#include <dcmtk/dcmdata/dcdatset.h>
#include <dcmtk/dcmdata/dcdeftag.h>
#include <dcmtk/dcmdata/dcpixel.h>
#include <dcmtk/dcmdata/dcpixseq.h>
#include <dcmtk/dcmdata/dcpxitem.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/dicom/jpeg2000.h"
#include "io/dicom/rle.h"

namespace intrawarp::io::dicom {
namespace {

// A compressed file may stand for this many times its bytes, and for kFreeBytes more: an image of air compresses well.
constexpr int64_t kMaxCompression = 20000;
constexpr int64_t kFreeBytes = int64_t{4} << 20;

absl::Status Corrupt() {
  return FieldError(absl::StatusCode::kDataLoss, "data", "the compressed pixels are truncated or corrupt");
}

bool IsJpeg(E_TransferSyntax syntax) {
  switch (syntax) {
    case EXS_JPEGProcess1:
    case EXS_JPEGProcess2_4:
    case EXS_JPEGProcess6_8:
    case EXS_JPEGProcess10_12:
    case EXS_JPEGProcess14:
    case EXS_JPEGProcess14SV1:
      return true;
    default:
      return false;
  }
}
bool IsJpegLs(E_TransferSyntax syntax) { return syntax == EXS_JPEGLSLossless || syntax == EXS_JPEGLSLossy; }
bool IsJpeg2000(E_TransferSyntax syntax) { return syntax == EXS_JPEG2000LosslessOnly || syntax == EXS_JPEG2000; }
bool IsNative(E_TransferSyntax syntax) {
  return syntax == EXS_LittleEndianImplicit || syntax == EXS_LittleEndianExplicit || syntax == EXS_BigEndianExplicit ||
         syntax == EXS_BigEndianImplicit || syntax == EXS_DeflatedLittleEndianExplicit;
}

int64_t FramePixels(const PixelLayout& layout) { return int64_t{layout.rows} * layout.columns; }

// The bits of a sample from its cell, sign-extended.
double SampleOf(uint64_t cell, const PixelLayout& layout) {
  const uint64_t mask = (uint64_t{1} << layout.bits_stored) - 1;
  const uint64_t bits = (cell >> (layout.high_bit + 1 - layout.bits_stored)) & mask;
  const bool negative = layout.is_signed && (bits >> (layout.bits_stored - 1)) != 0;
  return static_cast<double>(static_cast<int64_t>(negative ? bits | ~mask : bits));
}

template <typename Cell>
void Unpack(const uint8_t* bytes, const PixelLayout& layout, std::vector<double>* values) {
  for (size_t i = 0; i < values->size(); ++i) {
    Cell cell;
    std::memcpy(&cell, bytes + i * sizeof(Cell), sizeof(Cell));
    (*values)[i] = SampleOf(cell, layout);
  }
}
template <typename T>
void UnpackFloat(const uint8_t* bytes, std::vector<double>* values) {
  for (size_t i = 0; i < values->size(); ++i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    (*values)[i] = static_cast<double>(value);
  }
}

void UnpackCells(const uint8_t* bytes, int bytes_per_cell, const PixelLayout& layout, std::vector<double>* values) {
  if (bytes_per_cell == 1) Unpack<uint8_t>(bytes, layout, values);
  if (bytes_per_cell == 2) Unpack<uint16_t>(bytes, layout, values);
  if (bytes_per_cell == 4) Unpack<uint32_t>(bytes, layout, values);
}

// Bits, the first pixel in the lowest one; frames follow each other without gaps (PS3.5 8.1.1).
void UnpackBits(absl::Span<const uint8_t> bytes, int64_t first, std::vector<double>* values) {
  for (size_t i = 0; i < values->size(); ++i) {
    const uint64_t bit = static_cast<uint64_t>(first) + i;
    (*values)[i] = bytes[bit / 8] >> (bit % 8) & 1;
  }
}

// The precision in the frame header (SOF) of a JPEG or JPEG-LS stream whose size is the layout's.
absl::StatusOr<int> JpegPrecision(absl::Span<const uint8_t> s, const PixelLayout& layout) {
  size_t at = 2;
  while (at + 9 < s.size()) {
    if (s[at] != 0xff) return Corrupt();
    const uint8_t marker = s[at + 1];
    const bool is_frame =
        marker == 0xf7 || (marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc);
    if (is_frame) {
      if ((s[at + 5] << 8 | s[at + 6]) != layout.rows || (s[at + 7] << 8 | s[at + 8]) != layout.columns) {
        return FieldError(absl::StatusCode::kInvalidArgument, "size",
                          "the JPEG stream has another one than the header");
      }
      return s[at + 4];
    }
    // A fill byte, or a segment with its length.
    at += marker == 0xff ? 1 : 2 + (size_t{s[at + 2]} << 8 | s[at + 3]);
  }
  return Corrupt();
}

}  // namespace

absl::Status CheckTransferSyntax(E_TransferSyntax syntax, const PixelLayout& layout) {
  if (IsNative(syntax)) {
    const DcmXfer transfer(syntax);
    if (transfer.isBigEndian() && layout.bits_allocated > 16) {
      return FieldError(absl::StatusCode::kUnimplemented, "bits", "more than 16 in big-endian order are not supported");
    }
    return absl::OkStatus();
  }
  if (syntax == EXS_Unknown) return FieldError(absl::StatusCode::kUnimplemented, "transfer_syntax", "is not known");
  if (!IsJpeg(syntax) && !IsJpegLs(syntax) && !IsJpeg2000(syntax) && syntax != EXS_RLELossless) {
    return FieldError(absl::StatusCode::kUnimplemented, "transfer_syntax",
                      absl::StrCat(DcmXfer(syntax).getXferName(), " is not supported"));
  }
  if (layout.kind != SampleKind::kInteger || layout.bits_allocated == 1) {
    return FieldError(absl::StatusCode::kUnimplemented, "bits", "compressed pixels must be integers of 8 bits or more");
  }
  if (syntax == EXS_RLELossless) return absl::OkStatus();
  if (layout.bits_allocated > 16) {
    return FieldError(absl::StatusCode::kUnimplemented, "bits", "more than 16 in a compressed image");
  }
  if (layout.high_bit != layout.bits_stored - 1) {
    return FieldError(absl::StatusCode::kUnimplemented, "bits", "HighBit of a compressed image must be BitsStored - 1");
  }
  return absl::OkStatus();
}

absl::StatusOr<PixelReader> PixelReader::Open(DcmDataset* dataset, const PixelLayout& layout) {
  PixelReader reader(dataset, layout);
  reader.syntax_ = dataset->getOriginalXfer();
  INTRAWARP_RETURN_IF_ERROR(CheckTransferSyntax(reader.syntax_, layout));
  INTRAWARP_RETURN_IF_ERROR(IsNative(reader.syntax_) ? reader.OpenNative() : reader.OpenEncapsulated());
  return reader;
}

absl::Status PixelReader::OpenNative() {
  const DcmTagKey tag = layout_.kind == SampleKind::kFloat32   ? DCM_FloatPixelData
                        : layout_.kind == SampleKind::kFloat64 ? DCM_DoubleFloatPixelData
                                                               : DCM_PixelData;
  const int bits = layout_.kind == SampleKind::kFloat32   ? 32
                   : layout_.kind == SampleKind::kFloat64 ? 64
                                                          : layout_.bits_allocated;
  DcmElement* element = nullptr;
  if (dataset_->findAndGetElement(tag, element).bad() || element == nullptr) {
    return FieldError(absl::StatusCode::kDataLoss, "data", "there are no pixels");
  }
  if (element->getLengthField() == DCM_UndefinedLength) {
    return FieldError(absl::StatusCode::kInvalidArgument, "transfer_syntax",
                      "is uncompressed, but the pixels are compressed");
  }
  // rows and columns are below 2^16, frames at most 2^24, so that nothing overflows.
  const int64_t wanted = (FramePixels(layout_) * layout_.frames * bits + 7) / 8;
  const int64_t length = element->getLengthField();
  if (length < wanted) {
    return FieldError(absl::StatusCode::kDataLoss, "data",
                      absl::StrCat("there are ", length, " of ", wanted, " bytes"));
  }
  const void* data = nullptr;
  Uint8* bytes = nullptr;
  Uint16* words = nullptr;
  Float32* floats = nullptr;
  Float64* doubles = nullptr;
  if (layout_.kind == SampleKind::kFloat32 && element->getFloat32Array(floats).good()) data = floats;
  if (layout_.kind == SampleKind::kFloat64 && element->getFloat64Array(doubles).good()) data = doubles;
  if (layout_.kind == SampleKind::kInteger) {
    if (element->getUint16Array(words).good() && words != nullptr) {
      data = words;
    } else if (element->getUint8Array(bytes).good()) {
      data = bytes;
    }
  }
  if (data == nullptr) return FieldError(absl::StatusCode::kDataLoss, "data", "the pixels cannot be read");
  bytes_ = absl::MakeConstSpan(static_cast<const uint8_t*>(data), static_cast<size_t>(wanted));
  return absl::OkStatus();
}

absl::Status PixelReader::OpenEncapsulated() {
  DcmElement* element = nullptr;
  if (dataset_->findAndGetElement(DCM_PixelData, element).bad()) {
    return FieldError(absl::StatusCode::kDataLoss, "data", "there are no pixels");
  }
  element_ = dynamic_cast<DcmPixelData*>(element);
  DcmPixelSequence* sequence = nullptr;
  if (element_ == nullptr || element_->getEncapsulatedRepresentation(syntax_, nullptr, sequence).bad() ||
      sequence == nullptr) {
    return Corrupt();
  }
  int64_t total = 0;
  for (DcmObject* next = sequence->nextInContainer(nullptr); next != nullptr; next = sequence->nextInContainer(next)) {
    auto* item = dynamic_cast<DcmPixelItem*>(next);
    Uint8* bytes = nullptr;
    if (item == nullptr) return Corrupt();
    const size_t length = item->getLengthField();
    if (length > 0 && (item->getUint8Array(bytes).bad() || bytes == nullptr)) return Corrupt();
    fragments_.emplace_back(bytes, length);
    total += static_cast<int64_t>(length);
  }
  if (fragments_.size() < 2) return FieldError(absl::StatusCode::kDataLoss, "data", "there are no pixels");
  const int64_t wanted = FramePixels(layout_) * layout_.frames * (layout_.bits_allocated / 8);
  if (wanted > kFreeBytes && wanted / kMaxCompression > total) {
    return FieldError(absl::StatusCode::kDataLoss, "data", "there are too few compressed bytes for the size");
  }
  return FindFragments();
}

// The first item is the offset table, which may be empty (PS3.5 A.4).
absl::Status PixelReader::FindFragments() {
  const size_t frames = static_cast<size_t>(layout_.frames);
  const size_t count = fragments_.size();
  if (count - 1 < frames) {
    return FieldError(absl::StatusCode::kDataLoss, "data", "there are fewer fragments than frames");
  }
  if (frames == 1 || count - 1 == frames) {
    for (size_t f = 0; f < frames; ++f) first_fragment_.push_back(f + 1);
    first_fragment_.push_back(count);
    return absl::OkStatus();
  }
  const absl::Span<const uint8_t> table = fragments_[0];
  if (table.size() < 4 * frames) return absl::OkStatus();
  uint64_t offset = 0;
  size_t fragment = 1;
  for (size_t f = 0; f < frames; ++f) {
    uint32_t wanted;
    std::memcpy(&wanted, table.data() + 4 * f, sizeof(wanted));
    for (; offset < wanted && fragment < count; ++fragment) offset += 8 + fragments_[fragment].size();
    if (offset != wanted || fragment == count) return Corrupt();
    first_fragment_.push_back(fragment);
  }
  first_fragment_.push_back(count);
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const uint8_t>> PixelReader::Fragment(size_t i) const {
  if (i >= fragments_.size()) return Corrupt();
  return fragments_[i];
}

absl::StatusOr<std::vector<uint8_t>> PixelReader::FrameStream(int64_t frame) const {
  if (first_fragment_.empty()) {
    return FieldError(absl::StatusCode::kUnimplemented, "frames",
                      "of several fragments each without an offset table are not supported");
  }
  std::vector<uint8_t> stream;
  for (size_t i = first_fragment_[frame]; i < first_fragment_[frame + 1]; ++i) {
    stream.insert(stream.end(), fragments_[i].begin(), fragments_[i].end());
  }
  return stream;
}

absl::Status PixelReader::ReadJpeg2000(int64_t frame, std::vector<double>* values) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<uint8_t> stream, FrameStream(frame));
  INTRAWARP_ASSIGN_OR_RETURN(const Jpeg2000Image image, DecodeJpeg2000(stream, layout_.columns, layout_.rows));
  if (image.precision > layout_.bits_allocated) {
    return FieldError(absl::StatusCode::kInvalidArgument, "bits", "the JPEG 2000 stream has more than BitsAllocated");
  }
  // The stream's own signedness extends a narrower sample; the header says how the bits are read.
  for (size_t i = 0; i < values->size(); ++i) {
    int64_t sample = image.samples[i];
    if (layout_.is_signed && !image.is_signed && (sample >> (image.precision - 1) & 1) != 0) {
      sample -= int64_t{1} << image.precision;
    }
    (*values)[i] = SampleOf(static_cast<uint64_t>(sample), layout_);
  }
  return absl::OkStatus();
}

absl::Status PixelReader::ReadRle(int64_t frame, std::vector<double>* values) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<uint8_t> stream, FrameStream(frame));
  const int cell = layout_.bits_allocated / 8;
  decoded_.assign(static_cast<size_t>(FramePixels(layout_) * cell), 0);
  INTRAWARP_RETURN_IF_ERROR(DecodeRle(stream, cell, absl::MakeSpan(decoded_)));
  UnpackCells(decoded_.data(), cell, layout_, values);
  return absl::OkStatus();
}

absl::Status PixelReader::ReadDecoded(int64_t frame, std::vector<double>* values) {
  int cell = layout_.bits_allocated / 8;
  const size_t first = !first_fragment_.empty()                     ? first_fragment_[frame]
                       : frame == next_frame_ && next_fragment_ > 0 ? next_fragment_
                                                                    : 1;
  INTRAWARP_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> stream, Fragment(first));
  INTRAWARP_ASSIGN_OR_RETURN(const int precision, JpegPrecision(stream, layout_));
  if (precision > layout_.bits_allocated) {
    return FieldError(absl::StatusCode::kInvalidArgument, "bits", "the JPEG stream has more than BitsAllocated");
  }
  if (precision <= 8 && cell == 2 && IsJpegLs(syntax_)) {
    return FieldError(absl::StatusCode::kUnimplemented, "bits",
                      "a JPEG-LS stream of 8 bits or less for 16 bits allocated");
  }
  if (IsJpeg(syntax_)) cell = precision > 8 ? 2 : 1;
  const int64_t bytes = FramePixels(layout_) * cell;
  decoded_.assign(static_cast<size_t>(bytes + bytes % 2), 0);
  Uint32 fragment = frame == next_frame_ ? next_fragment_ : 0;
  OFString colour;
  const OFCondition condition = element_->getUncompressedFrame(
      dataset_, static_cast<Uint32>(frame), fragment, decoded_.data(), static_cast<Uint32>(decoded_.size()), colour);
  if (condition.bad()) return Corrupt();
  next_frame_ = frame + 1;
  next_fragment_ = fragment;
  UnpackCells(decoded_.data(), cell, layout_, values);
  return absl::OkStatus();
}

absl::Status PixelReader::Read(int64_t frame, std::vector<double>* values) {
  const int64_t pixels = FramePixels(layout_);
  values->resize(static_cast<size_t>(pixels));
  if (frame < 0 || frame >= layout_.frames) {
    return FieldError(absl::StatusCode::kOutOfRange, "frames", "there is no such frame");
  }
  if (IsJpeg2000(syntax_)) return ReadJpeg2000(frame, values);
  if (syntax_ == EXS_RLELossless) return ReadRle(frame, values);
  if (!IsNative(syntax_)) return ReadDecoded(frame, values);
  const int64_t first = frame * pixels;
  if (layout_.kind == SampleKind::kFloat32) {
    UnpackFloat<float>(bytes_.data() + 4 * first, values);
  } else if (layout_.kind == SampleKind::kFloat64) {
    UnpackFloat<double>(bytes_.data() + 8 * first, values);
  } else if (layout_.bits_allocated == 1) {
    UnpackBits(bytes_, first, values);
  } else {
    const int cell = layout_.bits_allocated / 8;
    UnpackCells(bytes_.data() + cell * first, cell, layout_, values);
  }
  return absl::OkStatus();
}

}  // namespace intrawarp::io::dicom
