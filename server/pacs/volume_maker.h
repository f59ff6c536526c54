// SPDX-License-Identifier: Apache-2.0
// VolumeMaker: turns series of the spool that are ready into resident volumes, one series at a time, on a thread of its
// own, of lower priority than the rest of the server. The files of an import go with it; others are settled in the
// spool (instance_spool.h). A series for which there is no memory now, or whose making a stop ends, goes back into the
// spool: what a sender was told to be stored stays.
//
// A series that an import has gathered is handed over whole, and does not wait to be quiet. Where there is no memory
// for it now, it is tried again for a minute, while others have their turn; then the import has the error.
//
// A volume's id is dicom-MODALITY-HASH, where HASH is the first 16 digits of the hash of its series' UID; further
// volumes of the series (phases, orientations) have -2, -3 and so on behind it, in the order of io::ListDicom. A series
// that comes again makes the same ids: the same volume is not an error. Where another volume has the id, since more
// images of the series have come or another patient has its UID, -v2, -v3 and so on stand behind it, and the volume
// that is there stays as it is.
//
// No volume is made of fewer images than they announce themselves. Where neither they nor an archive say how many there
// are, the volume is provisional (volume.proto).
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
#include "server/context/server_context.h"
#include "server/pacs/instance_spool.h"
#include "server/pacs/pacs_metrics.h"
#include "server/pacs/put_volume.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {

// The outcome of a series.
struct SeriesOutcome {
  SeriesKey key;
  std::vector<std::string> volumes;  // "volumes/{id}"
  // The first refusal, when there was one.
  absl::Status status;
};

// For whom a series' volumes are made.
struct SeriesOrder {
  std::string owner;
  v1::ProvenanceSource source = v1::PROVENANCE_SOURCE_STORAGE;
  // Whether somebody has said how many images there are, and all have come.
  bool is_complete = false;
  // Asked now and then: whether nobody wants the volumes any more. Empty: never.
  std::function<bool()> cancelled;
  // Called once. Empty: nobody waits.
  std::function<void(const SeriesOutcome&)> done;
};

class VolumeMaker {
 public:
  // The owner of the volumes of a series of the spool. nullopt: nobody wants them any more.
  using OwnerFn = std::function<std::optional<std::string>(const SeriesKey&)>;

  // Starts the thread. `reading`: memory to read files; empty: there is enough. The references outlive it.
  VolumeMaker(ServerContext& context, InstanceSpool& spool, const PacsMetrics& metrics, AuditTrail& audit,
              OwnerFn owner, io::DicomRoomFn reading = {});
  // Does the same as Stop.
  ~VolumeMaker() { Stop(); }

  // Makes the volumes of a whole series that somebody waits for, before those of the spool. `order.done` is called on
  // the thread, or here after Stop, once the files are gone.
  void Make(std::unique_ptr<GatheredSeries> series, SeriesOrder order);
  // Ends what is under way, without its volumes, and the thread. Idempotent.
  void Stop();

 private:
  struct Ordered {
    std::unique_ptr<GatheredSeries> series;
    SeriesOrder order;
    // Nobody waits for the series: it is put back into the spool where it cannot be made now.
    bool is_of_spool = false;
    std::chrono::steady_clock::time_point not_before{};
    // The last time that it is tried again.
    std::chrono::steady_clock::time_point end{};
  };
  // The outcome of a series in one go.
  struct Attempt {
    SeriesOutcome outcome;
    // Volumes that may be made later. Nobody has been told of them.
    struct Failure {
      std::string id;
      absl::Status status;
      std::chrono::nanoseconds elapsed;
    };
    std::vector<Failure> failures;
  };

  void Loop();
  std::optional<Ordered> Next();
  bool IsUnwanted(const SeriesOrder& order) const { return stopping_ || (order.cancelled && order.cancelled()); }
  void Serve(Ordered ordered);
  Attempt MakeVolumes(GatheredSeries& series, const SeriesOrder& order);
  Attempt MakeAll(GatheredSeries& series, const SeriesOrder& order);
  absl::Status MakeOne(GatheredSeries& series, const SeriesOrder& order, size_t index, const io::DicomEntry& entry,
                       const std::function<absl::StatusOr<io::DicomVolume>()>& read, Attempt& attempt);
  absl::StatusOr<PutResult> Put(NewVolume& volume);
  bool Defer(Ordered& ordered, const absl::Status& why);
  void TellDropped();
  void Record(const GatheredSeries& series, const std::string& owner, const std::string& id,
              const absl::StatusOr<PutResult>& put, std::chrono::nanoseconds elapsed);

  ServerContext& context_;
  InstanceSpool& spool_;
  const PacsMetrics& metrics_;
  AuditTrail& audit_;
  const OwnerFn owner_;
  const io::DicomRoomFn reading_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool woken_ = false;
  int64_t dropped_ = 0;  // instances of the spool, told so far
  std::deque<Ordered> ordered_;
  std::thread thread_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_VOLUME_MAKER_H_
