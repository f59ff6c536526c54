// SPDX-License-Identifier: Apache-2.0
// OperationTable: work that goes on without the call that began it, by owner and id. No gRPC here.
//
// An operation holds a place in the ledger until it has ended (Resource::kOperations, bounded for each owner and in
// all). After that it is remembered for OperationOptions::ttl; when too many have ended, the oldest are forgotten
// earlier. On a server with a state directory the table writes each change of state through KeepFn, so that a restart
// finds what has ended, and finds failed what had not.
//
// Thread safety: safe for concurrent use. Callbacks are called without a lock of the table's.
#ifndef INTRAWARP_SERVER_OPERATION_OPERATION_TABLE_H_
#define INTRAWARP_SERVER_OPERATION_OPERATION_TABLE_H_

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/rpc/status.pb.h"
#include "server/base/names.h"
#include "server/base/seams.h"
#include "server/identity/identity.h"
#include "server/ledger/ledger.h"
#include "server/store/resident_store.h"

namespace intrawarp::server {

// The numbers are those of v1::OperationKind and v1::OperationState.
enum class OperationKind { kRegister = 1, kMultiply = 2, kImport = 3 };
inline constexpr std::array kOperationKinds = {OperationKind::kRegister, OperationKind::kMultiply,
                                               OperationKind::kImport};
enum class OperationState { kQueued = 1, kRunning = 2, kDone = 3, kFailed = 4 };
inline constexpr std::array kOperationStates = {OperationState::kQueued, OperationState::kRunning,
                                                OperationState::kDone, OperationState::kFailed};
// "register", "queued": as metrics and the command line call them.
absl::string_view NameOf(OperationKind kind);
absl::string_view NameOf(OperationState state);

// v1::OperationProgress. Nothing in it may tell of a patient.
struct OperationProgress {
  std::string step;
  int64_t done = 0;
  int64_t total = 0;
  std::string unit;

  friend bool operator==(const OperationProgress&, const OperationProgress&) = default;
};

// v1::Operation.
struct Operation {
  OperationKind kind = OperationKind::kRegister;
  // The id and fingerprint of the request that began it, and its owner.
  RequestKey key;
  OperationState state = OperationState::kQueued;
  OperationProgress progress;
  std::chrono::system_clock::time_point create_time;
  std::optional<std::chrono::system_clock::time_point> start_time;
  std::optional<std::chrono::system_clock::time_point> end_time;
  // Set once it has ended.
  std::optional<Expiry> expiry;
  // kFailed: why, as callers see it (ToRpcStatusProto).
  google::rpc::Status error;
  // kDone: the names of what it made.
  std::vector<std::string> results;

  bool has_ended() const { return state == OperationState::kDone || state == OperationState::kFailed; }
};

// For each kind, in the order of kOperationKinds, the number in each state, in the order of kOperationStates.
using OperationCounts = std::array<std::array<int64_t, kOperationStates.size()>, kOperationKinds.size()>;

struct OperationOptions {
  // How long an operation that has ended is remembered.
  std::chrono::nanoseconds ttl = std::chrono::hours(24);
  // The most that have ended and are remembered, of one owner and in all.
  int ended_of_owner = 256;
  int ended = 4096;
};

class OperationTable;

// The work's side of an operation. The first of Done, Failed and Drop ends it, later ones have no effect; one that is
// let go of without an end has failed (INTERNAL). The table must outlive it.
class OperationWork {
 public:
  ~OperationWork();
  OperationWork(const OperationWork&) = delete;
  OperationWork& operator=(const OperationWork&) = delete;

  // Writes the operation to the state directory: once this has returned OK its caller may be told of it. Waits for the
  // disk (DurableObjects::Run). STATE_FULL, STATE_UNAVAILABLE.
  absl::Status Keep();
  // Its state now.
  Operation operation() const;

  // `cancel` is called, once, when the operation is cancelled before it has ended: on the canceller's thread, within
  // this call when that was before. It makes the work end soon.
  void set_on_cancel(std::function<void()> cancel);
  bool cancelled() const;

  void Started();
  // Replaces the progress; cheap, so that an iteration may call it.
  void Progressed(OperationProgress progress);
  // It has made `results`, which whoever asks can have from now on.
  void Done(std::vector<std::string> results);
  // A CANCELLED of work that a stop of the server ended becomes what OperationTable::CancelAll was given.
  void Failed(const absl::Status& error);
  // It was refused before its caller was told of it: the table forgets it.
  void Drop();

 private:
  friend class OperationTable;
  OperationWork(OperationTable* table, std::string key) : table_(table), key_(std::move(key)) {}

  OperationTable* const table_;
  const std::string key_;
};

class OperationTable {
 public:
  // Writes an operation to the state directory, or, null, removes the one of this owner and id, which need not be
  // there. May wait for the disk. STATE_FULL, STATE_UNAVAILABLE.
  using KeepFn =
      std::function<absl::Status(const std::string& owner, const std::string& id, const Operation* operation)>;
  // Runs work that may wait for the disk, on another thread.
  using RunFn = std::function<void(std::function<void()>)>;
  // The names of what the request has made; empty: nothing that is still there.
  using ResultsFn = std::function<std::vector<std::string>(OperationKind kind, const RequestKey& key)>;
  using EndedFn = std::function<void(const Operation&)>;

  // `ledger` and `seams` outlive it.
  OperationTable(Ledger& ledger, const Seams& seams, const OperationOptions& options = {});
  ~OperationTable();

  // For a server with a state directory. Before the first operation.
  void KeepWith(KeepFn keep, RunFn run);
  // Takes an operation of an earlier run, whose progress may be any: one that had not ended is kDone where `results_of`
  // finds what it made, and otherwise kFailed with SERVER_RESTARTED. Rows that changed are written. Before the first
  // operation.
  absl::Status Restore(std::vector<Operation> operations, const ResultsFn& results_of);

  struct Begun {
    // Null: an earlier request began `operation`, which is queued, running or done.
    std::shared_ptr<OperationWork> work;
    Operation operation;
  };
  // Begins an operation for the request, or finds the one that an earlier request with this key began. One that has
  // failed begins anew. ALREADY_EXISTS (REQUEST_ID_REUSED) when the owner's id belongs to a request of another kind or
  // fingerprint; TOO_MANY_OPERATIONS, OWNER_QUOTA.
  absl::StatusOr<Begun> Begin(OperationKind kind, const RequestKey& key);
  // The operation that Begin would find; nullopt when it would begin one. ALREADY_EXISTS as there.
  absl::StatusOr<std::optional<Operation>> FindBegun(OperationKind kind, const RequestKey& key) const;

  // An admin sees the operations of all owners, the own one first where ids are the same. NOT_FOUND;
  // FAILED_PRECONDITION as of SeveralOwners.
  absl::StatusOr<Operation> Find(const std::string& id, const Identity& caller) const;
  // In order of id, then of owner, those after the one with the key `after` (OwnedKey; "" is before all), at most
  // `limit`.
  std::vector<Operation> List(const std::string& after, int limit, const Identity& caller) const;
  // Makes an operation end soon, and returns it as it is then. Without effect on one that has ended. Errors as of Find.
  absl::StatusOr<Operation> Cancel(const std::string& id, const Identity& caller);

  // Calls `ended` once the operation has ended: on the thread that ends it, or within this call. The number is for
  // Unwatch, after which `ended` is not called any more, unless it is being called just now. Errors as of Find.
  absl::StatusOr<int64_t> Watch(const std::string& id, const Identity& caller, EndedFn ended);
  void Unwatch(int64_t watch);

  // Forgets the operations whose time is over at `now`.
  void Expire(std::chrono::steady_clock::time_point now);

  // Waits until every operation has ended; false when that lasts beyond the deadline.
  bool WaitIdle(std::chrono::steady_clock::time_point deadline);
  // Cancels all that have not ended, and those that begin later; they fail with `why`.
  void CancelAll(const absl::Status& why);

  OperationCounts counts() const;

 private:
  friend class OperationWork;
  struct Entry {
    Operation operation;
    Grant place;
    std::function<void()> on_cancel;
    bool cancelled = false;
    // Tells it from an earlier operation with its key.
    const OperationWork* work = nullptr;
    std::map<int64_t, EndedFn> watchers;
  };
  using Entries = std::map<std::string, Entry>;

  absl::Status Keep(const std::string& key);
  void KeepSoon(const std::string& key);
  void End(const OperationWork& work, OperationState state, const absl::Status& error,
           std::vector<std::string> results);
  void Drop(const OperationWork& work);
  // All with the mutex held.
  Entry* EntryOf(const OperationWork& work);
  absl::StatusOr<std::string> KeyOf(const std::string& id, const Identity& caller) const;
  void SetExpiry(Operation& operation) const;
  // The keys of the oldest that have ended and are too many.
  std::vector<std::string> ForgetOldest(const std::string& owner);

  Ledger& ledger_;
  const Seams& seams_;
  const OperationOptions options_;
  KeepFn keep_;  // null: nothing is durable
  RunFn run_;
  std::mutex keeping_;  // held during keep_, so that the last row is that of the last state
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  Entries entries_;                         // by OwnedKey
  std::map<int64_t, std::string> watched_;  // the keys of the watches
  int64_t next_watch_ = 1;
  int64_t active_ = 0;  // that have not ended
  absl::Status stopping_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_OPERATION_OPERATION_TABLE_H_
