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
absl::Status CheckQuery(const SeriesQuery& query);

// INVALID_ARGUMENT names study_uid or series_uid.
absl::Status CheckSeriesName(const SeriesName& name);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_SERIES_QUERY_H_
