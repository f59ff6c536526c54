// SPDX-License-Identifier: Apache-2.0
// UploadSlabs: the pinned memory through which uploads reach the device. A copy from ordinary memory is staged by the
// driver, and the copies of frames wait for it; through two slabs of an upload's own the copies are short and
// asynchronous, so that a frame's copy finds at most two slabs before it.
//
// An upload takes its pair of slabs, with a claim of the ledger, once all of its bytes are there, and holds it while it
// waits for the device and is copied. So many pairs are out at once at most; who comes later, or finds the ledger
// without room, waits in line.
//
// Thread safety: UploadSlabs is safe for concurrent use; a StagedUpload is thread-compatible.
#ifndef INTRAWARP_SERVER_OBJECT_UPLOAD_SLABS_H_
#define INTRAWARP_SERVER_OBJECT_UPLOAD_SLABS_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/device/pinned_pool.h"
#include "server/ledger/ledger.h"

namespace intrawarp::server {

// Gives both slabs back when it goes.
struct SlabPair {
  Grant grant;
  std::shared_ptr<PinnedBuffer> slabs[2];
  int64_t slab_bytes = 0;
};

class UploadSlabs {
 public:
  static constexpr int kMaxPairs = 4;
  static constexpr int64_t kSlabBytes = int64_t{2} << 20;

  using ReadyFn = std::function<void(absl::StatusOr<std::shared_ptr<SlabPair>> pair)>;

  // Both outlive it and every pair.
  UploadSlabs(Ledger& ledger, PinnedPool& pinned) : ledger_(ledger), pinned_(pinned) {}

  // Calls `ready` once with a pair for an upload of `bytes`, or with an error that waiting does not cure
  // (EXCEEDS_CAPACITY, the errors of PinnedPool::Lease): at once, or from a Retry. The line is cut by Clear.
  void Take(int64_t bytes, ReadyFn ready);
  // Serves those who wait, as far as there is room: after a pair was given back, and now and then, since room comes of
  // others, too.
  void Retry();
  // Drops those who wait, without calling them.
  void Clear();

  int64_t waiting() const;

 private:
  struct Waiting {
    int64_t bytes;
    ReadyFn ready;
  };
  // The first who waits and what is for it; nullopt when there is no room or nobody.
  std::optional<std::pair<ReadyFn, absl::StatusOr<std::shared_ptr<SlabPair>>>> Next();
  absl::StatusOr<std::shared_ptr<SlabPair>> Lease(int64_t bytes);
  int64_t SlabBytes(int64_t bytes) const;

  Ledger& ledger_;
  PinnedPool& pinned_;
  // The number of pairs that are out; they outlive the line at a stop.
  const std::shared_ptr<std::atomic<int>> out_ = std::make_shared<std::atomic<int>>(0);
  mutable std::mutex mutex_;
  std::deque<Waiting> waiting_;
};

// The bytes of an upload in ordinary host memory, and the way from there to the device.
class StagedUpload {
 public:
  // Without a pair bytes are copied from where they lie, as a device wants it that reads host memory.
  StagedUpload(const void* data, std::shared_ptr<SlabPair> pair)
      : data_(static_cast<const char*>(data)), pair_(std::move(pair)) {}

  const char* data() const { return data_; }
  bool has_slabs() const { return pair_ != nullptr; }
  // Copies [begin, begin + bytes) to device memory. Looks at the checkpoint before each piece: CANCELLED. The device
  // may still read host memory of this object's when it returns: the stream is synchronised before the object goes,
  // also after an error.
  absl::Status CopyTo(const ExecContext& ctx, void* to, int64_t begin, int64_t bytes);

 private:
  absl::Status CopyPiece(const ExecContext& ctx, void* to, const char* from, int64_t bytes);

  const char* const data_;
  const std::shared_ptr<SlabPair> pair_;
  // Recorded after the last copy out of each slab.
  std::optional<Event> copied_[2];
  int next_ = 0;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_OBJECT_UPLOAD_SLABS_H_
