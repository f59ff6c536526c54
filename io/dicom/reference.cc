// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/reference.h"

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dcdatset.h>
#include <dcmtk/dcmdata/dcdeftag.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/oid.h"
#include "engine/base/status_macros.h"
#include "io/dicom/attributes.h"
#include "io/dicom/selection.h"

namespace intrawarp::io {
namespace {

using dicom::Attribute;

const Attribute kStudy = {DCM_StudyInstanceUID, "StudyInstanceUID"};
const Attribute kSeries = {DCM_SeriesInstanceUID, "SeriesInstanceUID"};
const Attribute kFrameOfReference = {DCM_FrameOfReferenceUID, "FrameOfReferenceUID"};
const Attribute kSopClass = {DCM_SOPClassUID, "SOPClassUID"};
const Attribute kSopInstance = {DCM_SOPInstanceUID, "SOPInstanceUID"};

absl::StatusOr<std::string> Uid(DcmItem& item, const Attribute& attribute) {
  std::string uid = dicom::Text(item, attribute);
  if (IsOid(uid)) return uid;
  return FieldError(absl::StatusCode::kInvalidArgument, attribute.keyword,
                    "is missing or no UID, so that no object can refer to the series");
}

absl::Status ChangedFile() { return FieldError(absl::StatusCode::kAborted, "file", "has changed while it was read"); }

absl::StatusOr<dicom::Dataset> Reopen(const dicom::Instance& instance, const DicomLimits& limits) {
  absl::StatusOr<dicom::Dataset> dataset = dicom::ReadDataset(instance.path, limits);
  if (!dataset.ok() || dataset->data == nullptr || !dataset->status.ok()) return ChangedFile();
  return dataset;
}

absl::Status TakeHeader(dicom::Dataset dataset, DicomReference* reference) {
  INTRAWARP_ASSIGN_OR_RETURN(reference->study, Uid(*dataset.data, kStudy));
  INTRAWARP_ASSIGN_OR_RETURN(reference->series, Uid(*dataset.data, kSeries));
  INTRAWARP_ASSIGN_OR_RETURN(reference->frame_of_reference, Uid(*dataset.data, kFrameOfReference));
  for (const DcmTagKey& tag : {DCM_PixelData, DCM_FloatPixelData, DCM_DoubleFloatPixelData}) {
    (void)dataset.data->findAndDeleteElement(tag);  // fails where there is none
  }
  reference->header = std::move(dataset.data);
  return absl::OkStatus();
}

StoredValues StoredValuesOf(const dicom::Selection& selection) {
  const dicom::FrameIndex first = selection.stack.frames[0];
  const dicom::Instance& instance = selection.instances[first.instance];
  const dicom::Frame& frame = instance.frames[first.frame];
  StoredValues stored{true, frame.slope, frame.intercept, instance.layout.bits_stored, instance.layout.is_signed};
  for (const dicom::FrameIndex i : selection.stack.frames) {
    const dicom::PixelLayout& layout = selection.instances[i.instance].layout;
    const dicom::Frame& other = selection.instances[i.instance].frames[i.frame];
    stored.shared = stored.shared && layout.kind == dicom::SampleKind::kInteger && layout.bits_stored <= 16 &&
                    layout.is_signed == stored.is_signed && other.slope == stored.slope &&
                    other.intercept == stored.intercept;
    stored.bits = std::max(stored.bits, layout.bits_stored);
  }
  return stored;
}

// The attributes that tell the times of two images apart.
std::vector<std::string> TimesOf(DcmItem& item) {
  std::vector<std::string> times;
  for (const Attribute& attribute :
       {Attribute{DCM_AcquisitionDate, ""}, Attribute{DCM_AcquisitionTime, ""}, Attribute{DCM_FrameReferenceTime, ""},
        Attribute{DCM_ActualFrameDuration, ""}, Attribute{DCM_DecayFactor, ""}}) {
    times.push_back(dicom::Text(item, attribute));
  }
  return times;
}

// Numbers the instances in the order in which the stack first names them.
std::map<size_t, int> NumberInstances(const dicom::Stack& stack) {
  std::map<size_t, int> numbers;
  for (const dicom::FrameIndex i : stack.frames) numbers.emplace(i.instance, static_cast<int>(numbers.size()));
  return numbers;
}

void TakePlanes(const dicom::Selection& selection, const std::map<size_t, int>& numbers, DicomReference* reference) {
  reference->has_planes = !selection.grid.resample;
  if (!reference->has_planes) return;
  reference->geometry = selection.grid.geometry;
  reference->instance_of_plane.assign(static_cast<size_t>(selection.grid.geometry.size.z), -1);
  reference->frame_of_plane.assign(reference->instance_of_plane.size(), 0);
  for (size_t k = 0; k < selection.stack.frames.size(); ++k) {
    const dicom::FrameIndex from = selection.stack.frames[k];
    const dicom::Instance& instance = selection.instances[from.instance];
    const auto plane = static_cast<size_t>(selection.grid.planes[k]);
    reference->instance_of_plane[plane] = numbers.at(from.instance);
    if (instance.layout.frames == 1) continue;
    reference->frame_of_plane[plane] = static_cast<int>(instance.frames[from.frame].stored) + 1;
  }
}

}  // namespace

absl::StatusOr<DicomReference> DicomReference::Read(const std::string& path, const DicomOptions& options) {
  DicomOptions any_spacing = options;
  any_spacing.resample = true;
  INTRAWARP_ASSIGN_OR_RETURN(const dicom::Selection selection, dicom::SelectVolume(path, any_spacing));
  const std::map<size_t, int> numbers = NumberInstances(selection.stack);
  DicomReference reference;
  reference.instances.resize(numbers.size());
  std::set<std::pair<std::string, std::string>> owners;
  std::set<std::vector<std::string>> times;
  for (const auto& [index, number] : numbers) {
    INTRAWARP_ASSIGN_OR_RETURN(dicom::Dataset dataset, Reopen(selection.instances[index], options.limits));
    INTRAWARP_ASSIGN_OR_RETURN(reference.instances[number].sop_class, Uid(*dataset.data, kSopClass));
    INTRAWARP_ASSIGN_OR_RETURN(reference.instances[number].sop_instance, Uid(*dataset.data, kSopInstance));
    owners.insert({dicom::Text(*dataset.data, {DCM_PatientID, "PatientID"}), dicom::Text(*dataset.data, kStudy)});
    if (owners.size() > 1) {
      return FieldError(absl::StatusCode::kInvalidArgument, "patient",
                        "the files of the series are of several patients or studies");
    }
    times.insert(TimesOf(*dataset.data));
    if (number == 0) INTRAWARP_RETURN_IF_ERROR(TakeHeader(std::move(dataset), &reference));
  }
  TakePlanes(selection, numbers, &reference);
  reference.modality = selection.entry.provenance.modality;
  reference.stored = StoredValuesOf(selection);
  const dicom::Instance& one = selection.instances[selection.stack.frames[0].instance];
  reference.is_inverted = one.is_inverted;
  reference.is_of_one_time = times.size() == 1;
  const dicom::FrameIndex first = selection.stack.frames[0];
  reference.segment = selection.instances[first.instance].frames[first.frame].segment;
  return reference;
}

absl::Status CheckSamePatient(const DicomReference& fixed, const DicomReference& moving) {
  const auto both = [&](const Attribute& attribute) {
    return std::make_pair(dicom::Text(*fixed.header, attribute), dicom::Text(*moving.header, attribute));
  };
  const auto [id, other_id] = both({DCM_PatientID, "PatientID"});
  const auto [issuer, other_issuer] = both({DCM_IssuerOfPatientID, "IssuerOfPatientID"});
  const auto [name, other_name] = both({DCM_PatientName, "PatientName"});
  const bool same_issuer = issuer.empty() || other_issuer.empty() || issuer == other_issuer;
  if (id == other_id && same_issuer && (!id.empty() || name == other_name)) return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, "patient",
                    "the fixed and the moving series are of different patients");
}

std::string NewDicomUid() {
  uint8_t bytes[16];
  size_t done = 0;
  while (done < sizeof(bytes)) {
    const ssize_t got = getrandom(bytes + done, sizeof(bytes) - done, 0);
    if (got > 0) done += static_cast<size_t>(got);
  }
  bytes[6] = static_cast<uint8_t>((bytes[6] & 0x0f) | 0x40);  // version 4: random
  bytes[8] = static_cast<uint8_t>((bytes[8] & 0x3f) | 0x80);  // RFC 4122's variant
  unsigned __int128 number = 0;
  for (const uint8_t b : bytes) number = number << 8 | b;
  std::string digits;
  for (; number != 0; number /= 10) digits.push_back(static_cast<char>('0' + static_cast<int>(number % 10)));
  std::reverse(digits.begin(), digits.end());
  return absl::StrCat("2.25.", digits);
}

}  // namespace intrawarp::io
