// SPDX-License-Identifier: Apache-2.0
// SeriesSource: an archive that series are imported from, whatever protocol it speaks. The administrator names the
// archives and gives their addresses; a client names one of them.
//
// Errors of all calls: UNAVAILABLE when the archive is not there, breaks off or breaks the protocol;
// FAILED_PRECONDITION when it refuses, or a handshake of TLS fails; DEADLINE_EXCEEDED; CANCELLED; RESOURCE_EXHAUSTED
// for an answer above a bound. No message holds a text that the archive has sent.
//
// Thread safety: sources are safe for concurrent use; the structs are plain values.
#ifndef INTRAWARP_SERVER_PACS_SERIES_SOURCE_H_
#define INTRAWARP_SERVER_PACS_SERIES_SOURCE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace intrawarp::server {

class SeriesIntake;

// UIDs, 1 to 64 digits and dots.
struct SeriesName {
  std::string study;
  std::string series;

  friend bool operator==(const SeriesName&, const SeriesName&) = default;
};

// Empty members match everything. Checked by CheckQuery (series_query.h) before a source sees them.
struct SeriesQuery {
  std::string study;  // UID
  // Matched as DICOM matches them: * and ? stand for other characters.
  std::string patient_id;
  std::string patient_name;
  std::string accession_number;
  // YYYYMMDD, inclusive.
  std::string date_from;
  std::string date_to;
  // "CT". Matched exactly.
  std::string modality;
  // Whether the matches name their patient.
  bool with_patient = false;
  int max_series = 200;
};

// Texts are UTF-8 without control characters, empty where the archive says nothing.
struct SeriesMatch {
  SeriesName name;
  std::string modality;
  std::string study_date;  // YYYYMMDD
  std::string study_time;  // HHMMSS
  std::string study_description;
  std::string series_description;
  std::string series_number;
  int64_t instances = -1;  // -1: unknown
  // Empty unless the query asks for them.
  std::string patient_id;
  std::string patient_name;
  std::string patient_birth_date;
};

struct SeriesMatches {
  std::vector<SeriesMatch> series;
  // There are more than the query's max_series.
  bool truncated = false;
};

// How long a caller waits.
struct SourceCall {
  std::chrono::steady_clock::time_point end = std::chrono::steady_clock::time_point::max();
  // Asked several times a second, also while nothing comes. Empty: never.
  std::function<bool()> cancelled;

  bool is_cancelled() const { return cancelled && cancelled(); }
};

// The error of a source as callers see it: one without a reason has that of archives which stands for its code
// (ARCHIVE_UNAVAILABLE, ..., error.proto).
absl::Status ForCaller(const absl::Status& status);
// An error of the spool: SPOOL_FULL and SPOOL_UNAVAILABLE.
absl::Status OfSpool(const absl::Status& status);
// FAILED_PRECONDITION ARCHIVE_IDENTITY_REFUSED.
absl::Status IdentityRefused(absl::string_view why);

class SeriesSource {
 public:
  virtual ~SeriesSource() = default;

  // Whether the archive is there and serves us.
  virtual absl::Status Echo(const SourceCall& call) = 0;
  virtual absl::StatusOr<SeriesMatches> Find(const SeriesQuery& query, const SourceCall& call) = 0;
  // Brings every instance of intake.name() to the intake, and tells it how many there will be as soon as that is known.
  // OK: all are there. NOT_FOUND: the archive has no such series. DATA_LOSS: instances are missing. UNIMPLEMENTED: the
  // series holds objects that are not images. RESOURCE_EXHAUSTED: there is no room for it. CANCELLED: the intake is,
  // and the archive was told to stop.
  virtual absl::Status Retrieve(SeriesIntake& intake) = 0;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_SERIES_SOURCE_H_
