// SPDX-License-Identifier: Apache-2.0
// UploadStore: volumes and matrices on their way in: what was received so far, kept while a broken stream may be
// resumed.
//
// An upload holds its pinned memory and its share of the resident capacity from its (validated) header on. At most one
// stream writes it at a time, through an UploadWriter; one that no stream has written for the TTL is dropped by Expire.
//
// Thread safety: the store is safe for concurrent use; a writer is thread-compatible.
#ifndef INTRAWARP_SERVER_BULK_UPLOAD_STORE_H_
#define INTRAWARP_SERVER_BULK_UPLOAD_STORE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/device/pinned_pool.h"
#include "io/digest.h"
#include "server/bulk/chunk_codec.h"
#include "server/rpc/rpc_support.h"
#include "server/store/resident_store.h"

namespace intrawarp::server {

// What the validated header of an upload, of whatever kind, announces.
struct UploadSpec {
  std::string id;  // may be empty
  std::string upload_id;
  int64_t total_bytes = 0;
  std::string content_digest;
  // The object's `digest` (resident_store.h): a SHA-256 of all that tells it from others, the content included.
  std::string identity_digest;
  // What the object is accounted for.
  int64_t resident_bytes = 0;

  friend bool operator==(const UploadSpec&, const UploadSpec&) = default;
};

// "digest: ..." unless it is as long as a SHA-256.
absl::Status ValidateDigest(absl::string_view digest);
// "{field}: ..." unless 1 to 64 characters.
absl::Status ValidateUploadId(absl::string_view upload_id, absl::string_view field);

struct Upload {
  UploadSpec spec;
  ResidentReservation reservation;
  std::shared_ptr<PinnedBuffer> memory;
  io::Sha256 hash;  // of the bytes received
  bool verified = false;
  // Guarded by the store's mutex.
  int64_t received = 0;
  bool busy = true;
  std::chrono::steady_clock::time_point last_written;
};

struct UploadProgress {
  int64_t received = 0;
  int64_t total_bytes = 0;
};

class UploadStore;

// The right to write an upload. Destruction without Drop leaves it to be resumed.
class UploadWriter {
 public:
  UploadWriter() = default;
  UploadWriter(UploadStore* store, std::shared_ptr<Upload> upload) : store_(store), upload_(std::move(upload)) {}
  UploadWriter(UploadWriter&&) noexcept = default;
  UploadWriter& operator=(UploadWriter&& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(upload_, other.upload_);
    return *this;
  }
  ~UploadWriter();

  explicit operator bool() const { return upload_ != nullptr; }
  const UploadSpec& spec() const { return upload_->spec; }
  int64_t received() const { return upload_->received; }
  bool complete() const { return received() == spec().total_bytes; }
  const void* data() const { return upload_->memory->as<void>(); }

  // Takes the next bytes. OUT_OF_RANGE "chunk.offset: ..." unless they begin where the last ones ended;
  // "chunk.data: ..." when they pass the end.
  absl::Status Append(const ReceivedChunk& chunk);
  // Once complete: DATA_LOSS "header.digest: ..." when the bytes are not those announced.
  absl::Status Verify();
  // The share of the resident capacity, for the object that this becomes.
  ResidentReservation TakeReservation() { return std::move(upload_->reservation); }
  // The upload ends here, finished or given up.
  void Drop();

 private:
  UploadStore* store_ = nullptr;
  std::shared_ptr<Upload> upload_;
};

class UploadStore {
 public:
  UploadStore(PinnedPool& pinned, ResidentBudget& budget, const Seams& seams, int max_uploads,
              std::chrono::nanoseconds ttl)
      : pinned_(pinned), budget_(budget), seams_(seams), max_uploads_(max_uploads), ttl_(ttl) {}

  // Begins an upload, or resumes the one with this upload_id. ABORTED when another stream writes it; INVALID_ARGUMENT
  // "header: ..." when it was begun with another header, and drops it; RESOURCE_EXHAUSTED beyond the number of uploads
  // or the memory.
  absl::StatusOr<UploadWriter> Open(const UploadSpec& spec);
  // NOT_FOUND when there is none.
  absl::StatusOr<UploadProgress> Progress(const std::string& upload_id) const;
  // Drops what has waited longer than the TTL.
  void Expire();
  // Drops all that no stream writes.
  void Clear();
  int64_t size() const;

 private:
  friend class UploadWriter;
  void DropIdle(std::chrono::steady_clock::time_point last_written);
  absl::StatusOr<std::shared_ptr<Upload>> Resume(const UploadSpec& spec);

  PinnedPool& pinned_;
  ResidentBudget& budget_;
  const Seams& seams_;
  const int max_uploads_;
  const std::chrono::nanoseconds ttl_;
  mutable std::mutex mutex_;
  // Null while the memory of a new upload is being reserved.
  std::map<std::string, std::shared_ptr<Upload>> uploads_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BULK_UPLOAD_STORE_H_
