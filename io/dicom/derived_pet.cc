// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/derived_pet.h"

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dcdatset.h>
#include <dcmtk/dcmdata/dcdeftag.h>
#include <dcmtk/dcmdata/dcuid.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/dicom/attributes.h"

namespace intrawarp::io::dicom {
namespace {

constexpr size_t kMaxCorrections = 16;
constexpr size_t kMaxRadiopharmaceuticals = 8;

// PS3.3 C.8.9.1.1.3, the defined terms and those added since.
constexpr absl::string_view kUnits[] = {"CNTS",   "NONE",     "CM2",     "CM2ML",     "PCNT",   "CPS", "BQML",
                                        "MLML",   "GML",      "MGMINML", "UMOLMINML", "MLMING", "MLG", "1CM",
                                        "UMOLML", "PROPCNTS", "PROPCPS", "MLMINML",   "STDDEV"};
constexpr absl::string_view kDecayCorrections[] = {"NONE", "START", "ADMIN"};
// GATED needs the attributes of its gates.
constexpr absl::string_view kSeriesTypes[] = {"STATIC", "DYNAMIC", "WHOLE BODY"};

absl::Status CheckTerm(DcmItem& header, const Attribute& attribute, absl::Span<const absl::string_view> terms) {
  if (absl::c_linear_search(terms, Text(header, attribute))) return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, attribute.keyword, "is missing or no defined term");
}

absl::Status CheckNumber(DcmItem& header, const Attribute& attribute) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<double> number, Number(header, attribute, attribute.keyword));
  if (number) return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, attribute.keyword, "is missing");
}

absl::Status CheckDigits(DcmItem& header, const Attribute& attribute) {
  if (IsDateOrTime(attribute.tag, Text(header, attribute))) return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, attribute.keyword, "is missing or not well-formed");
}

absl::Status CheckSeriesType(DcmItem& header) {
  const std::vector<std::string> type = Texts(header, {DCM_SeriesType, "SeriesType"});
  if (type.size() != 2) {
    return FieldError(absl::StatusCode::kInvalidArgument, "SeriesType", "is missing or has another number of values");
  }
  if (absl::c_linear_search(kSeriesTypes, type[0]) && type[1] == "IMAGE") return absl::OkStatus();
  return FieldError(absl::StatusCode::kUnimplemented, "SeriesType", "gated images and projections are not supported");
}

bool IsCorrected(DcmItem& header) { return Text(header, {DCM_DecayCorrection, "DecayCorrection"}) != "NONE"; }

// The injected substance: codes, doses and times; its free texts are left out.
void AddRadiopharmaceuticals(DcmItem& from, ObjectItem root) {
  const std::vector<DcmItem*> sources = Items(from, DCM_RadiopharmaceuticalInformationSequence);
  if (sources.empty()) return root.Empty(DCM_RadiopharmaceuticalInformationSequence);
  for (size_t i = 0; i < std::min(sources.size(), kMaxRadiopharmaceuticals); ++i) {
    DcmItem& source = *sources[i];
    ObjectItem item = root.Add(DCM_RadiopharmaceuticalInformationSequence);
    if (!item.TakeCode(DCM_RadionuclideCodeSequence, source)) item.Empty(DCM_RadionuclideCodeSequence);
    item.TakeCode(DCM_RadiopharmaceuticalCodeSequence, source);
    for (const DcmTagKey& tag : {DCM_RadionuclideTotalDose, DCM_RadionuclideHalfLife, DCM_RadionuclidePositronFraction,
                                 DCM_RadiopharmaceuticalVolume, DCM_RadiopharmaceuticalSpecificActivity}) {
      item.TakeNumbers(tag, source);
    }
    for (const DcmTagKey& tag : {DCM_RadiopharmaceuticalStartTime, DCM_RadiopharmaceuticalStopTime,
                                 DCM_RadiopharmaceuticalStartDateTime, DCM_RadiopharmaceuticalStopDateTime}) {
      item.TakeDigits(tag, source);
    }
  }
}

void AddSeries(DcmItem& from, int planes, ObjectItem root) {
  root.TakeDigits(DCM_SeriesDate, from);
  root.TakeDigits(DCM_SeriesTime, from);
  root.TakeTerms(DCM_Units, from);
  if (!root.TakeTerms(DCM_CountsSource, from)) root.Text(DCM_CountsSource, "EMISSION");
  // One time of a dynamic series stands still.
  const bool is_whole_body = Text(from, {DCM_SeriesType, "SeriesType"}) == "WHOLE BODY";
  root.Text(DCM_SeriesType, is_whole_body ? "WHOLE BODY\\IMAGE" : "STATIC\\IMAGE");
  root.Uint16(DCM_NumberOfSlices, static_cast<uint16_t>(planes));
  if (!root.TakeTerms(DCM_CorrectedImage, from, kMaxCorrections)) root.EmptyValue(DCM_CorrectedImage);
  root.TakeTerms(DCM_DecayCorrection, from);
  root.TakeTerms(DCM_SUVType, from);
  root.TakeTerms(DCM_RandomsCorrectionMethod, from);
  if (!root.TakeTerms(DCM_CollimatorType, from)) root.EmptyValue(DCM_CollimatorType);
}

}  // namespace

absl::Status CheckPet(const DicomReference& moving) {
  if (moving.instances.empty() || moving.instances[0].sop_class != UID_PositronEmissionTomographyImageStorage) {
    return FieldError(absl::StatusCode::kUnimplemented, "SOPClassUID",
                      "a derived series of enhanced PET images is not supported");
  }
  DcmItem& header = *moving.header;
  INTRAWARP_RETURN_IF_ERROR(CheckTerm(header, {DCM_Units, "Units"}, kUnits));
  INTRAWARP_RETURN_IF_ERROR(CheckTerm(header, {DCM_DecayCorrection, "DecayCorrection"}, kDecayCorrections));
  INTRAWARP_RETURN_IF_ERROR(CheckSeriesType(header));
  INTRAWARP_RETURN_IF_ERROR(CheckDigits(header, {DCM_SeriesDate, "SeriesDate"}));
  INTRAWARP_RETURN_IF_ERROR(CheckDigits(header, {DCM_SeriesTime, "SeriesTime"}));
  INTRAWARP_RETURN_IF_ERROR(CheckNumber(header, {DCM_FrameReferenceTime, "FrameReferenceTime"}));
  if (IsCorrected(header)) return CheckNumber(header, {DCM_DecayFactor, "DecayFactor"});
  if (moving.is_of_one_time) return absl::OkStatus();
  return FieldError(absl::StatusCode::kUnimplemented, "DecayCorrection",
                    "images of several times that were not corrected are not supported");
}

void AddPet(const DicomReference& moving, int plane, int planes, ObjectItem root) {
  DcmItem& from = *moving.header;
  AddSeries(from, planes, root);
  AddRadiopharmaceuticals(from, root);
  // The weight and the size belong to this dose.
  root.TakeNumbers(DCM_PatientWeight, from);
  root.TakeNumbers(DCM_PatientSize, from);
  root.Empty(DCM_PatientOrientationCodeSequence);
  root.Empty(DCM_PatientGantryRelationshipCodeSequence);
  root.Uint16(DCM_ImageIndex, static_cast<uint16_t>(plane + 1));
  root.TakeNumbers(DCM_FrameReferenceTime, from);
  if (!root.TakeNumbers(DCM_ActualFrameDuration, from)) root.EmptyValue(DCM_ActualFrameDuration);
  if (IsCorrected(from)) root.TakeNumbers(DCM_DecayFactor, from);
  for (const DcmTagKey& tag : {DCM_DoseCalibrationFactor, DCM_ScatterFractionFactor, DCM_DeadTimeFactor}) {
    root.TakeNumbers(tag, from);
  }
  for (const DcmTagKey& tag : {DCM_AcquisitionDate, DCM_AcquisitionTime}) {
    if (!root.TakeDigits(tag, from)) root.EmptyValue(tag);
  }
}

}  // namespace intrawarp::io::dicom
