// SPDX-License-Identifier: Apache-2.0
// DimseSource: an archive that is asked by C-FIND and sends by C-GET or C-MOVE.
//
// A retrieval first asks which instances the series has: their number is known before the first one comes, a series
// that holds no images or too many is refused before anything is sent, and afterwards each must be there. By C-GET they
// come on the association that asks for them, in a presentation context for each transfer syntax, so that the archive
// need not convert any. By C-MOVE they come to the storage port (running_moves.h).
//
// Thread safety: safe for concurrent use; at most the remote's `associations` requests run, others wait.
#ifndef INTRAWARP_SERVER_PACS_DIMSE_SOURCE_H_
#define INTRAWARP_SERVER_PACS_DIMSE_SOURCE_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/dimse/association.h"
#include "server/dimse/connection.h"
#include "server/dimse/service_user.h"
#include "server/pacs/pacs_metrics.h"
#include "server/pacs/remotes.h"
#include "server/pacs/running_moves.h"
#include "server/pacs/series_intake.h"
#include "server/pacs/series_source.h"

namespace intrawarp::server {

class DimseSource final : public SeriesSource {
 public:
  struct Options {
    Remote remote;
    // The server's own.
    std::string ae_title;
    dimse::Patience patience;
    std::shared_ptr<const dimse::TlsContext> tls;  // null: none
  };

  // `newest`: the largest number of any association at the storage port. The references outlive the source.
  DimseSource(Options options, RunningMoves& moves, const PacsMetrics& metrics, std::function<int64_t()> newest)
      : options_(std::move(options)), moves_(moves), metrics_(metrics), newest_(std::move(newest)) {}

  absl::Status Echo(const SourceCall& call) override;
  absl::StatusOr<SeriesMatches> Find(const SeriesQuery& query, const SourceCall& call) override;
  absl::Status Retrieve(SeriesIntake& intake) override;

 private:
  struct Listed {
    std::set<std::string> instances;
    std::set<std::string> sop_classes;
  };
  class Turn;

  absl::StatusOr<std::unique_ptr<dimse::Association>> Open(const dimse::AssociateRequest& request,
                                                           const SourceCall& call) const;
  dimse::AssociateRequest RequestFor(const std::vector<const char*>& services) const;
  dimse::AssociateRequest GetRequest(const std::set<std::string>& sop_classes) const;
  dimse::RequestBounds BoundsOf(const SourceCall& call) const;
  absl::Status FindIn(dimse::ServiceUser& user, const SeriesQuery& query, const SourceCall& call,
                      SeriesMatches& matches) const;
  absl::Status FindSeries(dimse::ServiceUser& user, const SeriesQuery& query, const SeriesMatch& study,
                          const SourceCall& call, SeriesMatches& matches) const;
  absl::StatusOr<Listed> List(const SeriesName& name, const SourceCall& call) const;
  absl::Status CheckListed(const Listed& listed) const;
  absl::Status Get(SeriesIntake& intake, const Listed& listed, const SourceCall& call);
  absl::Status Move(SeriesIntake& intake, const Listed& listed, const SourceCall& call);
  absl::Status WaitForRest(const SeriesIntake& intake, const Listed& listed) const;

  const Options options_;
  RunningMoves& moves_;
  const PacsMetrics& metrics_;
  const std::function<int64_t()> newest_;
  std::mutex mutex_;
  std::condition_variable turn_;
  int open_ = 0;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_DIMSE_SOURCE_H_
