// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/agreement.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "io/file/file.h"

namespace intrawarp::io::dicom {
namespace {

struct Image {
  const Instance* instance = nullptr;
  const Frame* frame = nullptr;

  uint32_t given() const { return instance->given | frame->given; }
};

// What the reader makes of an attribute, also of one that is not there.
struct Rule {
  GivenAttribute attribute;
  const char* field;
  const char* keyword;
  std::string (*value)(const Image&);
};

const Rule kRules[] = {
    {kGivenSlope, "rescale", "RescaleSlope", [](const Image& i) { return FormatDouble(i.frame->slope); }},
    {kGivenIntercept, "rescale", "RescaleIntercept", [](const Image& i) { return FormatDouble(i.frame->intercept); }},
    {kGivenBitsStored, "bits", "BitsStored",
     [](const Image& i) { return absl::StrCat(i.instance->layout.bits_stored); }},
    {kGivenHighBit, "bits", "HighBit", [](const Image& i) { return absl::StrCat(i.instance->layout.high_bit); }},
    {kGivenRepresentation, "bits", "PixelRepresentation",
     [](const Image& i) { return absl::StrCat(i.instance->layout.is_signed); }},
    {kGivenPlane, "position", "ImagePositionPatient", [](const Image& i) { return absl::StrCat(i.frame->has_plane); }},
    {kGivenFrameOfReference, "series", "FrameOfReferenceUID",
     [](const Image& i) { return i.instance->provenance.frame_of_reference; }},
    {kGivenModality, "series", "Modality", [](const Image& i) { return i.instance->provenance.modality; }},
    {kGivenKind, "series", "ImageType", [](const Image& i) { return i.frame->kind; }},
    {kGivenEchoTime, "echo_time", "EchoTime", [](const Image& i) { return FormatDouble(i.frame->echo_time); }},
};

using Group = std::vector<Image>;

absl::Status CheckRule(const Rule& rule, const Group& group) {
  std::set<std::string> given, otherwise;
  size_t lacking = 0;
  for (const Image& image : group) {
    const bool has = (image.given() & rule.attribute) != 0;
    lacking += has ? 0 : 1;
    (has ? given : otherwise).insert(rule.value(image));
  }
  if (given.empty() || otherwise.empty() || given == otherwise) return absl::OkStatus();
  // Few images with an echo time beside others without are a volume of their own.
  if (rule.attribute == kGivenEchoTime && 2 * lacking > group.size()) return absl::OkStatus();
  return FieldError(
      absl::StatusCode::kInvalidArgument, rule.field,
      absl::StrCat(rule.keyword, " is missing in ", lacking, " of ", group.size(), " images of the series"));
}

// Attributes of which all images have a value, or none has, cost no look at the values.
absl::Status CheckRules(const Group& group, uint32_t attributes) {
  uint32_t any = 0, all = ~0U;
  for (const Image& image : group) {
    any |= image.given();
    all &= image.given();
  }
  for (const Rule& rule : kRules) {
    if ((any & ~all & attributes & rule.attribute) == 0) continue;
    if (absl::Status status = CheckRule(rule, group); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckInversion(const Group& group) {
  const auto inverted =
      std::count_if(group.begin(), group.end(), [](const Image& image) { return image.instance->is_inverted; });
  if (inverted == 0 || inverted == static_cast<std::ptrdiff_t>(group.size())) return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, "photometric",
                    absl::StrCat(inverted, " of ", group.size(), " images of the series are MONOCHROME1"));
}

}  // namespace

std::map<std::string, absl::Status> Contradictions(const std::vector<Instance>& instances) {
  // Images of one series, class and size; with the kind and without it: an image may lack its kind.
  std::map<std::tuple<std::string, std::string, int, int, std::string>, Group> of_kind, of_size;
  for (const Instance& instance : instances) {
    if (!instance.has_image || !instance.status.ok()) continue;
    const std::string& series = instance.provenance.series;
    for (const Frame& frame : instance.frames) {
      of_kind[{series, instance.sop_class, frame.columns, frame.rows, frame.kind}].push_back({&instance, &frame});
      of_size[{series, instance.sop_class, frame.columns, frame.rows, ""}].push_back({&instance, &frame});
    }
  }
  std::map<std::string, absl::Status> found;
  for (const auto& [key, group] : of_size) found[std::get<0>(key)].Update(CheckRules(group, kGivenKind));
  for (const auto& [key, group] : of_kind) {
    absl::Status& status = found[std::get<0>(key)];
    status.Update(CheckRules(group, ~uint32_t{kGivenKind}));
    status.Update(CheckInversion(group));
  }
  std::erase_if(found, [](const auto& entry) { return entry.second.ok(); });
  return found;
}

}  // namespace intrawarp::io::dicom
