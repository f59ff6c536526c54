// SPDX-License-Identifier: Apache-2.0
// Two answers of a DICOMweb archive in the DICOM JSON model (PS3.18, annex F): the series that it found, and the
// instances that it stored. Nothing else of an answer is kept.
//
// Answers are taken for hostile: their nesting and the number of their values are bounded before they are parsed, and a
// value that is not of the kind that its tag has counts as absent. Errors are DATA_LOSS "json: ..." for a text that is
// no JSON of this kind and RESOURCE_EXHAUSTED "json: ..." above a bound; no message holds a text of the answer.
//
// Thread-safe functions, plain values.
#ifndef INTRAWARP_IO_DICOMWEB_DICOM_JSON_H_
#define INTRAWARP_IO_DICOMWEB_DICOM_JSON_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::dicomweb {

inline constexpr int kMaxJsonDepth = 32;
inline constexpr int64_t kMaxJsonValues = 1 << 20;

// As IsOid (engine/base/oid.h).
bool IsUid(absl::string_view text);

// The identifiers are pseudonyms of a patient, and texts may name one: neither goes into messages or logs. Texts are
// UTF-8 without control characters, of 256 bytes at most, and empty where the archive says nothing.
struct FoundSeries {
  std::string study_uid = {};
  std::string series_uid = {};
  // A code string (PS3.5, section 6.2) of capitals and digits, or empty.
  std::string modality = {};
  std::string study_date = {};  // eight digits
  std::string study_time = {};  // six digits or less
  std::string study_description = {};
  std::string series_description = {};
  std::string series_number = {};
  // NumberOfSeriesRelatedInstances; negative where the archive does not say.
  int64_t instances = -1;
  std::string patient_id = {};
  std::string patient_name = {};
  std::string patient_birth_date = {};
};

// The answer to a search for series. `matches` has one element for each match; an element without a study's or a
// series' UID is passed over and counted.
struct FoundSeriesList {
  std::vector<FoundSeries> series;
  int64_t unusable = 0;
};
absl::StatusOr<FoundSeriesList> ParseFoundSeries(absl::string_view text);

// The answer to a search for the instances of a series: their UIDs, each once. DATA_LOSS "json: ..." also for a match
// without one, since instances could be missing in the list then.
absl::StatusOr<std::vector<std::string>> ParseFoundInstances(absl::string_view text);

// The answer to a store request (PS3.18, section 10.5.3).
struct StoredInstances {
  int64_t stored = 0;
  // Stored instances that the archive warned about, for instance since it changed elements.
  int64_t with_warning = 0;
  // The number of instances that were not stored, by failure reason (PS3.18, table I.2-2); 0 where it does not say.
  std::map<int64_t, int64_t> failed;
};
absl::StatusOr<StoredInstances> ParseStoredInstances(absl::string_view text);

}  // namespace intrawarp::dicomweb

#endif  // INTRAWARP_IO_DICOMWEB_DICOM_JSON_H_
