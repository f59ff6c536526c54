// SPDX-License-Identifier: Apache-2.0
#include "tests/io/dicom/dicom_maker.h"

#include <dcmtk/dcmdata/dcpixseq.h>
#include <dcmtk/dcmdata/dcpxitem.h>
#include <dcmtk/dcmdata/dcrleerg.h>
#include <dcmtk/dcmjpeg/djdecode.h>
#include <dcmtk/dcmjpeg/djencode.h>
#include <dcmtk/dcmjpeg/djrplol.h>
#include <dcmtk/dcmjpls/djencode.h>
#include <gtest/gtest.h>
#include <openjpeg.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace intrawarp::io {
namespace {

void RegisterEncoders() {
  static const bool once = [] {
    DJEncoderRegistration::registerCodecs(ECC_lossyRGB, EUC_never);
    DJLSEncoderRegistration::registerCodecs();
    DcmRLEEncoderRegistration::registerCodecs();
    return true;
  }();
  (void)once;
}

}  // namespace

std::unique_ptr<DcmFileFormat> DicomMaker::Slice(const SliceSpec& s) {
  auto file = std::make_unique<DcmFileFormat>();
  DcmDataset& d = *file->getDataset();
  const std::string uid = absl::StrCat(kSeriesUid, ".", ++made_);
  d.putAndInsertString(DCM_SOPClassUID, s.modality == "CT" ? UID_CTImageStorage : UID_MRImageStorage);
  d.putAndInsertString(DCM_SOPInstanceUID, uid.c_str());
  d.putAndInsertString(DCM_Modality, s.modality.c_str());
  d.putAndInsertString(DCM_ImageType, "ORIGINAL\\PRIMARY\\AXIAL");
  d.putAndInsertString(DCM_SeriesInstanceUID, s.series.c_str());
  d.putAndInsertString(DCM_FrameOfReferenceUID, kFrameUid);
  d.putAndInsertString(DCM_InstanceNumber, absl::StrCat(1000 - made_).c_str());
  d.putAndInsertString(DCM_SliceThickness, "9");
  d.putAndInsertString(DCM_ImagePositionPatient, absl::StrCat(s.x, "\\", s.y, "\\", s.z).c_str());
  d.putAndInsertString(DCM_ImageOrientationPatient, s.orientation.c_str());
  d.putAndInsertString(DCM_PixelSpacing, s.spacing.c_str());
  d.putAndInsertUint16(DCM_SamplesPerPixel, 1);
  d.putAndInsertString(DCM_PhotometricInterpretation, "MONOCHROME2");
  d.putAndInsertUint16(DCM_Rows, static_cast<Uint16>(s.rows));
  d.putAndInsertUint16(DCM_Columns, static_cast<Uint16>(s.columns));
  d.putAndInsertUint16(DCM_BitsAllocated, 16);
  d.putAndInsertUint16(DCM_BitsStored, static_cast<Uint16>(s.bits_stored));
  d.putAndInsertUint16(DCM_HighBit, static_cast<Uint16>(s.high_bit));
  d.putAndInsertUint16(DCM_PixelRepresentation, s.is_signed ? 1 : 0);
  if (s.modality == "CT") {
    d.putAndInsertString(DCM_RescaleSlope, "1");
    d.putAndInsertString(DCM_RescaleIntercept, "-1024");
  }
  std::vector<Uint16> cells;
  for (int y = 0; y < s.rows; ++y) {
    for (int x = 0; x < s.columns; ++x) cells.push_back(s.pixel(x, y));
  }
  d.putAndInsertUint16Array(DCM_PixelData, cells.data(), cells.size());
  return file;
}

std::string DicomMaker::Save(DcmFileFormat& file, const std::string& name, E_TransferSyntax syntax) const {
  RegisterEncoders();
  const std::string path = folder_ + "/" + name;
  const DJ_RPLossless lossless;
  const DcmRepresentationParameter* parameter = syntax == EXS_JPEGProcess14SV1 ? &lossless : nullptr;
  EXPECT_TRUE(file.getDataset()->chooseRepresentation(syntax, parameter).good());
  EXPECT_TRUE(file.saveFile(path.c_str(), syntax).good()) << path;
  return path;
}

void DicomMaker::Series(SliceSpec spec, int count, double step) {
  const double z = spec.z;
  const auto pixel = spec.pixel;
  for (int i = 0; i < count; ++i) {
    const int k = (7 * i + 3) % count;  // 7 and count have no common factor
    spec.z = z + k * step;
    spec.pixel = [&](int x, int y) { return static_cast<uint16_t>(pixel(x, y) + k); };
    Save(*Slice(spec), absl::StrCat("image", i));
  }
}

std::string DicomMaker::SaveEncapsulated(DcmFileFormat& file, const std::string& name, E_TransferSyntax syntax,
                                         const std::vector<std::vector<uint8_t>>& fragments) const {
  auto* sequence = new DcmPixelSequence(DCM_PixelSequenceTag);
  sequence->insert(new DcmPixelItem(DCM_PixelItemTag));
  for (const std::vector<uint8_t>& fragment : fragments) {
    auto* item = new DcmPixelItem(DCM_PixelItemTag);
    std::vector<uint8_t> even = fragment;
    even.resize(even.size() + even.size() % 2);
    item->putUint8Array(even.data(), even.size());
    sequence->insert(item);
  }
  auto* pixels = new DcmPixelData(DCM_PixelData);
  pixels->putOriginalRepresentation(syntax, nullptr, sequence);
  file.getDataset()->insert(pixels, /*replaceOld=*/OFTrue);
  const std::string path = folder_ + "/" + name;
  EXPECT_TRUE(file.saveFile(path.c_str(), syntax).good()) << path;
  return path;
}

std::vector<uint8_t> EncodeJpeg2000(const std::vector<uint16_t>& cells, int columns, int rows, int precision,
                                    bool is_signed) {
  opj_image_cmptparm_t component{};
  component.dx = component.dy = 1;
  component.w = static_cast<OPJ_UINT32>(columns);
  component.h = static_cast<OPJ_UINT32>(rows);
  component.prec = static_cast<OPJ_UINT32>(precision);
  component.sgnd = is_signed;
  opj_image_t* image = opj_image_create(1, &component, OPJ_CLRSPC_GRAY);
  image->x1 = component.w;
  image->y1 = component.h;
  for (size_t i = 0; i < cells.size(); ++i) {
    const int half = 1 << (precision - 1);
    const int value = cells[i] & ((1 << precision) - 1);
    image->comps[0].data[i] = is_signed && value >= half ? value - 2 * half : value;
  }
  opj_cparameters_t parameters;
  opj_set_default_encoder_parameters(&parameters);
  parameters.tcp_numlayers = 1;
  parameters.cp_disto_alloc = 1;
  parameters.numresolution = 2;
  opj_codec_t* codec = opj_create_compress(OPJ_CODEC_J2K);
  EXPECT_TRUE(opj_setup_encoder(codec, &parameters, image));
  struct Sink {
    std::vector<uint8_t> bytes;
    size_t position = 0;
  } sink;
  opj_stream_t* stream = opj_stream_default_create(OPJ_FALSE);
  opj_stream_set_user_data(stream, &sink, nullptr);
  opj_stream_set_write_function(stream, [](void* data, OPJ_SIZE_T count, void* user) -> OPJ_SIZE_T {
    auto& s = *static_cast<Sink*>(user);
    s.bytes.resize(std::max(s.bytes.size(), s.position + count));
    std::memcpy(s.bytes.data() + s.position, data, count);
    s.position += count;
    return count;
  });
  opj_stream_set_seek_function(stream, [](OPJ_OFF_T to, void* user) -> OPJ_BOOL {
    static_cast<Sink*>(user)->position = static_cast<size_t>(to);
    return OPJ_TRUE;
  });
  opj_stream_set_skip_function(stream, [](OPJ_OFF_T by, void* user) -> OPJ_OFF_T {
    static_cast<Sink*>(user)->position += static_cast<size_t>(by);
    return by;
  });
  EXPECT_TRUE(opj_start_compress(codec, image, stream));
  EXPECT_TRUE(opj_encode(codec, stream));
  EXPECT_TRUE(opj_end_compress(codec, stream));
  opj_stream_destroy(stream);
  opj_destroy_codec(codec);
  opj_image_destroy(image);
  return sink.bytes;
}

}  // namespace intrawarp::io
