// SPDX-License-Identifier: Apache-2.0
// VolumeMaker: turns series of the spool that are ready into resident volumes, one series at a time, on a thread of its
// own, of lower priority than the rest of the server. The files go with the series. A series for which there is no
// memory now, or whose making a stop ends, goes back into the spool: what a sender was told to be stored stays.
//
// A volume's id is dicom-MODALITY-HASH, where HASH is the first 16 digits of the hash of its series' UID; further
// volumes of the series (phases, orientations) have -2, -3 and so on behind it, in the order of io::ListDicom. A series
// that comes again makes the same ids: the same volume is no error, another one is RESOURCE_EXISTS.
//
// Thread safety: safe for concurrent use, except that Stop and destruction are the owner's.
#ifndef INTRAWARP_SERVER_PACS_VOLUME_MAKER_H_
#define INTRAWARP_SERVER_PACS_VOLUME_MAKER_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/dicom/dicom.h"
#include "server/pacs/dicom_metrics.h"
#include "server/pacs/instance_spool.h"
#include "server/pacs/put_volume.h"
#include "server/rpc/audit_trail.h"
#include "server/server_context.h"

namespace intrawarp::server {

// What became of a series.
struct SeriesOutcome {
  SeriesKey key;
  std::vector<std::string> volumes;  // "volumes/{id}"
  // The first refusal, when there was one.
  absl::Status status;
};

class VolumeMaker {
 public:
  // The owner of a series' volumes. nullopt: nobody wants them any more.
  using OwnerFn = std::function<std::optional<std::string>(const SeriesKey&)>;
  using DoneFn = std::function<void(const SeriesOutcome&)>;

  // Starts the thread. `reading`: memory to read files; empty: there is enough. The references outlive it. `done` is
  // called on it, once for each series that leaves the spool.
  VolumeMaker(ServerContext& context, InstanceSpool& spool, DicomMetrics& metrics, AuditTrail& audit, OwnerFn owner,
              DoneFn done, io::DicomRoomFn reading = {});
  // As Stop.
  ~VolumeMaker() { Stop(); }

  // Looks for a series that is ready now.
  void Wake();
  // Ends what is under way, without its volumes, and the thread. Idempotent.
  void Stop();

 private:
  void Loop();
  void Make(std::unique_ptr<GatheredSeries> series);
  SeriesOutcome MakeAll(GatheredSeries& series, const std::string& owner);
  void Defer(std::unique_ptr<GatheredSeries> series, const absl::Status& why);
  absl::Status MakeOne(GatheredSeries& series, const std::string& owner, size_t index, const io::DicomEntry& entry,
                       const std::function<absl::StatusOr<io::DicomVolume>()>& read, SeriesOutcome& outcome);
  void Record(const GatheredSeries& series, const std::string& owner, const std::string& id,
              const absl::StatusOr<PutResult>& put, std::chrono::nanoseconds elapsed);

  ServerContext& context_;
  InstanceSpool& spool_;
  DicomMetrics& metrics_;
  AuditTrail& audit_;
  const OwnerFn owner_;
  const DoneFn done_;
  const io::DicomRoomFn reading_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool woken_ = false;
  std::thread thread_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_VOLUME_MAKER_H_
