// SPDX-License-Identifier: Apache-2.0
// Checks of what a client asks an archive for. Thread-safe functions.
#ifndef INTRAWARP_SERVER_PACS_SERIES_QUERY_H_
#define INTRAWARP_SERVER_PACS_SERIES_QUERY_H_

#include "absl/status/status.h"
#include "server/pacs/series_source.h"

namespace intrawarp::server {

// The most that SeriesQuery::max_series may be.
inline constexpr int kMaxSeriesMatches = 1000;

// INVALID_ARGUMENT names the field (study_uid, patient_id, patient_name, accession_number, date_from, date_to,
// modality, max_series) for a value that DICOM does not allow there, and for a query that would list a whole archive:
// it needs a study, a patient, an accession number or a date, and not of wildcards alone. No message repeats a value.
//
// A search tells whether its keys fit. For a caller who may not see patients (`sees_patients`), keys that an answer
// does not show (patient_id, patient_name, accession_number) must therefore be whole values, without wildcards, and one
// of them may not stand beside a study or another one of them.
absl::Status CheckQuery(const SeriesQuery& query, bool sees_patients);

// INVALID_ARGUMENT names study_uid or series_uid.
absl::Status CheckSeriesName(const SeriesName& name);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_SERIES_QUERY_H_
