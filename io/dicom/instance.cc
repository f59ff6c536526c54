// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/instance.h"

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dcdatset.h>
#include <dcmtk/dcmdata/dcdeftag.h>
#include <dcmtk/dcmdata/dcuid.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/field_error.h"
#include "engine/base/oid.h"
#include "engine/base/status_macros.h"
#include "io/dicom/attributes.h"
#include "io/dicom/mosaic.h"
#include "io/file/digest.h"

namespace intrawarp::io::dicom {
namespace {

constexpr double kMaxCoordinate = 1e7;
// On lengths and the right angle of the two axes of an image.
constexpr double kAxisTolerance = 1e-3;
constexpr int64_t kMaxStoredFrames = 1 << 24;
constexpr int kMaxMosaicTiles = 4096;

const Attribute kModality = {DCM_Modality, "Modality"};
const Attribute kSeries = {DCM_SeriesInstanceUID, "SeriesInstanceUID"};
const Attribute kFrameOfReference = {DCM_FrameOfReferenceUID, "FrameOfReferenceUID"};
const Attribute kSopClass = {DCM_SOPClassUID, "SOPClassUID"};
const Attribute kSopInstance = {DCM_SOPInstanceUID, "SOPInstanceUID"};
const Attribute kStudy = {DCM_StudyInstanceUID, "StudyInstanceUID"};
const Attribute kImageType = {DCM_ImageType, "ImageType"};
const Attribute kFrameType = {DCM_FrameType, "FrameType"};
const Attribute kPhotometric = {DCM_PhotometricInterpretation, "PhotometricInterpretation"};
const Attribute kPosition = {DCM_ImagePositionPatient, "ImagePositionPatient"};
const Attribute kOrientation = {DCM_ImageOrientationPatient, "ImageOrientationPatient"};
const Attribute kPixelSpacing = {DCM_PixelSpacing, "PixelSpacing"};
const Attribute kSlope = {DCM_RescaleSlope, "RescaleSlope"};
const Attribute kIntercept = {DCM_RescaleIntercept, "RescaleIntercept"};
const Attribute kSpacingBetween = {DCM_SpacingBetweenSlices, "SpacingBetweenSlices"};
const Attribute kFrameCount = {DCM_NumberOfFrames, "NumberOfFrames"};
const Attribute kOffsets = {DCM_GridFrameOffsetVector, "GridFrameOffsetVector"};
const Attribute kDoseScaling = {DCM_DoseGridScaling, "DoseGridScaling"};
const Attribute kCsaCreator = {DcmTagKey(0x0029, 0x0010), "private creator"};
const Attribute kCsaHeader = {DcmTagKey(0x0029, 0x1010), "CSAImageHeaderInfo"};

// The defined terms of PS3.3 C.7.3.1.1.1 that come with images, plans and reports. Anything else is a free text.
constexpr absl::string_view kModalities[] = {
    "ANN",      "AR",  "AU",  "BDUS",       "BI",      "BMD",      "CFM",    "CR",    "CT",         "CTPROTOCOL",
    "DMS",      "DG",  "DOC", "DX",         "ECG",     "EPS",      "ES",     "FID",   "GM",         "HC",
    "HD",       "IO",  "IOL", "IVOCT",      "IVUS",    "KER",      "KO",     "LEN",   "LS",         "M3D",
    "MG",       "MR",  "NM",  "OAM",        "OCT",     "OP",       "OPM",    "OPT",   "OPTBSV",     "OPTENF",
    "OPV",      "OSS", "OT",  "PA",         "PLAN",    "POS",      "PR",     "PT",    "PX",         "REG",
    "RESP",     "RF",  "RG",  "RTDOSE",     "RTIMAGE", "RTINTENT", "RTPLAN", "RTRAD", "RTRECORD",   "RTSEGANN",
    "RTSTRUCT", "RWV", "SEG", "SM",         "SMR",     "SR",       "SRF",    "STAIN", "TEXTUREMAP", "TG",
    "US",       "VA",  "XA",  "XAPROTOCOL", "XC"};

std::string HashOf(absl::string_view domain, absl::string_view uid) {
  if (uid.empty()) return "";
  const std::string bytes = absl::StrCat("intrawarp/dicom/", domain, "/v1", absl::string_view("\0", 1), uid);
  return absl::BytesToHexString(Sha256Of(bytes.data(), bytes.size()));
}

// The subject of the images: the study and the patient. Names are compared without regard to case and empty components.
std::string SubjectOf(DcmItem& item) {
  std::string name = absl::AsciiStrToUpper(Text(item, {DCM_PatientName, "PatientName"}));
  while (!name.empty() && (name.back() == '^' || name.back() == '=' || name.back() == ' ')) name.pop_back();
  const absl::string_view end("\0", 1);
  return HashOf("subject", absl::StrCat(Text(item, {DCM_StudyInstanceUID, "StudyInstanceUID"}), end,
                                        Text(item, {DCM_PatientID, "PatientID"}), end, name));
}

absl::Status CheckUids(DcmItem& item) {
  for (const Attribute& attribute : {kSopInstance, kStudy, kSeries, kFrameOfReference}) {
    const std::vector<std::string> values = Texts(item, attribute);
    const bool is_good = values.empty() || (values.size() == 1 && IsOid(values[0]));
    if (!is_good) {
      return FieldError(absl::StatusCode::kInvalidArgument, "uid", absl::StrCat(attribute.keyword, " is none"));
    }
  }
  return absl::OkStatus();
}

DicomProvenance ProvenanceOf(DcmItem& item) {
  DicomProvenance p;
  const std::string modality = Text(item, kModality);
  if (IsModality(modality)) p.modality = modality;
  p.series = HashOfSeries(Text(item, kSeries));
  p.frame_of_reference = HashOf("frame_of_reference", Text(item, kFrameOfReference));
  p.subject = SubjectOf(item);
  return p;
}

// The number of images that a series has, as far as one of its images says it. What an acquisition brought says nothing
// of images that were derived from it, and nothing of files of several frames.
int64_t AnnouncedBy(DcmItem& item, const PixelLayout& layout) {
  const auto number = [&](const DcmTagKey& tag) -> int64_t {
    return Integer(item, {tag, ""}, "", 1, kMaxStoredFrames, /*otherwise=*/-1).value_or(-1);
  };
  int64_t announced = std::max(number(DCM_NumberOfSeriesRelatedInstances), number(DCM_InConcatenationTotalNumber));
  if (layout.frames > 1) return announced;
  if (Text(item, kImageType) != "DERIVED") announced = std::max(announced, number(DCM_ImagesInAcquisition));
  const int64_t slices = number(DCM_NumberOfSlices);
  if (slices < 0) return announced;
  return std::max(announced, slices * std::max<int64_t>(1, number(DCM_NumberOfTimeSlices)));
}

// ---- Stored pixels --------------------------------------------------------------------------------------------------

absl::Status CheckPhotometric(DcmItem& item) {
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t samples, Integer(item, {DCM_SamplesPerPixel, "SamplesPerPixel"},
                                                            "photometric", 1, 65535, /*otherwise=*/1));
  const std::string name = Text(item, kPhotometric);
  if (name == "PALETTE COLOR") {
    return FieldError(absl::StatusCode::kUnimplemented, "photometric", "palette colours are not supported");
  }
  if (samples != 1) {
    return FieldError(absl::StatusCode::kUnimplemented, "photometric", "colour images are not supported");
  }
  if (name == "MONOCHROME1" || name == "MONOCHROME2") return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, "photometric", "must be MONOCHROME1 or MONOCHROME2");
}

absl::Status DescribeBits(DcmItem& item, PixelLayout* layout) {
  INTRAWARP_ASSIGN_OR_RETURN(layout->bits_allocated,
                             Integer(item, {DCM_BitsAllocated, "BitsAllocated"}, "bits", 1, 64));
  if (layout->kind != SampleKind::kInteger) return absl::OkStatus();
  const int allocated = layout->bits_allocated;
  if (allocated != 1 && allocated != 8 && allocated != 16 && allocated != 32) {
    return FieldError(absl::StatusCode::kUnimplemented, "bits",
                      absl::StrCat("BitsAllocated of ", allocated, " is not supported"));
  }
  INTRAWARP_ASSIGN_OR_RETURN(layout->bits_stored,
                             Integer(item, {DCM_BitsStored, "BitsStored"}, "bits", 1, allocated, allocated));
  INTRAWARP_ASSIGN_OR_RETURN(layout->high_bit, Integer(item, {DCM_HighBit, "HighBit"}, "bits", layout->bits_stored - 1,
                                                       allocated - 1, layout->bits_stored - 1));
  INTRAWARP_ASSIGN_OR_RETURN(
      const int64_t representation,
      Integer(item, {DCM_PixelRepresentation, "PixelRepresentation"}, "bits", 0, 1, /*otherwise=*/0));
  layout->is_signed = representation == 1;
  return absl::OkStatus();
}

// A padding value may be written signed or unsigned, whatever the pixels are.
int64_t AsStored(int64_t value, const PixelLayout& layout) {
  const uint64_t mask = (uint64_t{1} << layout.bits_stored) - 1;
  const uint64_t bits = static_cast<uint64_t>(value) & mask;
  const bool negative = layout.is_signed && (bits >> (layout.bits_stored - 1)) != 0;
  return static_cast<int64_t>(negative ? bits | ~mask : bits);
}

absl::Status DescribePadding(DcmItem& item, PixelLayout* layout) {
  const Attribute kPadding = {DCM_PixelPaddingValue, "PixelPaddingValue"};
  const Attribute kLimit = {DCM_PixelPaddingRangeLimit, "PixelPaddingRangeLimit"};
  if (layout->kind != SampleKind::kInteger || layout->bits_allocated == 1 || !Has(item, kPadding)) {
    return absl::OkStatus();
  }
  constexpr int64_t kMost = int64_t{1} << 32;
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t value, Integer(item, kPadding, "padding", -kMost, kMost));
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t limit, Integer(item, kLimit, "padding", -kMost, kMost, value));
  layout->padding = std::minmax({AsStored(value, *layout), AsStored(limit, *layout)});
  return absl::OkStatus();
}

absl::StatusOr<PixelLayout> LayoutOf(DcmItem& item) {
  PixelLayout layout;
  INTRAWARP_RETURN_IF_ERROR(CheckPhotometric(item));
  INTRAWARP_ASSIGN_OR_RETURN(layout.rows, Integer(item, {DCM_Rows, "Rows"}, "size", 1, kMaxAxis));
  INTRAWARP_ASSIGN_OR_RETURN(layout.columns, Integer(item, {DCM_Columns, "Columns"}, "size", 1, kMaxAxis));
  INTRAWARP_ASSIGN_OR_RETURN(layout.frames, Integer(item, kFrameCount, "frames", 1, kMaxStoredFrames, /*otherwise=*/1));
  if (item.tagExists(DCM_FloatPixelData)) layout.kind = SampleKind::kFloat32;
  if (item.tagExists(DCM_DoubleFloatPixelData)) layout.kind = SampleKind::kFloat64;
  INTRAWARP_RETURN_IF_ERROR(DescribeBits(item, &layout));
  INTRAWARP_RETURN_IF_ERROR(DescribePadding(item, &layout));
  return layout;
}

// ---- Frames ---------------------------------------------------------------------------------------------------------

// Exactly orthonormal axes from ones that are so to kAxisTolerance.
absl::Status SetAxes(const std::vector<double>& v, Frame* frame) {
  const Vec3d row{v[0], v[1], v[2]}, column{v[3], v[4], v[5]};
  const double row_length = Norm(row), column_length = Norm(column);
  if (!(std::abs(row_length - 1) <= kAxisTolerance && std::abs(column_length - 1) <= kAxisTolerance &&
        std::abs(Dot(row, column)) <= kAxisTolerance)) {
    return FieldError(absl::StatusCode::kInvalidArgument, "orientation",
                      "the axes must be of unit length and at right angles");
  }
  frame->row_axis = (1 / row_length) * row;
  const Vec3d upright = column - Dot(column, frame->row_axis) * frame->row_axis;
  frame->column_axis = (1 / Norm(upright)) * upright;
  return absl::OkStatus();
}

// The plane from the items that may hold its parts; null items are passed over.
absl::Status SetPlane(DcmItem* position_item, DcmItem* orientation_item, Frame* frame) {
  std::vector<double> position, orientation;
  if (position_item != nullptr) {
    INTRAWARP_ASSIGN_OR_RETURN(position, Numbers(*position_item, kPosition, "position", 3, 3));
  }
  if (orientation_item != nullptr) {
    INTRAWARP_ASSIGN_OR_RETURN(orientation, Numbers(*orientation_item, kOrientation, "orientation", 6, 6));
  }
  if (position.empty() && orientation.empty()) return absl::OkStatus();
  if (position.empty()) {
    return FieldError(absl::StatusCode::kInvalidArgument, "position", "ImagePositionPatient is missing");
  }
  if (orientation.empty()) {
    return FieldError(absl::StatusCode::kInvalidArgument, "orientation", "ImageOrientationPatient is missing");
  }
  for (const double c : position) {
    if (std::abs(c) > kMaxCoordinate) {
      return FieldError(absl::StatusCode::kInvalidArgument, "position", "is more than 10 km away");
    }
  }
  frame->position = {position[0], position[1], position[2]};
  frame->has_plane = true;
  frame->given |= kGivenPlane;
  return SetAxes(orientation, frame);
}

// PixelSpacing is (between rows, between columns).
absl::Status SetSpacing(DcmItem* item, Frame* frame) {
  std::vector<double> spacing;
  if (item != nullptr) {
    INTRAWARP_ASSIGN_OR_RETURN(spacing, Numbers(*item, kPixelSpacing, "spacing", 2, 2));
  }
  if (spacing.empty()) return FieldError(absl::StatusCode::kInvalidArgument, "spacing", "PixelSpacing is missing");
  if (!(spacing[0] >= 1e-6 && spacing[1] >= 1e-6 && spacing[0] <= 1e6 && spacing[1] <= 1e6)) {
    return FieldError(absl::StatusCode::kInvalidArgument, "spacing", "PixelSpacing must be from 1e-6 to 1e6 mm");
  }
  frame->spacing_y = spacing[0];
  frame->spacing_x = spacing[1];
  return absl::OkStatus();
}

absl::Status SetRescale(DcmItem* item, Frame* frame) {
  if (item == nullptr) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<double> slope, Number(*item, kSlope, "rescale"));
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<double> intercept, Number(*item, kIntercept, "rescale"));
  if (slope.value_or(1) == 0) return FieldError(absl::StatusCode::kInvalidArgument, "rescale", "RescaleSlope is 0");
  frame->slope = slope.value_or(1);
  frame->intercept = intercept.value_or(0);
  frame->given |= (slope ? kGivenSlope : 0U) | (intercept ? kGivenIntercept : 0U);
  return absl::OkStatus();
}

absl::Status SetNumber(DcmItem* item, const Attribute& attribute, absl::string_view field, double* value) {
  if (item == nullptr || !std::isnan(*value)) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<double> number, Number(*item, attribute, field));
  if (number) *value = *number;
  return absl::OkStatus();
}

// The first four values say what is shown: original or derived, primary or secondary, localiser, magnitude or phase.
std::string KindOf(DcmItem& item, const Attribute& attribute) {
  std::vector<std::string> values = Texts(item, attribute);
  if (values.empty()) return "";
  values.resize(std::min<size_t>(values.size(), 4));
  return HashOf("kind", absl::StrJoin(values, "\\"));
}

absl::Status SetPhases(DcmItem& item, Frame* frame) {
  INTRAWARP_RETURN_IF_ERROR(SetNumber(&item, {DCM_EchoTime, "EchoTime"}, "echo_time", &frame->echo_time));
  INTRAWARP_RETURN_IF_ERROR(SetNumber(&item, {DCM_DiffusionBValue, "DiffusionBValue"}, "b_value", &frame->b_value));
  INTRAWARP_RETURN_IF_ERROR(SetNumber(&item, {DCM_TemporalPositionIdentifier, "TemporalPositionIdentifier"},
                                      "temporal_position", &frame->temporal));
  INTRAWARP_RETURN_IF_ERROR(
      SetNumber(&item, {DCM_AcquisitionNumber, "AcquisitionNumber"}, "acquisition", &frame->acquisition));
  return SetNumber(&item, {DCM_TriggerTime, "TriggerTime"}, "trigger_time", &frame->trigger_time);
}

Frame WholeFrame(const PixelLayout& layout, int64_t stored) {
  Frame frame;
  frame.stored = stored;
  frame.columns = layout.columns;
  frame.rows = layout.rows;
  return frame;
}

// ---- Kinds of files -------------------------------------------------------------------------------------------------

absl::StatusOr<Frame> PlainFrame(DcmItem& item, const PixelLayout& layout) {
  Frame frame = WholeFrame(layout, 0);
  INTRAWARP_RETURN_IF_ERROR(SetPlane(&item, &item, &frame));
  INTRAWARP_RETURN_IF_ERROR(SetSpacing(&item, &frame));
  INTRAWARP_RETURN_IF_ERROR(SetRescale(&item, &frame));
  INTRAWARP_RETURN_IF_ERROR(SetPhases(item, &frame));
  frame.kind = KindOf(item, kImageType);
  return frame;
}

// A functional group of a frame: its own, or else the one that all frames share.
DcmItem* Group(DcmItem* shared, DcmItem* own, const DcmTagKey& tag) {
  DcmItem* item = FirstItem(own, tag);
  return item != nullptr ? item : FirstItem(shared, tag);
}

absl::Status DescribeEnhancedFrame(DcmItem* shared, DcmItem* own, Frame* frame) {
  INTRAWARP_RETURN_IF_ERROR(
      SetPlane(Group(shared, own, DCM_PlanePositionSequence), Group(shared, own, DCM_PlaneOrientationSequence), frame));
  INTRAWARP_RETURN_IF_ERROR(SetSpacing(Group(shared, own, DCM_PixelMeasuresSequence), frame));
  INTRAWARP_RETURN_IF_ERROR(SetRescale(Group(shared, own, DCM_PixelValueTransformationSequence), frame));
  DcmItem* content = Group(shared, own, DCM_FrameContentSequence);
  INTRAWARP_RETURN_IF_ERROR(
      SetNumber(content, {DCM_TemporalPositionIndex, "TemporalPositionIndex"}, "temporal_position", &frame->temporal));
  INTRAWARP_RETURN_IF_ERROR(
      SetNumber(content, {DCM_FrameAcquisitionNumber, "FrameAcquisitionNumber"}, "acquisition", &frame->acquisition));
  INTRAWARP_RETURN_IF_ERROR(SetNumber(Group(shared, own, DCM_MREchoSequence),
                                      {DCM_EffectiveEchoTime, "EffectiveEchoTime"}, "echo_time", &frame->echo_time));
  INTRAWARP_RETURN_IF_ERROR(SetNumber(Group(shared, own, DCM_MRDiffusionSequence),
                                      {DCM_DiffusionBValue, "DiffusionBValue"}, "b_value", &frame->b_value));
  INTRAWARP_RETURN_IF_ERROR(SetNumber(Group(shared, own, DCM_CardiacSynchronizationSequence),
                                      {DCM_NominalCardiacTriggerDelayTime, "NominalCardiacTriggerDelayTime"},
                                      "trigger_time", &frame->trigger_time));
  for (const DcmTagKey& tag : {DCM_MRImageFrameTypeSequence, DCM_CTImageFrameTypeSequence, DCM_PETFrameTypeSequence}) {
    if (DcmItem* type = Group(shared, own, tag); type != nullptr) frame->kind = KindOf(*type, kFrameType);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Frame>> EnhancedFrames(DcmItem& item, const PixelLayout& layout) {
  DcmItem* shared = FirstItem(&item, DCM_SharedFunctionalGroupsSequence);
  const std::vector<DcmItem*> own = Items(item, DCM_PerFrameFunctionalGroupsSequence);
  if (!own.empty() && static_cast<int64_t>(own.size()) != layout.frames) {
    return FieldError(absl::StatusCode::kInvalidArgument, "frames",
                      absl::StrCat("there are ", own.size(), " functional groups for ", layout.frames, " frames"));
  }
  std::vector<Frame> frames;
  for (int64_t i = 0; i < layout.frames; ++i) {
    Frame frame = WholeFrame(layout, i);
    INTRAWARP_RETURN_IF_ERROR(DescribeEnhancedFrame(shared, own.empty() ? nullptr : own[i], &frame));
    frames.push_back(std::move(frame));
  }
  return frames;
}

// Binary segmentations: the frames of each segment are a mask, without its empty planes.
absl::Status CheckSegmentation(DcmItem& item) {
  const std::string type = Text(item, {DCM_SegmentationType, "SegmentationType"});
  if (type == "FRACTIONAL") {
    return FieldError(absl::StatusCode::kUnimplemented, "segmentation", "fractional ones are not supported");
  }
  if (type != "BINARY") {
    return FieldError(absl::StatusCode::kInvalidArgument, "segmentation", "SegmentationType must be BINARY");
  }
  return absl::OkStatus();
}

absl::Status DescribeSegmentFrame(DcmItem* shared, DcmItem* own, Frame* frame) {
  DcmItem* measures = Group(shared, own, DCM_PixelMeasuresSequence);
  INTRAWARP_RETURN_IF_ERROR(SetNumber(measures, kSpacingBetween, "segmentation", &frame->plane_step));
  DcmItem* identity = Group(shared, own, DCM_SegmentIdentificationSequence);
  if (identity == nullptr) {
    return FieldError(absl::StatusCode::kInvalidArgument, "segmentation", "a frame names no segment");
  }
  INTRAWARP_ASSIGN_OR_RETURN(
      frame->segment,
      Integer(*identity, {DCM_ReferencedSegmentNumber, "ReferencedSegmentNumber"}, "segmentation", 1, 65535));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Frame>> SegmentFrames(DcmItem& item, const PixelLayout& layout) {
  INTRAWARP_RETURN_IF_ERROR(CheckSegmentation(item));
  INTRAWARP_ASSIGN_OR_RETURN(std::vector<Frame> frames, EnhancedFrames(item, layout));
  DcmItem* shared = FirstItem(&item, DCM_SharedFunctionalGroupsSequence);
  const std::vector<DcmItem*> own = Items(item, DCM_PerFrameFunctionalGroupsSequence);
  for (size_t i = 0; i < frames.size(); ++i) {
    INTRAWARP_RETURN_IF_ERROR(DescribeSegmentFrame(shared, own.empty() ? nullptr : own[i], &frames[i]));
  }
  return frames;
}

// Doses: one plane, and the offsets of the frames along its normal.
absl::StatusOr<std::vector<Frame>> DoseFrames(DcmItem& item, const PixelLayout& layout) {
  INTRAWARP_ASSIGN_OR_RETURN(Frame first, PlainFrame(item, layout));
  if (!first.has_plane) {
    return FieldError(absl::StatusCode::kInvalidArgument, "position", "ImagePositionPatient is missing");
  }
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<double> scaling, Number(item, kDoseScaling, "rescale"));
  if (!scaling || *scaling == 0) {
    return FieldError(absl::StatusCode::kInvalidArgument, "rescale", "DoseGridScaling is missing or 0");
  }
  first.slope = *scaling;
  first.intercept = 0;
  const size_t count = static_cast<size_t>(layout.frames);
  INTRAWARP_ASSIGN_OR_RETURN(std::vector<double> offsets, Numbers(item, kOffsets, "frames", count, count));
  if (offsets.empty() && count == 1) offsets = {0};
  if (offsets.empty()) {
    return FieldError(absl::StatusCode::kInvalidArgument, "frames", "GridFrameOffsetVector is missing");
  }
  // With a first offset other than 0 the vector holds coordinates along the patient's axis (PS3.3 C.8.8.3.2).
  const Vec3d normal = Cross(first.row_axis, first.column_axis);
  if (offsets[0] != 0 && std::abs(offsets[0] - first.position.z) > 1e-3) {
    return FieldError(absl::StatusCode::kInvalidArgument, "frames",
                      "GridFrameOffsetVector must begin with 0 or the position");
  }
  const double sign = offsets[0] != 0 && normal.z < 0 ? -1 : 1;
  std::vector<Frame> frames(count, first);
  for (size_t i = 0; i < count; ++i) {
    frames[i].stored = static_cast<int64_t>(i);
    frames[i].position = first.position + sign * (offsets[i] - offsets[0]) * normal;
  }
  return frames;
}

absl::StatusOr<CsaMosaic> MosaicOf(DcmItem& item) {
  const bool named = absl::c_linear_search(Texts(item, kImageType), "MOSAIC");
  const bool is_csa = absl::StartsWith(Text(item, kCsaCreator), "SIEMENS CSA HEADER");
  const Uint8* bytes = nullptr;
  unsigned long count = 0;
  if (is_csa) (void)item.findAndGetUint8Array(kCsaHeader.tag, bytes, &count);
  CsaMosaic mosaic;
  if (named && bytes == nullptr) {
    return FieldError(absl::StatusCode::kUnimplemented, "mosaic", "is not described by a CSA header");
  }
  if (!named) return mosaic;
  INTRAWARP_ASSIGN_OR_RETURN(mosaic, ParseCsaMosaic(absl::MakeConstSpan(bytes, count)));
  if (mosaic.images == 0) {
    return FieldError(absl::StatusCode::kInvalidArgument, "mosaic", "NumberOfImagesInMosaic is missing");
  }
  return mosaic;
}

// The position of a mosaic is the position of the corner of an image of the mosaic's size around the slice's centre.
absl::StatusOr<std::vector<Frame>> MosaicFrames(DcmItem& item, const PixelLayout& layout, const CsaMosaic& mosaic) {
  INTRAWARP_ASSIGN_OR_RETURN(Frame first, PlainFrame(item, layout));
  if (!first.has_plane) {
    return FieldError(absl::StatusCode::kInvalidArgument, "position", "ImagePositionPatient is missing");
  }
  const int side = static_cast<int>(std::ceil(std::sqrt(static_cast<double>(mosaic.images))));
  if (mosaic.images > kMaxMosaicTiles || layout.columns % side != 0 || layout.rows % side != 0) {
    return FieldError(absl::StatusCode::kInvalidArgument, "mosaic", "the image does not divide into its tiles");
  }
  first.columns = layout.columns / side;
  first.rows = layout.rows / side;
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<double> step, Number(item, kSpacingBetween, "mosaic"));
  if (!step || !(*step > 0)) {
    return FieldError(absl::StatusCode::kInvalidArgument, "mosaic", "SpacingBetweenSlices is missing");
  }
  const Vec3d normal = Cross(first.row_axis, first.column_axis);
  const double along = Dot(mosaic.slice_normal, normal);
  if (!(std::abs(std::abs(along) - 1) < kAxisTolerance)) {
    return FieldError(absl::StatusCode::kInvalidArgument, "mosaic", "SliceNormalVector is not the normal of the plane");
  }
  first.position = first.position + 0.5 * (layout.columns - first.columns) * first.spacing_x * first.row_axis +
                   0.5 * (layout.rows - first.rows) * first.spacing_y * first.column_axis;
  std::vector<Frame> frames(mosaic.images, first);
  for (int i = 0; i < mosaic.images; ++i) {
    frames[i].left = i % side * first.columns;
    frames[i].top = i / side * first.rows;
    frames[i].position = first.position + (along > 0 ? 1.0 : -1.0) * i * *step * normal;
  }
  return frames;
}

absl::StatusOr<std::vector<Frame>> FramesOf(DcmItem& item, const PixelLayout& layout, bool* is_mosaic) {
  if (Text(item, kSopClass) == UID_SegmentationStorage) return SegmentFrames(item, layout);
  if (item.tagExists(DCM_PerFrameFunctionalGroupsSequence) || item.tagExists(DCM_SharedFunctionalGroupsSequence)) {
    return EnhancedFrames(item, layout);
  }
  if (Text(item, kSopClass) == UID_RTDoseStorage || item.tagExists(DCM_DoseGridScaling)) {
    return DoseFrames(item, layout);
  }
  if (layout.frames > 1) {
    return FieldError(absl::StatusCode::kUnimplemented, "frames",
                      "several frames without functional groups are not supported");
  }
  INTRAWARP_ASSIGN_OR_RETURN(const CsaMosaic mosaic, MosaicOf(item));
  *is_mosaic = mosaic.images > 0;
  if (*is_mosaic) return MosaicFrames(item, layout, mosaic);
  INTRAWARP_ASSIGN_OR_RETURN(Frame frame, PlainFrame(item, layout));
  return std::vector<Frame>{std::move(frame)};
}

void AddNotes(DcmItem& item, Instance* instance) {
  if (instance->is_inverted) {
    instance->notes.emplace_back("MONOCHROME1: stored values are not inverted");
  }
  if (Text(item, {DCM_LossyImageCompression, "LossyImageCompression"}) == "01") {
    instance->notes.emplace_back("was compressed with loss");
  }
  if (item.tagExists(DCM_RealWorldValueMappingSequence)) {
    instance->notes.emplace_back("its real world value mapping is not applied");
  }
  const std::string units = Text(item, {DCM_RescaleType, "RescaleType"});
  if (instance->provenance.modality == "CT" && !units.empty() && units != "HU") {
    instance->notes.emplace_back("CT whose rescale type is not HU");
  }
}

void NoteGiven(DcmItem& item, Instance* instance) {
  const auto note = [&](const Attribute& attribute, GivenAttribute bit) {
    if (Has(item, attribute)) instance->given |= bit;
  };
  note({DCM_BitsStored, "BitsStored"}, kGivenBitsStored);
  note({DCM_HighBit, "HighBit"}, kGivenHighBit);
  note({DCM_PixelRepresentation, "PixelRepresentation"}, kGivenRepresentation);
  note(kFrameOfReference, kGivenFrameOfReference);
  note(kModality, kGivenModality);
  for (Frame& frame : instance->frames) {
    frame.given |= (frame.kind.empty() ? 0U : kGivenKind) | (std::isnan(frame.echo_time) ? 0U : kGivenEchoTime);
  }
}

absl::Status DescribeImage(DcmItem& item, int64_t max_frames, Instance* instance) {
  if (item.tagExists(DCM_ModalityLUTSequence)) {
    return FieldError(absl::StatusCode::kUnimplemented, "rescale", "a modality lookup table is not supported");
  }
  INTRAWARP_ASSIGN_OR_RETURN(instance->layout, LayoutOf(item));
  if (instance->layout.frames > max_frames) {
    return FieldError(absl::StatusCode::kResourceExhausted, "frames", absl::StrCat("more than ", max_frames));
  }
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<double> thickness,
                             Number(item, {DCM_SliceThickness, "SliceThickness"}, "thickness"));
  instance->thickness = thickness.value_or(kAbsent);
  INTRAWARP_ASSIGN_OR_RETURN(instance->frames, FramesOf(item, instance->layout, &instance->is_mosaic));
  instance->is_inverted = Text(item, kPhotometric) == "MONOCHROME1";
  instance->announced = AnnouncedBy(item, instance->layout);
  NoteGiven(item, instance);
  AddNotes(item, instance);
  return absl::OkStatus();
}

}  // namespace

std::string HashOfSeries(absl::string_view uid) { return HashOf("series", uid); }

bool IsModality(absl::string_view term) { return absl::c_linear_search(kModalities, term); }

absl::StatusOr<Frame> ReadPlane(DcmItem& item) {
  Frame frame;
  INTRAWARP_RETURN_IF_ERROR(SetPlane(&item, &item, &frame));
  if (!frame.has_plane) {
    return FieldError(absl::StatusCode::kInvalidArgument, "position", "ImagePositionPatient is missing");
  }
  return frame;
}

Instance DescribeInstance(DcmDataset& dataset, int64_t max_frames) {
  Instance instance;
  instance.provenance = ProvenanceOf(dataset);
  instance.sop_class = HashOf("sop_class", Text(dataset, kSopClass));
  const std::string uid = Text(dataset, kSopInstance);
  if (!uid.empty()) instance.sop_instance = absl::BytesToHexString(Sha256Of(uid.data(), uid.size()));
  instance.uids = CheckUids(dataset);
  instance.is_directory = dataset.tagExists(DCM_DirectoryRecordSequence);
  instance.has_image = dataset.tagExists(DCM_PixelData) || dataset.tagExists(DCM_FloatPixelData) ||
                       dataset.tagExists(DCM_DoubleFloatPixelData);
  if (instance.has_image) instance.status = DescribeImage(dataset, max_frames, &instance);
  return instance;
}

}  // namespace intrawarp::io::dicom
