// SPDX-License-Identifier: Apache-2.0
// VolumeMaker: turns series of the spool that are ready into resident volumes, one series at a time, on a thread of its
// own, of lower priority than the rest of the server. The files go with the series.
//
// A series that an import has gathered is handed over whole, and does not wait to be quiet.
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
#include <deque>
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

// For whom a series' volumes are made.
struct SeriesOrder {
  std::string owner;
  // Asked now and then: whether nobody wants the volumes any more. Empty: never.
  std::function<bool()> cancelled;
  // Called once. Empty: nobody waits.
  std::function<void(const SeriesOutcome&)> done;
};

class VolumeMaker {
 public:
  // The owner of the volumes of a series of the spool.
  using OwnerFn = std::function<std::string(const SeriesKey&)>;

  // Starts the thread. The references outlive it.
  VolumeMaker(ServerContext& context, InstanceSpool& spool, DicomMetrics& metrics, AuditTrail& audit, OwnerFn owner);
  // As Stop.
  ~VolumeMaker() { Stop(); }

  // Makes the volumes of a whole series that somebody waits for, before those of the spool. `order.done` is called on
  // the thread, or here after Stop.
  void Make(std::unique_ptr<GatheredSeries> series, SeriesOrder order);
  // Ends what is under way, without its volumes, and the thread. Idempotent.
  void Stop();

 private:
  struct Ordered {
    std::unique_ptr<GatheredSeries> series;
    SeriesOrder order;
  };

  void Loop();
  std::optional<Ordered> Next();
  bool IsUnwanted(const SeriesOrder& order) const { return stopping_ || (order.cancelled && order.cancelled()); }
  void MakeVolumes(const GatheredSeries& series, const SeriesOrder& order);
  absl::Status MakeOne(const GatheredSeries& series, const SeriesOrder& order, size_t index,
                       const io::DicomEntry& entry, const std::function<absl::StatusOr<io::DicomVolume>()>& read,
                       SeriesOutcome& outcome);
  void Record(const GatheredSeries& series, const std::string& owner, const std::string& id,
              const absl::StatusOr<PutResult>& put, std::chrono::nanoseconds elapsed);

  ServerContext& context_;
  InstanceSpool& spool_;
  DicomMetrics& metrics_;
  AuditTrail& audit_;
  const OwnerFn owner_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Ordered> ordered_;
  std::thread thread_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_VOLUME_MAKER_H_
