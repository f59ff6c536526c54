// SPDX-License-Identifier: Apache-2.0
// UploadStore: objects on their way in: what was received so far, kept while a broken stream may be resumed.
//
// From its (validated) header on an upload holds the grant for all that it and its object need. Its bytes lie in
// staging memory, which grows as they come; pinned memory is taken once they are all there (UploadSlabs). At most one
// stream writes it, through an UploadWriter. A stream that opens it later takes over: the writer before it is fenced
// off by the upload's generation, and learns it.
//
// An upload whose stream ends before its first byte goes with it; any other is dropped by Expire once no stream has
// written it for the TTL. Streams on which nothing comes are StreamWatch's (server/monitor).
//
// Thread safety: the store is safe for concurrent use; a writer is thread-compatible.
#ifndef INTRAWARP_SERVER_BULK_UPLOAD_STORE_H_
#define INTRAWARP_SERVER_BULK_UPLOAD_STORE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "io/file/digest.h"
#include "server/base/names.h"
#include "server/base/seams.h"
#include "server/bulk/staging_memory.h"
#include "server/identity/identity.h"
#include "server/ledger/ledger.h"
#include "server/object/object_spec.h"
#include "server/object/upload_slabs.h"

namespace intrawarp::wire {

class ReceivedChunk;

}  // namespace intrawarp::wire

namespace intrawarp::server {

// Tells a writer that it has lost its upload, and why.
using EndedFn = std::function<void(const absl::Status&)>;

// The workspace of the jobs that make an upload's object: one at a time has it, also when the stream of the next one
// has taken over. Thread-safe.
class UploadWorkspace : public std::enable_shared_from_this<UploadWorkspace> {
 public:
  using ReadyFn = std::function<void(std::shared_ptr<const Grant>)>;

  explicit UploadWorkspace(Grant grant) : grant_(std::move(grant)) {}
  // Calls `ready` with the grant: at once, or when the last pointer to it has gone, on the thread of that. Whoever
  // waits gives way to a later call, and is dropped.
  void Take(ReadyFn ready);

 private:
  std::shared_ptr<const Grant> Hand();
  void PassOn();

  const Grant grant_;
  std::mutex mutex_;
  bool taken_ = false;
  ReadyFn next_;
};

// The store's record of one upload.
struct UploadRecord {
  ObjectSpec spec;
  // Held while memory is reserved, bytes are taken and the digest is made: a stream that takes over waits for it.
  std::mutex writing;
  bool prepared = false;
  absl::Status reserved;
  Grant grant;
  std::shared_ptr<UploadWorkspace> workspace;
  StagingMemory memory;  // empty for no bytes
  io::Sha256 hash;       // of the bytes received
  bool verified = false;
  // Guarded by the store's mutex.
  int64_t received = 0;
  int64_t generation = 0;  // of the last writer
  bool has_writer = false;
  EndedFn ended;  // of the writer
  // Or when the writer came or went.
  std::chrono::steady_clock::time_point last_written;
};

struct UploadProgress {
  int64_t received = 0;
  int64_t total_bytes = 0;
};

class UploadStore;

// The right to write an upload, until another writer takes over. Destruction without Drop leaves it to be resumed.
// A writer that another has taken over from gets ABORTED (reason UPLOAD_TAKEN_OVER).
class UploadWriter {
 public:
  UploadWriter() = default;
  UploadWriter(UploadStore* store, std::shared_ptr<UploadRecord> upload, int64_t generation)
      : store_(store), upload_(std::move(upload)), generation_(generation) {}
  UploadWriter(UploadWriter&&) noexcept = default;
  UploadWriter& operator=(UploadWriter&& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(upload_, other.upload_);
    std::swap(generation_, other.generation_);
    std::swap(next_, other.next_);
    return *this;
  }
  ~UploadWriter();

  explicit operator bool() const { return upload_ != nullptr; }
  int64_t received() const;
  bool complete() const { return received() == upload_->spec.total_bytes; }
  const void* data() const { return upload_->memory.data(); }
  // Where the object will be.
  int device() const { return upload_->grant.device(); }
  // The grant for ObjectSpec::workspace_bytes.
  std::shared_ptr<UploadWorkspace> workspace() const { return upload_->workspace; }

  // Takes the next bytes of this writer's stream; what was received before is passed over. The errors of
  // ValidatePlace and CopyPayload; ABORTED.
  absl::Status Append(const wire::ReceivedChunk& chunk, int64_t max_bytes);
  // Once complete: DATA_LOSS "header.sha256: ..." when the bytes are not those announced; ABORTED.
  absl::Status Verify();
  // The upload becomes an object: ends it, and gives the object's memory and place. ABORTED.
  absl::StatusOr<Grant> Claim();
  // The upload ends here. Without effect when another writer has taken over.
  void Drop();

 private:
  bool IsCurrent() const { return upload_->generation == generation_; }  // with the store's mutex held
  absl::StatusOr<int64_t> CurrentlyReceived() const;

  UploadStore* store_ = nullptr;
  std::shared_ptr<UploadRecord> upload_;
  int64_t generation_ = 0;
  int64_t next_ = -1;  // where the stream's next chunk must begin; -1 before the first one
};

class UploadStore {
 public:
  // An upload is dropped `ttl` after its last writer went.
  UploadStore(Ledger& ledger, PinnedPool& pinned, const Seams& seams, std::chrono::nanoseconds ttl)
      : ledger_(ledger), seams_(seams), ttl_(ttl), slabs_(ledger, pinned) {}

  // Begins an upload, or takes over the one with this upload_id, which may wait for the writer before. `ended` is
  // called once, on the thread of whoever takes over in turn (ABORTED), unless the writer goes before. A new upload
  // becomes an object on `device`. INVALID_ARGUMENT "header: ..." when the upload was begun with another header, and
  // drops it; the errors of Ledger::Admit.
  absl::StatusOr<UploadWriter> Open(const ObjectSpec& spec, EndedFn ended, int device = 0);
  // NOT_FOUND when the owner has none.
  absl::StatusOr<UploadProgress> Progress(const std::string& upload_id, const std::string& owner = "") const;
  // Drops what has waited longer than the TTL, and serves those who wait for slabs.
  void Expire();
  // Drops all that no stream writes, and the line of those who wait for slabs.
  void Clear();
  int64_t size(const Identity& caller = Anybody()) const;
  UploadSlabs& slabs() { return slabs_; }

 private:
  friend class UploadWriter;
  using Record = std::shared_ptr<UploadRecord>;

  // What Open finds or makes, with its writer noted, and the writer before to be told.
  struct Opened {
    Record upload;
    int64_t generation = 0;
    EndedFn tell_before;
  };
  absl::StatusOr<Opened> FindOrAdd(const ObjectSpec& spec, EndedFn ended, Record& dropped);
  absl::Status ReserveMemory(UploadRecord& upload, int device);
  // With the mutex held.
  void Remove(const Record& upload);
  void DropIdle(std::chrono::steady_clock::time_point last_written);

  Ledger& ledger_;
  const Seams& seams_;
  const std::chrono::nanoseconds ttl_;
  mutable std::mutex mutex_;
  std::map<std::string, Record> uploads_;  // by OwnedKey
  UploadSlabs slabs_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BULK_UPLOAD_STORE_H_
