// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/segmentation_out.h"

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dcdatset.h>
#include <dcmtk/dcmdata/dcdeftag.h>
#include <dcmtk/dcmdata/dcuid.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/dicom/attributes.h"
#include "io/dicom/object.h"

namespace intrawarp::io {
namespace {

using dicom::ObjectItem;

constexpr dicom::ObjectKind kSegmentation = {UID_SegmentationStorage, "SEG", "intrawarp warped segmentation", 9003};
constexpr size_t kMaxLabel = 64;  // of a long string (LO)
constexpr size_t kLabComponents = 3;
constexpr dicom::Code kTissue = {"85756007", "SCT", "Tissue"};
constexpr dicom::Code kDerivation = {"113076", "DCM", "Segmentation"};
constexpr dicom::Code kPurpose = {"121322", "DCM", "Source image for image processing operation"};

absl::Status CheckMask(const Geometry& grid, absl::Span<const float> mask) {
  if (static_cast<int64_t>(mask.size()) != grid.voxels()) {
    return FieldError(absl::StatusCode::kInvalidArgument, "mask", "must have as many values as the grid has voxels");
  }
  if (std::all_of(mask.begin(), mask.end(), [](float v) { return v == 0 || v == 1; })) return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, "mask", "must hold only 0 and 1");
}

// Eight voxels a byte, the first in the lowest bit, over all planes without a gap (PS3.5 8.1.1), to an even length.
std::vector<uint8_t> Packed(absl::Span<const float> mask) {
  const size_t bytes = (mask.size() + 7) / 8;
  std::vector<uint8_t> packed(bytes + bytes % 2);
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] != 0) packed[i / 8] = static_cast<uint8_t>(packed[i / 8] | 1U << (i % 8));
  }
  return packed;
}

// The source's description of its segment; null without one.
DcmItem* SegmentItem(const DicomReference* source) {
  if (source == nullptr || source->segment == 0) return nullptr;
  for (DcmItem* item : dicom::Items(*source->header, DCM_SegmentSequence)) {
    const absl::StatusOr<int64_t> number =
        dicom::Integer(*item, {DCM_SegmentNumber, "SegmentNumber"}, "segmentation", 1, 65535);
    if (number.ok() && *number == source->segment) return item;
  }
  return nullptr;
}

// The label may be in another character set than the object's own.
std::string LabelOf(DcmItem* segment) {
  if (segment == nullptr) return "Mask";
  const std::string label = dicom::Text(*segment, {DCM_SegmentLabel, "SegmentLabel"});
  const bool plain = !label.empty() && label.size() <= kMaxLabel && std::all_of(label.begin(), label.end(), [](char c) {
    return absl::ascii_isprint(static_cast<unsigned char>(c)) && c != '\\';
  });
  return plain ? label : "Segment";
}

void CopyOrCode(DcmItem* segment, const DcmTagKey& tag, ObjectItem item) {
  if (segment == nullptr || !item.TakeCode(tag, *segment)) item.AddCode(tag, kTissue);
}

void AddSegment(const DicomReference* source, ObjectItem root) {
  DcmItem* segment = SegmentItem(source);
  ObjectItem item = root.Add(DCM_SegmentSequence);
  item.Uint16(DCM_SegmentNumber, 1);
  item.Text(DCM_SegmentLabel, LabelOf(segment));
  // Drawn by hand or not, it was warped by a program.
  const bool automatic =
      segment != nullptr && dicom::Text(*segment, {DCM_SegmentAlgorithmType, "SegmentAlgorithmType"}) == "AUTOMATIC";
  item.Text(DCM_SegmentAlgorithmType, automatic ? "AUTOMATIC" : "SEMIAUTOMATIC");
  item.Text(DCM_SegmentAlgorithmName, "intrawarp");
  CopyOrCode(segment, DCM_SegmentedPropertyCategoryCodeSequence, item);
  CopyOrCode(segment, DCM_SegmentedPropertyTypeCodeSequence, item);
  if (segment == nullptr) return;
  (void)item.TakeCode(DCM_AnatomicRegionSequence, *segment);
  DcmElement* colour = nullptr;
  const bool has_colour = segment->findAndGetElement(DCM_RecommendedDisplayCIELabValue, colour).good();
  if (has_colour && colour->ident() == EVR_US && colour->getVM() == kLabComponents) {
    item.Copy(DCM_RecommendedDisplayCIELabValue, *segment);
  }
}

void AddDimensions(const std::string& organization, ObjectItem root) {
  root.Add(DCM_DimensionOrganizationSequence).Text(DCM_DimensionOrganizationUID, organization);
  ObjectItem segment = root.Add(DCM_DimensionIndexSequence);
  segment.Text(DCM_DimensionOrganizationUID, organization);
  segment.Tag(DCM_DimensionIndexPointer, DCM_ReferencedSegmentNumber);
  segment.Tag(DCM_FunctionalGroupPointer, DCM_SegmentIdentificationSequence);
  segment.Text(DCM_DimensionDescriptionLabel, "Segment");
  ObjectItem position = root.Add(DCM_DimensionIndexSequence);
  position.Text(DCM_DimensionOrganizationUID, organization);
  position.Tag(DCM_DimensionIndexPointer, DCM_ImagePositionPatient);
  position.Tag(DCM_FunctionalGroupPointer, DCM_PlanePositionSequence);
  position.Text(DCM_DimensionDescriptionLabel, "Position");
}

void AddSharedGroups(const Geometry& grid, const dicom::PlaneAxes& axes, ObjectItem root) {
  ObjectItem shared = root.Add(DCM_SharedFunctionalGroupsSequence);
  shared.Add(DCM_PlaneOrientationSequence).Numbers(DCM_ImageOrientationPatient, axes.orientation);
  ObjectItem measures = shared.Add(DCM_PixelMeasuresSequence);
  measures.Numbers(DCM_PixelSpacing, {grid.spacing.y, grid.spacing.x});
  measures.Number(DCM_SliceThickness, grid.spacing.z);
  measures.Number(DCM_SpacingBetweenSlices, grid.spacing.z);
  shared.Add(DCM_SegmentIdentificationSequence).Uint16(DCM_ReferencedSegmentNumber, 1);
}

void AddFrame(const Geometry& grid, const dicom::PlaneAxes& axes, int plane, const DicomReference& fixed,
              ObjectItem root) {
  ObjectItem frame = root.Add(DCM_PerFrameFunctionalGroupsSequence);
  frame.Add(DCM_FrameContentSequence).Uint32s(DCM_DimensionIndexValues, {1, static_cast<uint32_t>(plane + 1)});
  frame.Add(DCM_PlanePositionSequence).Numbers(DCM_ImagePositionPatient, dicom::PositionOf(grid, axes, plane));
  // The fixed image of a plane is named where the series lies on the grid that is written.
  const bool same_grid = fixed.has_planes && SameGrid(grid, fixed.geometry);
  const int instance = same_grid ? fixed.instance_of_plane[plane] : -1;
  if (instance < 0) return;
  ObjectItem derivation = frame.Add(DCM_DerivationImageSequence);
  derivation.AddCode(DCM_DerivationCodeSequence, kDerivation);
  derivation.AddInstance(DCM_SourceImageSequence, fixed.instances[instance], fixed.frame_of_plane[plane], &kPurpose);
}

void AddPixels(const Geometry& grid, absl::Span<const float> mask, ObjectItem root) {
  root.Text(DCM_ImageType, "DERIVED\\PRIMARY");
  root.Text(DCM_NumberOfFrames, absl::StrCat(grid.size.z));
  root.Uint16(DCM_SamplesPerPixel, 1);
  root.Text(DCM_PhotometricInterpretation, "MONOCHROME2");
  root.Uint16(DCM_Rows, static_cast<uint16_t>(grid.size.y));
  root.Uint16(DCM_Columns, static_cast<uint16_t>(grid.size.x));
  root.Uint16(DCM_BitsAllocated, 1);
  root.Uint16(DCM_BitsStored, 1);
  root.Uint16(DCM_HighBit, 0);
  root.Uint16(DCM_PixelRepresentation, 0);
  root.Text(DCM_LossyImageCompression, "00");
  root.Text(DCM_SegmentationType, "BINARY");
  root.Bytes(DCM_PixelData, Packed(mask));
}

}  // namespace

absl::Status WriteDicomSegmentation(const std::string& path, const Geometry& grid, absl::Span<const float> mask,
                                    const DicomReference& fixed, const DicomReference* source,
                                    const DicomStamp& stamp) {
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(grid));
  INTRAWARP_RETURN_IF_ERROR(CheckMask(grid, mask));
  if (source != nullptr) INTRAWARP_RETURN_IF_ERROR(CheckSamePatient(fixed, *source));
  INTRAWARP_ASSIGN_OR_RETURN(const dicom::PlaneAxes axes, dicom::AxesOf(grid));
  dicom::Object object(kSegmentation, fixed, stamp, stamp.new_uid(), stamp.new_uid(), 1);
  object.AddFrameOfReference(fixed);
  object.AddContentIdentification("SEGMENTATION", "Segmentation warped by intrawarp", stamp);
  if (source != nullptr) {
    object.AddCommonReferences({&fixed, source}, fixed);
  } else {
    object.AddCommonReferences({&fixed}, fixed);
  }
  AddSegment(source, object.root());
  AddDimensions(stamp.new_uid(), object.root());
  AddSharedGroups(grid, axes, object.root());
  for (int plane = 0; plane < grid.size.z; ++plane) AddFrame(grid, axes, plane, fixed, object.root());
  AddPixels(grid, mask, object.root());
  return object.Save(path);
}

}  // namespace intrawarp::io
