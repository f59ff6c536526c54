// SPDX-License-Identifier: Apache-2.0
// StorageScp: the port on which peers send images (C-STORE) and ask whether it is there (C-ECHO). An image goes into
// the spool as it comes; its header is read once it is whole, so that an instance that the reader cannot use is refused
// to its sender. An instance that the server has asked for by C-MOVE goes to the import that waits for it.
//
// Each association has a thread of its own, of lower priority than the rest of the server; there are max_associations
// of them, and some more that reject. Where all are taken, a connection that has asked for no association yet gives way
// to one of another address that has fewer such connections: no address keeps the others out by its silence. A peer is
// known by its AE title and its address, and with authorities also by its certificate. Texts from the network reach
// neither log nor audit.
//
// Thread safety: safe for concurrent use, except that Stop and destruction are the owner's.
#ifndef INTRAWARP_SERVER_PACS_STORAGE_SCP_H_
#define INTRAWARP_SERVER_PACS_STORAGE_SCP_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "io/dicom/dicom.h"
#include "server/base/tcp_listener.h"
#include "server/dimse/association.h"
#include "server/job/job_support.h"
#include "server/pacs/instance_spool.h"
#include "server/pacs/pacs_metrics.h"
#include "server/pacs/peers.h"
#include "server/pacs/running_moves.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {

// Lowers the calling thread's priority: frames come first.
void YieldToFrames();

// The services of storage that the reader has a use for, and their transfer syntaxes, the preferred ones first.
absl::Span<const char* const> StorageSopClasses();
absl::Span<const char* const> StorageTransferSyntaxes();

struct StoreTally {
  int64_t stored = 0;
  int64_t refused = 0;
  // The refused instances that may be slices of any series.
  int64_t unknown = 0;
  // The refused instances that are other ones than their UIDs say.
  int64_t contradicting = 0;
  int64_t bytes = 0;
};

// Where the instances of an association go.
class StoreTarget {
 public:
  virtual ~StoreTarget() = default;
  // An instance of this UID begins to come. An error refuses it, and nothing of it is kept.
  virtual absl::StatusOr<std::unique_ptr<SpooledFile>> Begin(const dimse::Command& request, const std::string& uid) = 0;
  // Takes a whole file of it, and counts it. INVALID_ARGUMENT: it cannot be understood; ALREADY_EXISTS: its UID is that
  // of another instance; other errors: no room.
  virtual absl::Status Keep(const std::string& uid, std::unique_ptr<SpooledFile> file) = 0;
  // No more than this part of it was taken: the association has ended, or there was no room. Null: none.
  virtual void BrokeOff(const std::string& uid, std::unique_ptr<SpooledFile> part) { (void)uid, (void)part; }
  // An instance was refused for this, at its beginning or later.
  virtual void Refused(const absl::Status& why) { (void)why; }
  // Whether not even the rest of the instance that comes is to be waited for. Asked for each piece of it.
  virtual bool abandons() { return false; }
};

// Receives the data set of a C-STORE request into the target, and responds. The errors of the association. An instance
// that was refused is not an error, and is counted. Its own series lacks it, as far as what came tells the series;
// pictures in colour and data sets without an image are not slices of any.
absl::Status ReceiveStore(dimse::Association& association, const dimse::ReceivedCommand& request, StoreTarget& target,
                          const PacsMetrics& metrics, StoreTally& tally);

class StorageScp {
 public:
  struct Options {
    std::string listen;  // HOST:PORT
    std::string ae_title;
    int max_associations = 32;
    dimse::Patience patience;
    std::shared_ptr<const dimse::TlsContext> tls;  // null: plain text
    io::DicomRoomFn reading;                       // memory to read an image; empty: there is enough
    // Throws std::system_error where the system has no thread left.
    std::function<std::thread(std::function<void()>)> start_thread = [](std::function<void()> run) {
      return std::thread(std::move(run));
    };
  };

  // Serves when it returns. All references outlive it. UNAVAILABLE when the port cannot be bound.
  static absl::StatusOr<std::unique_ptr<StorageScp>> Start(Options options, const DicomPeers& peers,
                                                           InstanceSpool& spool, RunningMoves& moves,
                                                           const PacsMetrics& metrics, AuditTrail& audit);
  // Does the same as Stop.
  ~StorageScp();

  const std::string& address() const { return listener_.address(); }
  int64_t associations() const { return open_; }
  // The largest number of any association so far.
  int64_t newest() const { return numbers_; }

  // Takes no more associations, gives those that are open until `end`, then aborts them. Idempotent.
  void Stop(std::chrono::steady_clock::time_point end);

 private:
  class PeerTarget;
  struct Served {
    std::thread thread;
    std::shared_ptr<dimse::Connection> connection;
    std::atomic<bool> is_silent{true};  // has no association
    std::atomic<bool> done{false};
    bool gave_way = false;  // with the mutex held
  };

  StorageScp(Options options, TcpListener listener, const DicomPeers& peers, InstanceSpool& spool, RunningMoves& moves,
             const PacsMetrics& metrics, AuditTrail& audit);
  void Listen();
  void Take(Fd fd);
  bool MakeRoom(const std::string& address);
  void Reap(bool all);
  void Serve(Served& served);
  dimse::Association::Answer Decide(const dimse::AssociateRequest& request, const std::string& address,
                                    const DicomPeer** peer);
  absl::StatusOr<const DicomPeer*> Admit(const dimse::AssociateRequest& request, const std::string& address,
                                         dimse::AssociateReject* reject);
  absl::Status ServeCommands(dimse::Association& association, const DicomPeer& peer, int64_t number, StoreTally& tally);
  void Report(const DicomPeer& peer, const std::string& address, const absl::Status& status, const StoreTally& tally,
              std::chrono::nanoseconds elapsed);
  void Refuse(const std::string& address, const absl::Status& why);

  const Options options_;
  const TcpListener listener_;
  const DicomPeers& peers_;
  InstanceSpool& spool_;
  RunningMoves& moves_;
  const PacsMetrics& metrics_;
  AuditTrail& audit_;
  const WakeEvent wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> open_{0};
  std::atomic<int64_t> numbers_{0};
  std::mutex mutex_;
  std::map<std::string, int> open_of_;  // by AE title
  std::list<std::unique_ptr<Served>> served_;
  std::thread listening_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_STORAGE_SCP_H_
