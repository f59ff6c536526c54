// SPDX-License-Identifier: Apache-2.0
// DicomwebSource: an archive that is asked by QIDO-RS and sends by WADO-RS (io/dicomweb).
//
// A retrieval first asks how many instances the series has; where the archive says so, as many different ones must have
// come afterwards. Instances come in one answer, in the transfer syntax in which the archive holds them, and go into
// the intake one after the other.
// FAILED_PRECONDITION stands also for a file of a token or of authorities that cannot be used.
//
// Thread safety: safe for concurrent use; each call has a connection of its own.
#ifndef INTRAWARP_SERVER_PACS_DICOMWEB_SOURCE_H_
#define INTRAWARP_SERVER_PACS_DICOMWEB_SOURCE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/dicomweb/archive.h"
#include "server/pacs/pacs_metrics.h"
#include "server/pacs/peers.h"
#include "server/pacs/series_intake.h"
#include "server/pacs/series_source.h"

namespace intrawarp::server {

class DicomwebSource final : public SeriesSource {
 public:
  // `http.timeout` bounds a retrieval whose intake has no deadline. A series has `limits.max_instances` and
  // `limits.max_bytes` at most. Every search and retrieval is counted by `metrics`, which outlives the source.
  // INVALID_ARGUMENT as dicomweb::HttpClient::Create.
  static absl::StatusOr<std::unique_ptr<DicomwebSource>> Create(dicomweb::HttpOptions http, const DicomPeer& limits,
                                                                const PacsMetrics& metrics);

  absl::Status Echo(const SourceCall& call) override;
  absl::StatusOr<SeriesMatches> Find(const SeriesQuery& query, const SourceCall& call) override;
  absl::Status Retrieve(SeriesIntake& intake) override;

 private:
  DicomwebSource(dicomweb::HttpOptions http, const DicomPeer& limits, const PacsMetrics& metrics)
      : http_(std::move(http)), limits_(limits), metrics_(metrics) {}
  absl::StatusOr<std::unique_ptr<dicomweb::Archive>> Open(const SourceCall& call) const;
  absl::StatusOr<dicomweb::SeriesFound> Search(dicomweb::Archive& archive, const dicomweb::SeriesQuery& query) const;
  // The instances of a series that was found.
  absl::Status Bring(dicomweb::Archive& archive, const dicomweb::FoundSeries& series, SeriesIntake& intake) const;
  absl::StatusOr<std::vector<std::string>> ListOf(dicomweb::Archive& archive,
                                                  const dicomweb::FoundSeries& series) const;

  const dicomweb::HttpOptions http_;
  const DicomPeer limits_;
  const PacsMetrics& metrics_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_DICOMWEB_SOURCE_H_
