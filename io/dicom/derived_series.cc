// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/derived_series.h"

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dcdatset.h>
#include <dcmtk/dcmdata/dcdeftag.h>
#include <dcmtk/dcmdata/dcuid.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "io/atomic_folder.h"
#include "io/dicom/object.h"

namespace intrawarp::io {
namespace {

using dicom::ObjectItem;

constexpr double kAirHu = -1000;
constexpr int kSeriesNumber = 9002;
constexpr dicom::Code kResampling = {"113085", "DCM", "Spatial resampling"};
constexpr dicom::Code kSource = {"121322", "DCM", "Source image for image processing operation"};

bool IsCt(const DicomReference& moving) { return moving.modality == "CT"; }

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
};

// What a reader makes of the number as DICOM holds it.
double AsWritten(double value) {
  double read = value;
  (void)absl::SimpleAtod(dicom::DecimalString(value), &read);
  return read;
}

Quantisation QuantisationOf(const StoredValues& stored, absl::Span<const float> intensities) {
  Quantisation q;
  if (stored.shared) {
    q = {stored.slope, stored.intercept, 0, std::ldexp(1.0, stored.bits) - 1, stored.bits, stored.is_signed};
    if (stored.is_signed) q.low = -std::ldexp(1.0, stored.bits - 1), q.high = -q.low - 1;
    return q;
  }
  const auto [low, high] = std::minmax_element(intensities.begin(), intensities.end());
  q.intercept = AsWritten(*low);
  // A little more than needed, so that rounding the slope to its decimal string leaves the largest value in range.
  q.slope = *high > *low ? AsWritten((double{*high} - q.intercept) / 65534) : 1;
  return q;
}

absl::Status CheckPixels(const Geometry& grid, absl::Span<const float> intensities) {
  if (static_cast<int64_t>(intensities.size()) != grid.voxels()) {
    return absl::InvalidArgumentError("pixels: must be as many as the grid has voxels");
  }
  if (std::all_of(intensities.begin(), intensities.end(), [](float v) { return std::isfinite(v); })) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("pixels: must be finite");
}

// ---- Attributes -----------------------------------------------------------------------------------------------------

// The fixed image of a plane is named where the series lies on the grid that is written.
void AddSources(const Geometry& grid, const DicomReference& fixed, const DicomReference& moving, int plane,
                ObjectItem root) {
  const bool same_grid = fixed.has_planes && SameGrid(grid, fixed.geometry);
  const int fixed_instance = same_grid ? fixed.instance_of_plane[plane] : -1;
  if (fixed_instance >= 0) root.AddInstance(DCM_ReferencedImageSequence, fixed.instances[fixed_instance]);
  for (const ReferencedInstance& instance : moving.instances) {
    ObjectItem item = root.Add(DCM_SourceImageSequence);
    item.Text(DCM_ReferencedSOPClassUID, instance.sop_class);
    item.Text(DCM_ReferencedSOPInstanceUID, instance.sop_instance);
    item.AddCode(DCM_PurposeOfReferenceCodeSequence, kSource);
  }
  root.Text(DCM_DerivationDescription, "Resampled onto the fixed images of a registration by intrawarp");
  root.AddCode(DCM_DerivationCodeSequence, kResampling);
}

// What the voxels were acquired with: numbers and defined terms, no free texts.
void AddAcquisition(const DicomReference& moving, ObjectItem root) {
  DcmItem& from = *moving.header;
  // Type 2C: wanted unless the body part is known and not one of a pair.
  if (!from.tagExistsWithValue(DCM_BodyPartExamined)) root.Text(DCM_Laterality, "");
  for (const DcmTagKey& tag :
       {DCM_AcquisitionDate, DCM_AcquisitionTime, DCM_BodyPartExamined, DCM_Laterality, DCM_LossyImageCompression,
        DCM_LossyImageCompressionRatio, DCM_LossyImageCompressionMethod}) {
    root.Copy(tag, from);
  }
  root.Text(DCM_AcquisitionNumber, "");
  if (IsCt(moving)) {
    root.CopyRequired(DCM_KVP, from);
    root.Copy(DCM_ConvolutionKernel, from);
    return;
  }
  // A multi-frame original has these elsewhere; research mode is the term for what is not told.
  if (from.tagExistsWithValue(DCM_ScanningSequence) && from.tagExistsWithValue(DCM_SequenceVariant)) {
    root.Copy(DCM_ScanningSequence, from);
    root.Copy(DCM_SequenceVariant, from);
  } else {
    root.Text(DCM_ScanningSequence, "RM");
    root.Text(DCM_SequenceVariant, "NONE");
  }
  for (const DcmTagKey& tag :
       {DCM_ScanOptions, DCM_MRAcquisitionType, DCM_RepetitionTime, DCM_EchoTime, DCM_EchoTrainLength}) {
    root.CopyRequired(tag, from);
  }
  for (const DcmTagKey& tag :
       {DCM_InversionTime, DCM_FlipAngle, DCM_MagneticFieldStrength, DCM_ImagingFrequency, DCM_DiffusionBValue}) {
    root.Copy(tag, from);
  }
}

void AddPlane(const Geometry& grid, const dicom::PlaneAxes& axes, int plane, ObjectItem root) {
  root.Numbers(DCM_ImagePositionPatient, dicom::PositionOf(grid, axes, plane));
  root.Numbers(DCM_ImageOrientationPatient, axes.orientation);
  root.Numbers(DCM_PixelSpacing, {grid.spacing.y, grid.spacing.x});
  root.Number(DCM_SliceThickness, grid.spacing.z);
  root.Number(DCM_SpacingBetweenSlices, grid.spacing.z);
}

// Both or none, as many of one as of the other.
void AddWindows(DcmItem& from, ObjectItem root) {
  if (!from.tagExistsWithValue(DCM_WindowCenter) || !from.tagExistsWithValue(DCM_WindowWidth)) return;
  root.Copy(DCM_WindowCenter, from);
  root.Copy(DCM_WindowWidth, from);
}

void AddPixels(const Geometry& grid, const Quantisation& q, absl::Span<const float> plane, bool is_ct,
               ObjectItem root) {
  root.Uint16(DCM_SamplesPerPixel, 1);
  root.Text(DCM_PhotometricInterpretation, "MONOCHROME2");
  root.Uint16(DCM_Rows, static_cast<uint16_t>(grid.size.y));
  root.Uint16(DCM_Columns, static_cast<uint16_t>(grid.size.x));
  root.Uint16(DCM_BitsAllocated, 16);
  root.Uint16(DCM_BitsStored, static_cast<uint16_t>(q.bits));
  root.Uint16(DCM_HighBit, static_cast<uint16_t>(q.bits - 1));
  root.Uint16(DCM_PixelRepresentation, q.is_signed ? 1 : 0);
  // MR images have rescaling outside of their module, where it says something.
  if (is_ct || q.slope != 1 || q.intercept != 0) {
    root.Number(DCM_RescaleIntercept, q.intercept);
    root.Number(DCM_RescaleSlope, q.slope);
    root.Text(DCM_RescaleType, is_ct ? "HU" : "US");
  }
  std::vector<uint16_t> words(plane.size());
  std::transform(plane.begin(), plane.end(), words.begin(), [&](float v) { return q.Stored(v); });
  root.Words(DCM_PixelData, words);
}

struct Series {
  dicom::ObjectKind kind;
  std::string uid;
  Quantisation quantisation;
  dicom::PlaneAxes axes;
};

absl::Status WritePlane(const std::string& path, const Series& series, int plane, const Geometry& grid,
                        absl::Span<const float> intensities, const DicomReference& fixed, const DicomReference& moving,
                        const DicomStamp& stamp) {
  dicom::Object object(series.kind, fixed, stamp, series.uid, stamp.new_uid(), plane + 1);
  object.AddFrameOfReference(fixed);
  ObjectItem root = object.root();
  root.Text(DCM_ImageType, IsCt(moving) ? "DERIVED\\SECONDARY\\AXIAL" : "DERIVED\\SECONDARY\\OTHER");
  root.Text(DCM_ContentDate, dicom::DateOf(stamp.time));
  root.Text(DCM_ContentTime, dicom::TimeOf(stamp.time));
  root.CopyRequired(DCM_PatientPosition, *fixed.header);
  AddAcquisition(moving, root);
  AddSources(grid, fixed, moving, plane, root);
  AddPlane(grid, series.axes, plane, root);
  AddWindows(*moving.header, root);
  const size_t pixels = static_cast<size_t>(grid.size.x) * grid.size.y;
  AddPixels(grid, series.quantisation, intensities.subspan(plane * pixels, pixels), IsCt(moving), root);
  return object.Save(path);
}

}  // namespace

double DerivedFill(const DicomReference& moving) { return IsCt(moving) ? kAirHu : 0; }

absl::Status WriteDerivedSeries(const std::string& folder, const Geometry& grid, absl::Span<const float> intensities,
                                const DicomReference& fixed, const DicomReference& moving, const DicomStamp& stamp) {
  INTRAWARP_RETURN_IF_ERROR(CheckSamePatient(fixed, moving));
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(grid));
  INTRAWARP_RETURN_IF_ERROR(CheckPixels(grid, intensities));
  if (!IsCt(moving) && moving.modality != "MR") {
    return absl::UnimplementedError("modality: a derived series of another modality than CT and MR is not supported");
  }
  Series series;
  series.kind = {IsCt(moving) ? UID_CTImageStorage : UID_MRImageStorage, IsCt(moving) ? "CT" : "MR",
                 "intrawarp warped images", kSeriesNumber};
  series.uid = stamp.new_uid();
  series.quantisation = QuantisationOf(moving.stored, intensities);
  INTRAWARP_ASSIGN_OR_RETURN(series.axes, dicom::AxesOf(grid));
  INTRAWARP_ASSIGN_OR_RETURN(AtomicFolder out, AtomicFolder::Create(folder));
  for (int plane = 0; plane < grid.size.z; ++plane) {
    const std::string path = absl::StrFormat("%s/IM%05d.dcm", out.path(), plane + 1);
    INTRAWARP_RETURN_IF_ERROR(WritePlane(path, series, plane, grid, intensities, fixed, moving, stamp));
  }
  return out.Commit();
}

}  // namespace intrawarp::io
