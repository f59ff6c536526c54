// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/series_query.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "server/dimse/pdu.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

constexpr size_t kMaxKeyBytes = 256;

// A backslash would make a list of values.
absl::Status CheckText(const char* field, const std::string& text) {
  const bool is_clean = std::none_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f || c == '\\';
  });
  if (is_clean && text.size() <= kMaxKeyBytes) return absl::OkStatus();
  return InvalidField(field, "must be at most 256 bytes without control characters and backslashes");
}

absl::Status CheckDate(const char* field, const std::string& date) {
  const bool is_date = date.size() == 8 && date.find_first_not_of("0123456789") == std::string::npos &&
                       date.substr(4, 2) >= "01" && date.substr(4, 2) <= "12" && date.substr(6) >= "01" &&
                       date.substr(6) <= "31";
  return date.empty() || is_date ? absl::OkStatus() : InvalidField(field, "must be a date as YYYYMMDD");
}

absl::Status CheckUid(const char* field, const std::string& uid) {
  return dimse::IsUid(uid)
             ? absl::OkStatus()
             : InvalidField(field,
                            "must be a UID: 1 to 64 digits and dots, no number of it empty or with a leading zero");
}

bool Narrows(const std::string& text) { return text.find_first_not_of("*?^ ") != std::string::npos; }

// Whether the key could read the value of a known study letter by letter.
absl::Status CheckHiddenKeys(const SeriesQuery& query) {
  bool is_narrowed = !query.study.empty();
  for (const auto& [field, value] : {std::pair<const char*, const std::string&>{"patient_id", query.patient_id},
                                     {"patient_name", query.patient_name},
                                     {"accession_number", query.accession_number}}) {
    if (value.empty()) continue;
    if (value.find_first_of("*?") != std::string::npos) {
      return InvalidField(field, "must be a whole value, without wildcards, for callers who may not see patients");
    }
    if (is_narrowed) {
      return InvalidField(field,
                          "must stand without study_uid and other such keys for callers who may not see patients");
    }
    is_narrowed = true;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckQuery(const SeriesQuery& query, bool sees_patients) {
  if (!query.study.empty()) INTRAWARP_RETURN_IF_ERROR(CheckUid("study_uid", query.study));
  INTRAWARP_RETURN_IF_ERROR(CheckText("patient_id", query.patient_id));
  INTRAWARP_RETURN_IF_ERROR(CheckText("patient_name", query.patient_name));
  INTRAWARP_RETURN_IF_ERROR(CheckText("accession_number", query.accession_number));
  INTRAWARP_RETURN_IF_ERROR(CheckDate("date_from", query.date_from));
  INTRAWARP_RETURN_IF_ERROR(CheckDate("date_to", query.date_to));
  const bool is_modality =
      query.modality.size() <= 16 && std::all_of(query.modality.begin(), query.modality.end(), [](char c) {
        return absl::ascii_isupper(static_cast<unsigned char>(c)) || absl::ascii_isdigit(static_cast<unsigned char>(c));
      });
  if (!is_modality) return InvalidField("modality", "must be a term of DICOM such as CT or MR");
  if (query.max_series < 1 || query.max_series > kMaxSeriesMatches) {
    return InvalidField("max_series", absl::StrCat("must be 1 to ", kMaxSeriesMatches));
  }
  if (!sees_patients) INTRAWARP_RETURN_IF_ERROR(CheckHiddenKeys(query));
  const bool narrows = !query.study.empty() || Narrows(query.patient_id) || Narrows(query.patient_name) ||
                       Narrows(query.accession_number) || !query.date_from.empty();
  if (narrows) return absl::OkStatus();
  return InvalidField("patient_id", "or a name, an accession number, a study or the first date must be given");
}

absl::Status CheckSeriesName(const SeriesName& name) {
  INTRAWARP_RETURN_IF_ERROR(CheckUid("study_uid", name.study));
  return CheckUid("series_uid", name.series);
}

}  // namespace intrawarp::server
