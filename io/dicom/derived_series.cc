// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/derived_series.h"

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dcdatset.h>
#include <dcmtk/dcmdata/dcdeftag.h>
#include <dcmtk/dcmdata/dcuid.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/dicom/attributes.h"
#include "io/dicom/derived_pet.h"
#include "io/dicom/object.h"
#include "io/file/atomic_folder.h"

namespace intrawarp::io {
namespace {

using dicom::ObjectItem;

constexpr double kAirHu = -1000;
constexpr int kSeriesNumber = 9002;
constexpr int kLeastCtBits = 12;
// Steps that the range of the values must have, so that rounding does not matter; and the part of a step that values on
// the steps may be off them.
constexpr double kLeastSteps = 256;
constexpr double kExact = 1e-3;
// Steps may be so many times those of the source.
constexpr double kMostCoarser = 4;
// Values that are taken of an attribute.
constexpr size_t kMaxCompressions = 8;
constexpr size_t kMaxSequences = 8;
constexpr size_t kMaxWindows = 64;
constexpr dicom::Code kResampling = {"113085", "DCM", "Spatial resampling"};
constexpr dicom::Code kSource = {"121322", "DCM", "Source image for image processing operation"};

bool IsCt(const DicomReference& moving) { return moving.modality == "CT"; }
bool IsPet(const DicomReference& moving) { return moving.modality == "PT"; }

dicom::ObjectKind KindOf(const DicomReference& moving) {
  const char* const image = IsCt(moving)    ? UID_CTImageStorage
                            : IsPet(moving) ? UID_PositronEmissionTomographyImageStorage
                                            : UID_MRImageStorage;
  return {image, IsCt(moving) ? "CT" : IsPet(moving) ? "PT" : "MR", "intrawarp warped images", kSeriesNumber};
}

// ---- Stored values --------------------------------------------------------------------------------------------------

struct Quantisation {
  double slope = 1, intercept = 0;
  double low = 0, high = 65535;
  int bits = 16;
  bool is_signed = false;

  uint16_t Stored(double intensity) const {
    const double value = std::clamp(std::round((intensity - intercept) / slope), low, high);
    return static_cast<uint16_t>(static_cast<int32_t>(value));
  }
  // What a reader makes of the stored value.
  double Restored(double intensity) const {
    return slope * std::clamp(std::round((intensity - intercept) / slope), low, high) + intercept;
  }
};

// What a reader makes of the number as DICOM holds it.
double AsWritten(double value) {
  double read = value;
  (void)absl::SimpleAtod(dicom::DecimalString(value), &read);
  return read;
}

struct Extent {
  double low = 0, high = 0;
};

Extent ExtentOf(absl::Span<const float> intensities) {
  const auto [low, high] = std::minmax_element(intensities.begin(), intensities.end());
  return {*low, *high};
}

// The largest difference that storing makes.
double LossOf(const Quantisation& q, absl::Span<const float> intensities) {
  double loss = 0;
  for (const float v : intensities) loss = std::max(loss, std::abs(q.Restored(v) - double{v}));
  return loss;
}

// Whether values survive: none is clipped, and either they are multiples of the slope, as those of the source are, or
// the range has so many steps that rounding does not matter.
bool Holds(const Quantisation& q, const Extent& extent, absl::Span<const float> intensities) {
  const double step = std::abs(q.slope);
  const double a = (extent.low - q.intercept) / q.slope, b = (extent.high - q.intercept) / q.slope;
  if (std::min(a, b) < q.low - 0.5 || std::max(a, b) > q.high + 0.5) return false;
  return extent.high - extent.low >= kLeastSteps * step || LossOf(q, intensities) <= kExact * step;
}

Quantisation WithBits(const StoredValues& stored, int bits, bool is_signed) {
  Quantisation q{AsWritten(stored.slope), AsWritten(stored.intercept), 0, std::ldexp(1.0, bits) - 1, bits, is_signed};
  if (is_signed) q.low = -std::ldexp(1.0, bits - 1), q.high = -q.low - 1;
  return q;
}

// The source's own steps where they hold the values, with more bits where needed; otherwise 16 bits over the range.
Quantisation QuantisationOf(const StoredValues& stored, int least_bits, absl::Span<const float> intensities) {
  const Extent extent = ExtentOf(intensities);
  if (stored.shared) {
    // An image of a CT has 12 bits or more (PS3.3 C.8.2.1).
    const Quantisation own = WithBits(stored, std::max(stored.bits, least_bits), stored.is_signed);
    for (const Quantisation& q : {own, WithBits(stored, 16, false), WithBits(stored, 16, true)}) {
      if (Holds(q, extent, intensities)) return q;
    }
  }
  Quantisation q;
  q.intercept = AsWritten(extent.low);
  // A little more than needed, so that rounding the slope to its decimal string leaves the largest value in range. One
  // value is held with any slope.
  const bool has_range = extent.high > extent.low;
  if (has_range || stored.shared) q.slope = AsWritten(has_range ? (extent.high - q.intercept) / 65534 : stored.slope);
  return q;
}

// An image of a PET has 16 bits and no intercept (PS3.3 C.8.9.4). Where its slices share no slope, or have an
// intercept, the bits are spread over the range.
Quantisation PetQuantisation(const StoredValues& stored, absl::Span<const float> intensities) {
  const Extent extent = ExtentOf(intensities);
  const Quantisation own = WithBits(stored, 16, stored.is_signed);
  if (stored.shared && stored.intercept == 0 && Holds(own, extent, intensities)) return own;
  Quantisation q;
  q.is_signed = extent.low < 0;
  if (q.is_signed) q.low = -32768, q.high = 32767;
  const double most = std::max(std::abs(extent.low), std::abs(extent.high));
  // A little more than needed, as above.
  if (most > 0) q.slope = AsWritten(most / (q.is_signed ? 32766 : 65534));
  return q;
}

// Few values far off would cost all others their last digits. A slope or intercept beyond a decimal string holds
// nothing.
absl::Status CheckQuantisation(const Quantisation& q, const StoredValues& stored, double loss) {
  const bool is_coarse = stored.shared && loss > kMostCoarser / 2 * std::abs(stored.slope);
  if (!is_coarse && std::isfinite(q.slope) && q.slope != 0 && std::isfinite(q.intercept)) return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, "pixels",
                    "16 bits cannot hold their range in steps as fine as the source's");
}

absl::Status CheckPixels(const Geometry& grid, absl::Span<const float> intensities) {
  if (static_cast<int64_t>(intensities.size()) != grid.voxels()) {
    return FieldError(absl::StatusCode::kInvalidArgument, "pixels", "must be as many as the grid has voxels");
  }
  if (std::all_of(intensities.begin(), intensities.end(), [](float v) { return std::isfinite(v); })) {
    return absl::OkStatus();
  }
  return FieldError(absl::StatusCode::kInvalidArgument, "pixels", "must be finite");
}

// ---- Attributes -----------------------------------------------------------------------------------------------------

// The fixed image of a plane is named where the series lies on the grid that is written.
void AddSources(const Geometry& grid, const DicomReference& fixed, const DicomReference& moving, int plane, double loss,
                ObjectItem root) {
  const bool same_grid = fixed.has_planes && SameGrid(grid, fixed.geometry);
  const int fixed_instance = same_grid ? fixed.instance_of_plane[plane] : -1;
  if (fixed_instance >= 0) {
    root.AddInstance(DCM_ReferencedImageSequence, fixed.instances[fixed_instance], fixed.frame_of_plane[plane]);
  }
  for (const ReferencedInstance& instance : moving.instances) {
    root.AddInstance(DCM_SourceImageSequence, instance, /*frame=*/0, &kSource);
  }
  const char* const times = "; times and decay factor are those of the first source image";
  root.Text(DCM_DerivationDescription, absl::StrCat("Resampled onto the fixed images of a registration by intrawarp",
                                                    absl::StrFormat("; values are stored to within %.2g", loss),
                                                    IsPet(moving) && !moving.is_of_one_time ? times : ""));
  root.AddCode(DCM_DerivationCodeSequence, kResampling);
}

// What the voxels were acquired with: numbers and defined terms, no free texts.
void AddAcquisition(const DicomReference& moving, ObjectItem root) {
  DcmItem& from = *moving.header;
  // Type 2C: wanted unless the body part is known and not one of a pair.
  if (!root.TakeTerms(DCM_BodyPartExamined, from)) root.EmptyValue(DCM_Laterality);
  root.TakeTerms(DCM_Laterality, from);
  for (const DcmTagKey& tag : {DCM_AcquisitionDate, DCM_AcquisitionTime}) root.TakeDigits(tag, from);
  root.TakeTerms(DCM_LossyImageCompression, from);
  root.TakeNumbers(DCM_LossyImageCompressionRatio, from, 1, kMaxCompressions);
  root.TakeTerms(DCM_LossyImageCompressionMethod, from, kMaxCompressions);
  root.EmptyValue(DCM_AcquisitionNumber);
  if (IsCt(moving)) {
    if (!root.TakeNumbers(DCM_KVP, from)) root.EmptyValue(DCM_KVP);
    return;
  }
  if (IsPet(moving)) return;
  // A multi-frame original has these elsewhere; research mode is the term for what is not told.
  if (!root.TakeTerms(DCM_ScanningSequence, from, kMaxSequences)) root.Text(DCM_ScanningSequence, "RM");
  if (!root.TakeTerms(DCM_SequenceVariant, from, kMaxSequences)) root.Text(DCM_SequenceVariant, "NONE");
  if (!root.TakeTerms(DCM_ScanOptions, from, kMaxSequences)) root.EmptyValue(DCM_ScanOptions);
  if (!root.TakeTerms(DCM_MRAcquisitionType, from)) root.EmptyValue(DCM_MRAcquisitionType);
  for (const DcmTagKey& tag : {DCM_RepetitionTime, DCM_EchoTime, DCM_EchoTrainLength}) {
    if (!root.TakeNumbers(tag, from)) root.EmptyValue(tag);
  }
  for (const DcmTagKey& tag :
       {DCM_InversionTime, DCM_FlipAngle, DCM_MagneticFieldStrength, DCM_ImagingFrequency, DCM_DiffusionBValue}) {
    root.TakeNumbers(tag, from);
  }
}

void AddPlane(const Geometry& grid, const dicom::PlaneAxes& axes, int plane, ObjectItem root) {
  root.Numbers(DCM_ImagePositionPatient, dicom::PositionOf(grid, axes, plane));
  root.Numbers(DCM_ImageOrientationPatient, axes.orientation);
  root.Numbers(DCM_PixelSpacing, {grid.spacing.y, grid.spacing.x});
  root.Number(DCM_SliceThickness, grid.spacing.z);
  root.Number(DCM_SpacingBetweenSlices, grid.spacing.z);
}

// The value of a file that nobody vouches for, where it is a term that DICOM defines.
bool TakeOneOf(const DcmTagKey& tag, std::initializer_list<absl::string_view> terms, DcmItem& from, ObjectItem root) {
  const std::string value = dicom::Text(from, {tag, ""});
  if (std::find(terms.begin(), terms.end(), value) == terms.end()) return false;
  root.Text(tag, value);
  return true;
}

// Both or none, as many of one as of the other; a width is at least 1 (PS3.3 C.11.2.1.2).
void AddWindows(DcmItem& from, ObjectItem root) {
  const auto numbers = [&](const DcmTagKey& tag) {
    return dicom::Numbers(from, {tag, ""}, "", 1, kMaxWindows).value_or(std::vector<double>());
  };
  const std::vector<double> centers = numbers(DCM_WindowCenter), widths = numbers(DCM_WindowWidth);
  if (centers.empty() || centers.size() != widths.size()) return;
  if (!std::all_of(widths.begin(), widths.end(), [](double w) { return w >= 1; })) return;
  root.Numbers(DCM_WindowCenter, centers);
  root.Numbers(DCM_WindowWidth, widths);
  TakeOneOf(DCM_VOILUTFunction, {"LINEAR", "LINEAR_EXACT", "SIGMOID"}, from, root);
}

// What the values are, where the source says it.
void AddRescaleType(const DicomReference& moving, ObjectItem root) {
  // The defined terms of PS3.3 C.11.1.1.2; others are free texts.
  if (IsPet(moving) || TakeOneOf(DCM_RescaleType, {"OD", "HU", "US", "MGML", "Z_EFF", "ED", "EDW", "HU_MOD", "PCT"},
                                 *moving.header, root)) {
    return;
  }
  root.Text(DCM_RescaleType, IsCt(moving) ? "HU" : "US");
}

void AddPixels(const Geometry& grid, const Quantisation& q, absl::Span<const float> plane, const DicomReference& moving,
               ObjectItem root) {
  root.Uint16(DCM_SamplesPerPixel, 1);
  root.Text(DCM_PhotometricInterpretation, moving.is_inverted ? "MONOCHROME1" : "MONOCHROME2");
  TakeOneOf(DCM_PresentationLUTShape, {"IDENTITY", "INVERSE"}, *moving.header, root);
  root.Uint16(DCM_Rows, static_cast<uint16_t>(grid.size.y));
  root.Uint16(DCM_Columns, static_cast<uint16_t>(grid.size.x));
  root.Uint16(DCM_BitsAllocated, 16);
  root.Uint16(DCM_BitsStored, static_cast<uint16_t>(q.bits));
  root.Uint16(DCM_HighBit, static_cast<uint16_t>(q.bits - 1));
  root.Uint16(DCM_PixelRepresentation, q.is_signed ? 1 : 0);
  // MR images have rescaling outside of their module, where it says something. Those of PET have Units for its type.
  if (IsCt(moving) || IsPet(moving) || q.slope != 1 || q.intercept != 0) {
    root.Number(DCM_RescaleIntercept, q.intercept);
    root.Number(DCM_RescaleSlope, q.slope);
    AddRescaleType(moving, root);
  }
  std::vector<uint16_t> words(plane.size());
  std::transform(plane.begin(), plane.end(), words.begin(), [&](float v) { return q.Stored(v); });
  root.Words(DCM_PixelData, words);
}

// Value 2 of a PET is PRIMARY, whether it is derived or not (PS3.3 C.8.9.4.1.1).
const char* ImageTypeOf(const DicomReference& moving) {
  if (IsPet(moving)) return "DERIVED\\PRIMARY";
  return IsCt(moving) ? "DERIVED\\SECONDARY\\AXIAL" : "DERIVED\\SECONDARY\\OTHER";
}

struct Series {
  dicom::ObjectKind kind;
  std::string uid;
  Quantisation quantisation;
  double loss = 0;
  dicom::PlaneAxes axes;
};

absl::Status WritePlane(const std::string& path, const Series& series, int plane, const Geometry& grid,
                        absl::Span<const float> intensities, const DicomReference& fixed, const DicomReference& moving,
                        const DicomStamp& stamp) {
  dicom::Object object(series.kind, fixed, stamp, series.uid, stamp.new_uid(), plane + 1);
  object.AddFrameOfReference(fixed);
  ObjectItem root = object.root();
  root.Text(DCM_ImageType, ImageTypeOf(moving));
  root.Text(DCM_ContentDate, dicom::DateOf(stamp.time));
  root.Text(DCM_ContentTime, dicom::TimeOf(stamp.time));
  AddAcquisition(moving, root);
  if (IsPet(moving)) {
    // Its codes of the position stand in the place of PatientPosition.
    dicom::AddPet(moving, plane, grid.size.z, root);
  } else if (!root.TakeTerms(DCM_PatientPosition, *fixed.header)) {
    root.EmptyValue(DCM_PatientPosition);
  }
  AddSources(grid, fixed, moving, plane, series.loss, root);
  AddPlane(grid, series.axes, plane, root);
  AddWindows(*moving.header, root);
  const size_t pixels = static_cast<size_t>(grid.size.x) * grid.size.y;
  AddPixels(grid, series.quantisation, intensities.subspan(plane * pixels, pixels), moving, root);
  return object.Save(path);
}

}  // namespace

absl::Status CheckDerivable(const DicomReference& moving) {
  if (IsPet(moving)) return dicom::CheckPet(moving);
  if (IsCt(moving) || moving.modality == "MR") return absl::OkStatus();
  return FieldError(absl::StatusCode::kUnimplemented, "modality",
                    "a derived series of another modality than CT, MR and PET is not supported");
}

double DerivedFill(const DicomReference& moving) { return IsCt(moving) ? kAirHu : 0; }

absl::Status WriteDerivedSeries(const std::string& folder, const Geometry& grid, absl::Span<const float> intensities,
                                const DicomReference& fixed, const DicomReference& moving, const DicomStamp& stamp) {
  INTRAWARP_RETURN_IF_ERROR(CheckSamePatient(fixed, moving));
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(grid));
  INTRAWARP_RETURN_IF_ERROR(CheckPixels(grid, intensities));
  INTRAWARP_RETURN_IF_ERROR(CheckDerivable(moving));
  Series series;
  series.kind = KindOf(moving);
  series.uid = stamp.new_uid();
  series.quantisation = IsPet(moving) ? PetQuantisation(moving.stored, intensities)
                                      : QuantisationOf(moving.stored, IsCt(moving) ? kLeastCtBits : 1, intensities);
  series.loss = LossOf(series.quantisation, intensities);
  INTRAWARP_RETURN_IF_ERROR(CheckQuantisation(series.quantisation, moving.stored, series.loss));
  INTRAWARP_ASSIGN_OR_RETURN(series.axes, dicom::AxesOf(grid));
  INTRAWARP_ASSIGN_OR_RETURN(AtomicFolder out, AtomicFolder::Create(folder));
  for (int plane = 0; plane < grid.size.z; ++plane) {
    const std::string path = absl::StrFormat("%s/IM%05d.dcm", out.path(), plane + 1);
    INTRAWARP_RETURN_IF_ERROR(WritePlane(path, series, plane, grid, intensities, fixed, moving, stamp));
  }
  return out.Commit();
}

}  // namespace intrawarp::io
