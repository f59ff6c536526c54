// SPDX-License-Identifier: Apache-2.0
#include "io/dicomweb/dicom_json.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/oid.h"
#include "engine/base/status_macros.h"

namespace intrawarp::dicomweb {
namespace {

using Json = nlohmann::json;

constexpr char kStudyUid[] = "0020000D";
constexpr char kSeriesUid[] = "0020000E";
constexpr char kModality[] = "00080060";
constexpr char kSopInstance[] = "00080018";
constexpr char kSeriesInstances[] = "00201209";
constexpr char kStudyDate[] = "00080020";
constexpr char kStudyTime[] = "00080030";
constexpr char kStudyDescription[] = "00081030";
constexpr char kSeriesDescription[] = "0008103E";
constexpr char kPatientName[] = "00100010";
constexpr char kPatientId[] = "00100020";
constexpr char kPatientBirthDate[] = "00100030";
constexpr char kSeriesNumber[] = "00200011";
constexpr char kFailureReason[] = "00081197";
constexpr char kFailedSequence[] = "00081198";
constexpr char kReferencedSequence[] = "00081199";
constexpr char kOtherFailuresSequence[] = "0008119A";
constexpr char kWarningReason[] = "00081196";

constexpr size_t kMaxTextBytes = 256;

absl::Status Broken(absl::string_view why) { return FieldError(absl::StatusCode::kDataLoss, "json", why); }

// Brackets outside of strings make the depth; they and commas bound the number of values.
absl::Status CheckBounds(absl::string_view text) {
  int depth = 0;
  int64_t values = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
      continue;
    }
    in_string = c == '"';
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (c == ',' || c == '[' || c == '{') ++values;
    if (depth > kMaxJsonDepth) return FieldError(absl::StatusCode::kResourceExhausted, "json", "is nested too deeply");
    if (values > kMaxJsonValues) return FieldError(absl::StatusCode::kResourceExhausted, "json", "has too many values");
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> Parse(absl::string_view text) {
  INTRAWARP_RETURN_IF_ERROR(CheckBounds(text));
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Broken("is cut short or malformed");
  return json;
}

// The values of an element; null where there are none.
const Json* ValuesOf(const Json& dataset, const char* tag) {
  if (!dataset.is_object()) return nullptr;
  const auto element = dataset.find(tag);
  if (element == dataset.end() || !element->is_object()) return nullptr;
  const auto values = element->find("Value");
  return values != element->end() && values->is_array() ? &*values : nullptr;
}

std::string TextOf(const Json& dataset, const char* tag) {
  const Json* values = ValuesOf(dataset, tag);
  if (values == nullptr || values->size() != 1 || !values->front().is_string()) return "";
  return values->front().get<std::string>();
}

// Servers write numbers of IS and US as numbers or as texts.
std::optional<int64_t> NumberOf(const Json& dataset, const char* tag) {
  const Json* values = ValuesOf(dataset, tag);
  if (values == nullptr || values->size() != 1) return std::nullopt;
  const Json& value = values->front();
  int64_t number = 0;
  if (value.is_string() && absl::SimpleAtoi(value.get<std::string>(), &number)) return number;
  if (!value.is_number_integer()) return std::nullopt;
  // A number above the largest one that is signed would come out negative.
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return std::nullopt;
  return value.get<int64_t>();
}

bool IsCode(absl::string_view text) {
  return text.size() <= 16 &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isupper(c) || absl::ascii_isdigit(c); });
}

// The bytes of the character that begins with this one, in valid UTF-8.
size_t CharacterBytes(char first) {
  const auto byte = static_cast<uint8_t>(first);
  return byte < 0xc0 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// C0, DEL, or C1, which a terminal may obey, too.
bool IsControl(absl::string_view character) {
  if (character.size() == 1) return absl::ascii_iscntrl(static_cast<unsigned char>(character[0]));
  return character[0] == '\xc2' && static_cast<uint8_t>(character[1]) < 0xa0;
}

// A text as a person may see it. nlohmann takes only valid UTF-8, whose characters are not cut in two.
std::string ShownText(absl::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const absl::string_view character = text.substr(0, CharacterBytes(text[0]));
    text.remove_prefix(character.size());
    if (IsControl(character)) continue;
    if (shown.size() + character.size() > kMaxTextBytes) break;
    shown.append(character.data(), character.size());
  }
  return shown;
}

std::string DigitsOf(const Json& dataset, const char* tag, size_t size) {
  const std::string text = TextOf(dataset, tag).substr(0, size);
  return std::all_of(text.begin(), text.end(), absl::ascii_isdigit) ? text : "";
}

// The alphabetic part of a person's name (PS3.18, section F.2.2).
std::string PersonOf(const Json& dataset, const char* tag) {
  const Json* values = ValuesOf(dataset, tag);
  if (values == nullptr || values->empty() || !values->front().is_object()) return "";
  const auto name = values->front().find("Alphabetic");
  return name != values->front().end() && name->is_string() ? ShownText(name->get<std::string>()) : "";
}

FoundSeries SeriesOf(const Json& match) {
  FoundSeries series;
  series.study_uid = TextOf(match, kStudyUid);
  series.series_uid = TextOf(match, kSeriesUid);
  const std::string modality = TextOf(match, kModality);
  if (IsCode(modality)) series.modality = modality;
  series.study_date = DigitsOf(match, kStudyDate, 8);
  series.study_time = DigitsOf(match, kStudyTime, 6);
  series.study_description = ShownText(TextOf(match, kStudyDescription));
  series.series_description = ShownText(TextOf(match, kSeriesDescription));
  if (const std::optional<int64_t> number = NumberOf(match, kSeriesNumber)) {
    series.series_number = absl::StrCat(*number);
  }
  series.instances = std::max<int64_t>(NumberOf(match, kSeriesInstances).value_or(-1), -1);
  series.patient_id = ShownText(TextOf(match, kPatientId));
  series.patient_name = PersonOf(match, kPatientName);
  series.patient_birth_date = DigitsOf(match, kPatientBirthDate, 8);
  return series;
}

void CountFailures(const Json& dataset, const char* sequence, StoredInstances& stored) {
  const Json* items = ValuesOf(dataset, sequence);
  if (items == nullptr) return;
  for (const Json& item : *items) ++stored.failed[NumberOf(item, kFailureReason).value_or(0)];
}

}  // namespace

bool IsUid(absl::string_view text) { return IsOid(text); }

absl::StatusOr<FoundSeriesList> ParseFoundSeries(absl::string_view text) {
  INTRAWARP_ASSIGN_OR_RETURN(const Json json, Parse(text));
  if (!json.is_array()) return Broken("is not a list of matches");
  FoundSeriesList found;
  for (const Json& match : json) {
    FoundSeries series = SeriesOf(match);
    if (IsUid(series.study_uid) && IsUid(series.series_uid)) {
      found.series.push_back(std::move(series));
    } else {
      ++found.unusable;
    }
  }
  return found;
}

absl::StatusOr<std::vector<std::string>> ParseFoundInstances(absl::string_view text) {
  INTRAWARP_ASSIGN_OR_RETURN(const Json json, Parse(text));
  if (!json.is_array()) return Broken("is not a list of matches");
  std::set<std::string> uids;
  for (const Json& match : json) {
    const std::string uid = TextOf(match, kSopInstance);
    if (!IsUid(uid)) return Broken("holds a match without the UID of an instance");
    uids.insert(uid);
  }
  return std::vector<std::string>(uids.begin(), uids.end());
}

absl::StatusOr<StoredInstances> ParseStoredInstances(absl::string_view text) {
  INTRAWARP_ASSIGN_OR_RETURN(const Json json, Parse(text));
  // Some archives wrap the one data set into a list.
  const Json& dataset = json.is_array() && json.size() == 1 ? json.front() : json;
  if (!dataset.is_object()) return Broken("is not a data set");
  StoredInstances stored;
  if (const Json* items = ValuesOf(dataset, kReferencedSequence)) {
    stored.stored = static_cast<int64_t>(items->size());
    stored.with_warning = std::count_if(
        items->begin(), items->end(), [](const Json& item) { return NumberOf(item, kWarningReason).value_or(0) != 0; });
  }
  CountFailures(dataset, kFailedSequence, stored);
  CountFailures(dataset, kOtherFailuresSequence, stored);
  return stored;
}

}  // namespace intrawarp::dicomweb
