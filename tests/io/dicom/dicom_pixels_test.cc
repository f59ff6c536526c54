// SPDX-License-Identifier: Apache-2.0
// The rules of the reader for pixels: rescaling, padding, compression, several frames.
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/pixel_type.h"
#include "io/dicom/dicom.h"
#include "io/dicom/mosaic.h"
#include "tests/io/dicom/dicom_fixture.h"
#include "tests/io/dicom/dicom_maker.h"

namespace intrawarp::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- Intensities ----------------------------------------------------------------------------------------------------

TEST_F(DicomTest, RescalesEachSliceByItself) {
  for (int k = 0; k < 3; ++k) {
    const auto slice = maker_.Slice({.z = 1.0 * k, .modality = "PT"});
    slice->getDataset()->putAndInsertString(DCM_RescaleSlope, absl::StrCat(0.5 * (k + 1)).c_str());
    slice->getDataset()->putAndInsertString(DCM_RescaleIntercept, "0");
    maker_.Save(*slice, absl::StrCat(k));
  }
  const DicomVolume v = ReadOk();
  EXPECT_EQ(v.volume.pixel_type, PixelType::kFloat32);
  for (int k = 0; k < 3; ++k) EXPECT_EQ(At(v, 2, 3, k), 314 * 0.5 * (k + 1));
}

TEST_F(DicomTest, ExtendsTheSignOfTwelveBits) {
  // The bits above the stored ones hold something else (an overlay).
  const auto pixel = [](int x, int y) { return static_cast<uint16_t>(0xf000 | ((x - 6 - 100 * y) & 0xfff)); };
  const DicomVolume v =
      ReadOk(maker_.Save(*maker_.Slice({.modality = "MR", .is_signed = true, .pixel = pixel}), "one"));
  EXPECT_EQ(v.volume.pixel_type, PixelType::kInt16);
  EXPECT_EQ(At(v, 0, 0, 0), -6);
  EXPECT_EQ(At(v, 11, 0, 0), 5);
  EXPECT_EQ(At(v, 1, 9, 0), -905);
}

TEST_F(DicomTest, TakesStoredBitsFromBelowTheHighBit) {
  const auto pixel = [](int x, int y) { return static_cast<uint16_t>((7 * x + 100 * y) << 4 | 0xf); };
  EXPECT_EQ(Wrong(ReadOk(maker_.Save(*maker_.Slice({.high_bit = 15, .pixel = pixel}), "one"))), 0);
  const auto bad = maker_.Slice({.bits_stored = 12, .high_bit = 10});
  EXPECT_THAT(ReadDicom(maker_.Save(*bad, "two")), Fails(Code::kInvalidArgument, "bits: HighBit must be"));
}

TEST_F(DicomTest, DoesNotInvertMonochrome1) {
  const auto slice = maker_.Slice({});
  slice->getDataset()->putAndInsertString(DCM_PhotometricInterpretation, "MONOCHROME1");
  const DicomVolume v = ReadOk(maker_.Save(*slice, "one"));
  EXPECT_EQ(Wrong(v), 0);
  EXPECT_THAT(v.notes, ElementsAre(HasSubstr("MONOCHROME1")));
}

TEST_F(DicomTest, PaddingBecomesAir) {
  const auto pixel = [](int x, int y) { return static_cast<uint16_t>(x == 0 ? 0 : 900 + x + y); };
  for (const std::string modality : {"CT", "MR"}) {
    const auto slice = maker_.Slice({.modality = modality, .pixel = pixel});
    slice->getDataset()->putAndInsertUint16(DCM_PixelPaddingValue, 0);
    const std::string path = maker_.Save(*slice, modality);
    const DicomVolume v = ReadOk(path);
    EXPECT_EQ(At(v, 0, 4, 0), modality == "CT" ? -1000 : 901);
    EXPECT_EQ(At(v, 1, 4, 0), modality == "CT" ? -119 : 905);
    EXPECT_THAT(v.notes, ElementsAre("padding: 10 voxels became air"));
    EXPECT_EQ(At(ReadOk(path, {.keep_padding = true}), 0, 4, 0), modality == "CT" ? -1024 : 0);
  }
}

TEST_F(DicomTest, RefusesColourAndTables) {
  const auto palette = maker_.Slice({});
  palette->getDataset()->putAndInsertString(DCM_PhotometricInterpretation, "PALETTE COLOR");
  EXPECT_THAT(ReadDicom(maker_.Save(*palette, "one")), Fails(Code::kUnimplemented, "photometric: palette"));
  const auto colour = maker_.Slice({});
  colour->getDataset()->putAndInsertUint16(DCM_SamplesPerPixel, 3);
  EXPECT_THAT(ReadDicom(maker_.Save(*colour, "two")), Fails(Code::kUnimplemented, "photometric: colour"));
  const auto table = maker_.Slice({});
  DcmItem* item = nullptr;
  table->getDataset()->findOrCreateSequenceItem(DCM_ModalityLUTSequence, item, -2);
  EXPECT_THAT(ReadDicom(maker_.Save(*table, "three")), Fails(Code::kUnimplemented, "rescale: a modality lookup table"));
}

// ---- Faults of headers ----------------------------------------------------------------------------------------------

TEST_F(DicomTest, NamesTheFieldAtFault) {
  const struct {
    DcmTagKey tag;
    const char* value;
    const char* message;
  } kFaults[] = {
      {DCM_ImagePositionPatient, "1\\2", "position: ImagePositionPatient has 2 values, must have 3"},
      {DCM_ImagePositionPatient, "1\\2\\x", "position: ImagePositionPatient is not a finite number"},
      {DCM_ImagePositionPatient, "1\\2\\1e9", "position: is more than 10 km away"},
      {DCM_ImagePositionPatient, "", "position: ImagePositionPatient is missing"},
      {DCM_ImageOrientationPatient, "1\\0\\0\\0\\2\\0", "orientation: the axes must be of unit length"},
      {DCM_ImageOrientationPatient, "1\\0\\0\\0.6\\0.8\\0", "orientation: the axes must be of unit length"},
      {DCM_ImageOrientationPatient, "", "orientation: ImageOrientationPatient is missing"},
      {DCM_PixelSpacing, "0\\1", "spacing: PixelSpacing must be from"},
      {DCM_PixelSpacing, "0,5\\0,5", "spacing: PixelSpacing is not a finite number"},
      {DCM_PixelSpacing, "", "spacing: PixelSpacing is missing"},
      {DCM_RescaleSlope, "0", "rescale: RescaleSlope is 0"},
      {DCM_RescaleSlope, "nan", "rescale: RescaleSlope is not a finite number"},
      {DCM_NumberOfFrames, "1A", "frames: NumberOfFrames is not a finite number"},
      {DCM_NumberOfFrames, "0", "frames: NumberOfFrames must be a whole number from 1"},
      {DCM_PhotometricInterpretation, "GREY", "photometric: must be MONOCHROME1 or MONOCHROME2"},
  };
  for (const auto& fault : kFaults) {
    const auto slice = maker_.Slice({});
    slice->getDataset()->putAndInsertString(fault.tag, fault.value);
    EXPECT_THAT(ReadDicom(maker_.Save(*slice, "one")), Fails(Code::kInvalidArgument, fault.message));
  }
  for (const auto& [tag, message] : {std::pair(DCM_Rows, "size: Rows must be"), {DCM_BitsStored, "bits: BitsStored"}}) {
    const auto slice = maker_.Slice({});
    slice->getDataset()->putAndInsertUint16(tag, 0);
    EXPECT_THAT(ReadDicom(maker_.Save(*slice, "one")), Fails(Code::kInvalidArgument, message));
  }
}

TEST_F(DicomTest, WhatIsNoImageIsNoVolume) {
  EXPECT_THAT(ReadDicom(Path("none")), Fails(Code::kNotFound, ""));
  EXPECT_THAT(ReadDicom(Put("text", "a text of more than sixteen bytes")),
              Fails(Code::kNotFound, "file: is not DICOM"));
  EXPECT_THAT(Read(), Fails(Code::kNotFound, "file: there is no DICOM"));
  DcmFileFormat plan;
  plan.getDataset()->putAndInsertString(DCM_SOPClassUID, UID_RTPlanStorage);
  plan.getDataset()->putAndInsertString(DCM_SOPInstanceUID, "1.2.3");
  EXPECT_THAT(ReadDicom(maker_.Save(plan, "plan")), Fails(Code::kInvalidArgument, "file: holds no image"));
  EXPECT_EQ(List().not_images, 1);
}

// ---- Transfer syntaxes ----------------------------------------------------------------------------------------------

class DicomSyntaxTest : public DicomTest, public testing::WithParamInterface<E_TransferSyntax> {};

TEST_P(DicomSyntaxTest, GivesTheSamePixels) {
  EXPECT_EQ(Wrong(ReadOk(maker_.Save(*maker_.Slice({}), "unsigned", GetParam()))), 0);
  const auto pixel = [](int x, int y) { return static_cast<uint16_t>(7 * x + 100 * y - 500); };
  const SliceSpec spec{.modality = "MR", .bits_stored = 16, .high_bit = 15, .is_signed = true, .pixel = pixel};
  EXPECT_EQ(Wrong(ReadOk(maker_.Save(*maker_.Slice(spec), "signed", GetParam())), -500), 0);
}

INSTANTIATE_TEST_SUITE_P(All, DicomSyntaxTest,
                         testing::Values(EXS_LittleEndianImplicit, EXS_LittleEndianExplicit, EXS_BigEndianExplicit,
                                         EXS_DeflatedLittleEndianExplicit, EXS_JPEGProcess14SV1, EXS_JPEGLSLossless,
                                         EXS_RLELossless),
                         [](const auto& info) { return absl::StrCat("Syntax", static_cast<int>(info.param)); });

std::vector<uint16_t> DefaultCells(int columns, int rows) {
  std::vector<uint16_t> cells;
  for (int y = 0; y < rows; ++y) {
    for (int x = 0; x < columns; ++x) cells.push_back(static_cast<uint16_t>(7 * x + 100 * y));
  }
  return cells;
}

TEST_F(DicomTest, DecodesJpeg2000) {
  const std::vector<uint8_t> stream = EncodeJpeg2000(DefaultCells(12, 10), 12, 10, 12, false);
  const auto save = [&](const SliceSpec& spec, const std::vector<std::vector<uint8_t>>& fragments) {
    return maker_.SaveEncapsulated(*maker_.Slice(spec), "one", EXS_JPEG2000LosslessOnly, fragments);
  };
  EXPECT_EQ(Wrong(ReadOk(save({}, {stream}))), 0);
  // One frame in two fragments.
  const auto middle = stream.begin() + 100;
  EXPECT_EQ(Wrong(ReadOk(save({}, {{stream.begin(), middle}, {middle, stream.end()}}))), 0);
  EXPECT_THAT(ReadDicom(save({.columns = 13}, {stream})), Fails(Code::kInvalidArgument, "size: the JPEG 2000 stream"));
  EXPECT_THAT(ReadDicom(save({}, {{stream.begin(), middle}})), Fails(Code::kDataLoss, "data: the JPEG 2000 stream"));
  std::vector<uint16_t> cells = DefaultCells(12, 10);
  for (uint16_t& cell : cells) cell = static_cast<uint16_t>(cell - 500);
  const std::vector<uint8_t> negative = EncodeJpeg2000(cells, 12, 10, 12, true);
  EXPECT_EQ(Wrong(ReadOk(save({.modality = "MR", .is_signed = true}, {negative})), -500), 0);
}

TEST_F(DicomTest, RefusesOtherSyntaxesByName) {
  const std::string path =
      maker_.SaveEncapsulated(*maker_.Slice({}), "one", EXS_MPEG4HighProfileLevel4_1, {{1, 2, 3, 4}});
  EXPECT_THAT(ReadDicom(path), Fails(Code::kUnimplemented, "transfer_syntax: MPEG-4"));
}

TEST_F(DicomTest, BrokenCompressedPixelsAreDataLoss) {
  for (const E_TransferSyntax syntax : {EXS_JPEGProcess14SV1, EXS_JPEGLSLossless, EXS_RLELossless}) {
    const std::string path = maker_.SaveEncapsulated(*maker_.Slice({}), "one", syntax, {{0xff, 0xd8, 1, 2, 3, 4}});
    EXPECT_THAT(ReadDicom(path), Fails(Code::kDataLoss, "data: ")) << syntax;
  }
  // A few bytes cannot stand for a gigabyte.
  const auto huge = maker_.Slice({});
  huge->getDataset()->putAndInsertUint16(DCM_Rows, 16000);
  huge->getDataset()->putAndInsertUint16(DCM_Columns, 16000);
  EXPECT_THAT(ReadDicom(maker_.SaveEncapsulated(*huge, "one", EXS_JPEG2000LosslessOnly, {{1, 2, 3, 4}})),
              Fails(Code::kDataLoss, "data: there are too few compressed bytes"));
}

TEST_F(DicomTest, ReadsEnhancedMultiFrame) {
  for (const E_TransferSyntax syntax : {EXS_LittleEndianExplicit, EXS_RLELossless, EXS_JPEGProcess14SV1}) {
    const DicomVolume v = ReadOk(maker_.Save(*Enhanced(maker_, {2, 0, 3, 1}, false), "one", syntax));
    EXPECT_EQ(SizeString(v.volume.geometry), "12x10x4");
    EXPECT_EQ(v.volume.geometry.spacing, (Vec3d{0.5, 0.75, 2}));
    EXPECT_EQ(Wrong(v, 0), 0) << syntax;
  }
  const DicomVolume scaled = ReadOk(maker_.Save(*Enhanced(maker_, {1, 0}, true), "one"));
  EXPECT_EQ(At(scaled, 2, 3, 0), 314);
  EXPECT_EQ(At(scaled, 2, 3, 1), 2 * 315);
}

// Planes of 12x10 bits: pixel (x, y) of frame f is set where x + y + f is divisible by 3.
std::unique_ptr<DcmFileFormat> Segmentation(DicomMaker& maker, const std::vector<std::pair<int, int>>& segment_at) {
  std::vector<int> places;
  for (const auto& [segment, place] : segment_at) places.push_back(place);
  auto file = Enhanced(maker, places, false);
  DcmDataset& d = *file->getDataset();
  d.putAndInsertString(DCM_SOPClassUID, UID_SegmentationStorage);
  d.putAndInsertString(DCM_Modality, "SEG");
  d.putAndInsertString(DCM_SegmentationType, "BINARY");
  for (const DcmTagKey& tag : {DCM_BitsAllocated, DCM_BitsStored}) d.putAndInsertUint16(tag, 1);
  d.putAndInsertUint16(DCM_HighBit, 0);
  std::vector<Uint8> bits((120 * places.size() + 15) / 16 * 2);
  for (size_t i = 0; i < 120 * places.size(); ++i) {
    const size_t x = i % 12, y = i / 12 % 10, f = i / 120;
    if ((x + y + f) % 3 == 0) bits[i / 8] = static_cast<Uint8>(bits[i / 8] | 1 << i % 8);
  }
  d.findAndDeleteElement(DCM_PixelData);
  d.putAndInsertUint8Array(DCM_PixelData, bits.data(), bits.size());
  for (size_t f = 0; f < segment_at.size(); ++f) {
    DcmItem* frame = nullptr;
    DcmItem* item = nullptr;
    d.findAndGetSequenceItem(DCM_PerFrameFunctionalGroupsSequence, frame, static_cast<long>(f));
    frame->findOrCreateSequenceItem(DCM_SegmentIdentificationSequence, item, 0);
    item->putAndInsertUint16(DCM_ReferencedSegmentNumber, static_cast<Uint16>(segment_at[f].first));
  }
  return file;
}

TEST_F(DicomTest, ASegmentBecomesAMaskWithItsEmptyPlanes) {
  // Segment 1 at planes 0, 1 and 4 (2 mm apart, in no order), segment 2 at plane 3 alone.
  const auto file = Segmentation(maker_, {{1, 4}, {2, 3}, {1, 0}, {1, 1}});
  const std::string path = maker_.Save(*file, "one");
  const DicomListing listing = List();
  ASSERT_EQ(listing.volumes.size(), 2U);
  EXPECT_THAT(listing.volumes[0].notes, ElementsAre("segment 1"));
  const DicomVolume v = ReadFolder({.series = "1"});
  EXPECT_EQ(SizeString(v.volume.geometry), "12x10x5");
  EXPECT_EQ(v.volume.geometry.spacing.z, 2);
  EXPECT_EQ(v.volume.pixel_type, PixelType::kUint8);
  const int frame_at[5] = {2, 3, -1, -1, 0};
  for (int z = 0; z < 5; ++z) {
    for (int y = 0; y < 10; ++y) {
      for (int x = 0; x < 12; ++x) {
        EXPECT_EQ(At(v, x, y, z), frame_at[z] >= 0 && (x + y + frame_at[z]) % 3 == 0 ? 1 : 0);
      }
    }
  }
  EXPECT_EQ(SizeString(ReadFolder({.series = "2"}).volume.geometry), "12x10x1");

  const auto fractional = Segmentation(maker_, {{1, 0}});
  fractional->getDataset()->putAndInsertString(DCM_SegmentationType, "FRACTIONAL");
  EXPECT_THAT(ReadDicom(maker_.Save(*fractional, "one")), Fails(Code::kUnimplemented, "segmentation: fractional"));
  const auto uneven = Segmentation(maker_, {{1, 0}, {1, 2}, {1, 5}});
  EXPECT_THAT(ReadDicom(maker_.Save(*uneven, "one")), Fails(Code::kInvalidArgument, "multiple of 4 mm"));
}

TEST_F(DicomTest, FramesAndFunctionalGroupsMustAgree) {
  const auto file = Enhanced(maker_, {0, 1}, false);
  file->getDataset()->putAndInsertString(DCM_NumberOfFrames, "1");
  EXPECT_THAT(ReadDicom(maker_.Save(*file, "one")), Fails(Code::kInvalidArgument, "frames: there are 2 functional"));
  file->getDataset()->putAndInsertString(DCM_NumberOfFrames, "16000000");
  EXPECT_THAT(ReadDicom(maker_.Save(*file, "one")), Fails(Code::kResourceExhausted, "frames: more than"));
  const auto plain = maker_.Slice({});
  plain->getDataset()->putAndInsertString(DCM_NumberOfFrames, "2");
  EXPECT_THAT(ReadDicom(maker_.Save(*plain, "one")), Fails(Code::kUnimplemented, "frames: several frames without"));
}

std::string CsaWord(uint32_t v) { return std::string(reinterpret_cast<const char*>(&v), 4); }

std::string CsaTag(const std::string& name, const std::vector<std::string>& items) {
  std::string tag = name;
  tag.resize(64);
  tag +=
      CsaWord(1) + std::string("IS\0\0", 4) + CsaWord(6) + CsaWord(static_cast<uint32_t>(items.size())) + CsaWord(77);
  for (const std::string& item : items) {
    const uint32_t length = static_cast<uint32_t>(item.size());
    tag += CsaWord(length) + CsaWord(length) + CsaWord(77) + CsaWord(length) + item;
    tag.resize(tag.size() + (4 - length % 4) % 4);
  }
  return tag;
}

TEST_F(DicomTest, ReadsMosaics) {
  // Five tiles of 4x4 in a mosaic of 3x3; slices run against the normal.
  const auto pixel = [](int x, int y) {
    return static_cast<uint16_t>(100 * (x / 4 + 3 * (y / 4)) + 4 * (y % 4) + x % 4);
  };
  const auto slice = maker_.Slice({.columns = 12, .rows = 12, .spacing = "2\\2", .modality = "MR", .pixel = pixel});
  DcmDataset& d = *slice->getDataset();
  d.putAndInsertString(DCM_ImageType, "ORIGINAL\\PRIMARY\\M\\ND\\MOSAIC");
  d.putAndInsertString(DCM_SpacingBetweenSlices, "3.5");
  const std::string csa = std::string("SV10\4\3\2\1", 8) + CsaWord(2) + CsaWord(77) +
                          CsaTag("NumberOfImagesInMosaic", {"5"}) + CsaTag("SliceNormalVector", {"0", "0", "-1"});
  d.putAndInsertString(DcmTag(0x0029, 0x0010, EVR_LO), "SIEMENS CSA HEADER");
  d.putAndInsertUint8Array(DcmTag(0x0029, 0x1010, EVR_OB), reinterpret_cast<const Uint8*>(csa.data()), csa.size());
  const std::string path = maker_.Save(*slice, "one");
  const DicomVolume v = ReadOk(path);
  EXPECT_EQ(SizeString(v.volume.geometry), "4x4x5");
  EXPECT_EQ(v.volume.geometry.spacing, (Vec3d{2, 2, 3.5}));
  EXPECT_EQ(v.volume.geometry.origin, (Vec3d{-12, 38, -14}));
  for (int k = 0; k < 5; ++k) EXPECT_EQ(At(v, 3, 1, k), 100 * (4 - k) + 7);
  // Every prefix of the header is refused or read, and nothing beyond it is.
  for (size_t length = 0; length < csa.size(); ++length) {
    const auto status =
        dicom::ParseCsaMosaic(absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(csa.data()), length)).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << length;
  }
}

TEST_F(DicomTest, ReadsDoses) {
  auto file = maker_.Slice({.rows = 30, .modality = "RTDOSE", .pixel = [](int x, int y) {
                              return static_cast<uint16_t>(7 * x + 100 * (y % 10) + y / 10);
                            }});
  DcmDataset& d = *file->getDataset();
  d.putAndInsertUint16(DCM_Rows, 10);
  d.putAndInsertString(DCM_NumberOfFrames, "3");
  d.putAndInsertString(DCM_GridFrameOffsetVector, "0\\2\\4");
  d.putAndInsertString(DCM_DoseGridScaling, "0.5");
  const DicomVolume v = ReadOk(maker_.Save(*file, "one"));
  EXPECT_EQ(v.volume.geometry.spacing.z, 2);
  EXPECT_EQ(At(v, 2, 3, 2), 158);
  d.putAndInsertString(DCM_GridFrameOffsetVector, "0\\2");
  EXPECT_THAT(ReadDicom(maker_.Save(*file, "one")), Fails(Code::kInvalidArgument, "frames: GridFrameOffsetVector"));
}

}  // namespace
}  // namespace intrawarp::io
