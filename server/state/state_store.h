// SPDX-License-Identifier: Apache-2.0
// StateStore: the objects, open sessions and operations that a state directory keeps: their rows in the catalogue,
// their payloads in the spool.
//
// The layout of a state directory: "lock", "catalogue.db" with its write-ahead log, "spool/" (spool.h), "orphaned/"
// (orphans.h) and "generation", the generation of the spool.
//
// Nothing goes for good because of one reading of a clock or of a catalogue:
// - Objects expire by a time of the store, which is the wall clock's until that steps. From one start to the next it
//   goes on by at most kLongestStop: where the wall clock says more, or less than nothing, no time has passed. While a
//   server runs, its owner tells the time (Advance) by a clock that does not step.
// - A payload that no row needs at a start is moved to "orphaned/", and goes after kOrphanAge. A payload that a row
//   needs and that lies there comes back.
// - The catalogue and the spool have a generation, which every start counts up: a catalogue whose number is lower than
//   the spool's is an older copy.
//
// An object is durable once Commit has returned OK: its payload was synced before, and its row is. A removal takes the
// row first, then the payload unless another row needs it. A payload whose row never came goes when its handle goes;
// the payload that a crash left behind is an orphan.
//
// Errors are those of FileLayer and Catalogue. Every function may wait for the disk. Thread safety: safe for concurrent
// use.
#ifndef INTRAWARP_SERVER_STATE_STATE_STORE_H_
#define INTRAWARP_SERVER_STATE_STATE_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/state/catalogue.h"
#include "server/state/file_layer.h"
#include "server/state/orphans.h"
#include "server/state/payload_spool.h"

namespace intrawarp::state {

// A payload on the disk that stays there at least as long as the handle. Movable; empty by default.
class DurablePayload {
 public:
  DurablePayload() = default;
  DurablePayload(DurablePayload&& other) noexcept { *this = std::move(other); }
  DurablePayload& operator=(DurablePayload&& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(digest_, other.digest_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DurablePayload();

  const std::string& digest() const { return digest_; }
  int64_t bytes() const { return bytes_; }

 private:
  friend class StateStore;
  DurablePayload(class StateStore* store, std::string digest, int64_t bytes)
      : store_(store), digest_(std::move(digest)), bytes_(bytes) {}

  class StateStore* store_ = nullptr;
  std::string digest_;
  int64_t bytes_ = 0;
};

// In nanoseconds.
inline constexpr int64_t kLongestStop = int64_t{3600} * 1'000'000'000;
inline constexpr int64_t kOrphanAge = int64_t{7 * 24 * 3600} * 1'000'000'000;

// What a start found, for the log.
struct StartFindings {
  // By which the wall clock had stepped since the last start, nanoseconds; 0 for what may have passed.
  int64_t clock_step = 0;
  // The objects that expire later, and those whose time was over.
  int64_t expiring = 0;
  int64_t expired = 0;
  // The numbers of the catalogue and of the spool before this start.
  int64_t catalogue_generation = 0;
  int64_t spool_generation = 0;
  // Payloads that were moved out of the spool, and back into it; orphans that were too old.
  int64_t orphaned = 0;
  int64_t brought_back = 0;
  Orphans::Amount removed;
  // All orphans that there are now.
  Orphans::Amount orphans;

  bool catalogue_is_older() const { return catalogue_generation < spool_generation; }
};

class StateStore {
 public:
  // Opens the directory, which exists, or fills an empty one; `now` is the wall clock's time (nanoseconds since 1970).
  // Removes rows whose time was over, which on a full disk only become invisible, and unfinished files; moves payloads
  // that belong to no row. FAILED_PRECONDITION while another process uses it, for a newer version, and for payloads
  // without a catalogue. `files` outlives the store.
  static absl::StatusOr<std::unique_ptr<StateStore>> Open(FileLayer& files, const std::string& directory, int64_t now);

  const StartFindings& findings() const { return findings_; }
  // The time of the store when it was opened, nanoseconds since 1970. Rows expire by it.
  int64_t start_time() const { return start_time_; }
  // By which that time is ahead of the wall clock's at the opening.
  int64_t ahead() const { return ahead_; }
  // Writes that it is `time` now, which is the start_time and all that has passed since, and removes old orphans. From
  // time to time and at the end: the next start goes on from there.
  absl::Status Advance(int64_t time);
  // The orphans that there are now.
  absl::StatusOr<Orphans::Amount> CountOrphans();

  // Writes a payload, whose SHA-256 is `digest`. The handle must not outlive the store.
  absl::StatusOr<DurablePayload> Keep(const std::string& digest, absl::Span<const char> bytes);
  // Keeps the object whose payload is `payload`; sets the row's payload to it. ALREADY_EXISTS.
  absl::Status Commit(ObjectRow row, const DurablePayload& payload);
  // NOT_FOUND.
  absl::Status Remove(ObjectKind kind, const std::string& id, const std::string& owner = "");

  // The same for a session, whose earlier payload goes; CommitSession takes the place of a session with its id and
  // owner, the others change the very incarnation: NOT_FOUND.
  absl::Status CommitSession(SessionRow row, const DurablePayload& payload);
  absl::Status UpdateSession(SessionRow row, const DurablePayload& payload);
  absl::Status RemoveSession(const std::string& id, const std::string& owner, const std::string& incarnation);

  // The row of an operation, in place of one with its id and owner; the removal of one that is not there is OK.
  absl::Status PutOperation(const OperationRow& row);
  absl::Status RemoveOperation(const std::string& id, const std::string& owner);

  // In order of kind, id and owner.
  absl::StatusOr<std::vector<ObjectRow>> List();
  // In order of id and owner.
  absl::StatusOr<std::vector<SessionRow>> ListSessions();
  absl::StatusOr<std::vector<OperationRow>> ListOperations();
  // Brings a payload to `to`, which has its size, and verifies it: DATA_LOSS names the file.
  absl::Status Read(const std::string& digest, absl::Span<char> to);
  // For messages of a full disk; 0 when the file system does not answer.
  int64_t FreeBytes() const;

 private:
  friend class DurablePayload;
  StateStore(FileLayer& files, const std::string& directory)
      : files_(files),
        directory_(directory),
        spool_(files, directory + "/spool"),
        orphans_(files, spool_, directory + "/orphaned") {}
  absl::Status Start(int64_t now);
  absl::Status CheckCatalogueIsThere();
  absl::Status SetTime(int64_t now);
  absl::Status ExpireRows();
  absl::Status SortPayloads();
  void Release(const std::string& digest);
  // With the mutex held.
  absl::Status WriteClock();
  absl::Status RemoveExpired();
  absl::Status RemoveRow(ObjectKind kind, const std::string& id, const std::string& owner);
  absl::Status ChangeSession(const SessionRow& row, const absl::Status& changed, const std::string& payload_before);
  absl::StatusOr<std::set<std::string>> UsedPayloads();
  bool IsInUse(const std::string& digest);
  void RemoveUnused(const std::string& digest);
  void AfterTransaction(bool succeeded);

  FileLayer& files_;
  const std::string directory_;
  std::unique_ptr<DirectoryLock> lock_;
  PayloadSpool spool_;
  Orphans orphans_;
  StartFindings findings_;
  int64_t start_time_ = 0;
  int64_t ahead_ = 0;
  std::mutex mutex_;
  std::unique_ptr<Catalogue> catalogue_;
  CatalogueClock clock_;
  // The number in the file "generation".
  int64_t written_generation_ = 0;
  // Handles by digest.
  std::map<std::string, int> handles_;
  // Rows whose time was over at the start and whose removal failed: the next commit repeats it.
  std::set<std::tuple<ObjectKind, std::string, std::string>> expired_;
  // Payloads that nobody needs if the last transaction, which failed, is not on the disk.
  std::set<std::string> doubtful_;
  bool in_doubt_ = false;
};

// The findings of Check. A state directory is sound when `errors` is empty.
struct StateReport {
  int64_t objects = 0;
  int64_t sessions = 0;
  int64_t payload_bytes = 0;
  // Files in the spool that belong to no object and no session, which the next start moves or removes.
  int64_t leftover_files = 0;
  Orphans::Amount orphans;
  // One a line, each naming its object or session.
  std::vector<std::string> errors;
};
// Verifies a directory that no server uses: the catalogue, and the size and SHA-256 of every payload. Changes no
// object. FAILED_PRECONDITION while a server uses it, NOT_FOUND when it holds no catalogue.
absl::StatusOr<StateReport> CheckState(FileLayer& files, const std::string& directory);

}  // namespace intrawarp::state

#endif  // INTRAWARP_SERVER_STATE_STATE_STORE_H_
