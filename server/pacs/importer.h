// SPDX-License-Identifier: Apache-2.0
// Importer: brings series from archives as operations, and lets archives be asked. A few imports run at once, on
// threads of lower priority than the rest of the server; those of one series of an archive run one after the other.
//
// An import's instances lie in the spool until all have come and the volumes are made. What the first volumes of a
// series were, when a later one is refused, stays.
//
// Thread safety: safe for concurrent use, except that Stop and destruction are the owner's.
#ifndef INTRAWARP_SERVER_PACS_IMPORTER_H_
#define INTRAWARP_SERVER_PACS_IMPORTER_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "io/dicom/dicom.h"
#include "server/base/worker_pool.h"
#include "server/operation/operation_table.h"
#include "server/pacs/instance_spool.h"
#include "server/pacs/pacs_metrics.h"
#include "server/pacs/remotes.h"
#include "server/pacs/series_intake.h"
#include "server/pacs/series_source.h"
#include "server/pacs/volume_maker.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {

struct Archive {
  Remote remote;
  std::unique_ptr<SeriesSource> source;
};

// Who imports which series.
struct SeriesImport {
  const Archive* archive = nullptr;
  SeriesName name;
  std::string owner;
  std::shared_ptr<OperationWork> work;
};

class Importer {
 public:
  // `reading`: memory to read an instance. The references outlive it.
  Importer(std::vector<Archive> archives, InstanceSpool& spool, VolumeMaker& maker, const PacsMetrics& metrics,
           AuditTrail& audit, io::DicomRoomFn reading);
  // Calls Stop.
  ~Importer();

  const std::vector<Archive>& archives() const { return archives_; }
  // NOT_FOUND RESOURCE_NOT_FOUND "remotes/{name}".
  absl::StatusOr<const Archive*> Find(absl::string_view name) const;

  // Begins an import, which ends its work.
  void Begin(SeriesImport import);

  // Runs a question to an archive on another thread, soon. QUEUE_FULL; SERVER_STOPPING.
  absl::Status Ask(std::function<void()> question);
  // Whether questions under way should end.
  bool stopping() const { return stopping_; }

  int64_t running() const;
  int64_t waiting() const;

  // Gives imports until `end`, then cancels them, and ends the questions. Idempotent.
  void Stop(std::chrono::steady_clock::time_point end);

 private:
  struct Job {
    SeriesImport import;
    std::atomic<bool> cancelled{false};
    std::shared_ptr<SeriesIntake> intake;  // once it runs; with the mutex held

    std::pair<std::string, std::string> key() const { return {import.archive->remote.name, import.name.series}; }
  };

  void Loop();
  std::shared_ptr<Job> Next();
  void Cancel(const std::shared_ptr<Job>& job);
  void Run(Job& job);
  absl::StatusOr<std::vector<std::string>> Bring(Job& job, IntakeProgress& progress);
  absl::StatusOr<std::vector<std::string>> MakeVolumes(Job& job, SeriesIntake& intake);
  void End(Job& job, const absl::StatusOr<std::vector<std::string>>& made, const IntakeProgress& progress,
           std::chrono::nanoseconds elapsed);

  const std::vector<Archive> archives_;
  InstanceSpool& spool_;
  VolumeMaker& maker_;
  const PacsMetrics& metrics_;
  AuditTrail& audit_;
  const io::DicomRoomFn reading_;
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> waiting_;
  std::set<std::shared_ptr<Job>> running_;
  std::atomic<int> asked_{0};
  WorkerPool questions_;
  std::vector<std::thread> threads_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_IMPORTER_H_
