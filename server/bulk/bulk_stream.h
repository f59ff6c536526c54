// SPDX-License-Identifier: Apache-2.0
// BulkStream: the bytes of a field, a volume or a matrix on their way to the stream that sends them. One producer,
// which knows nothing of gRPC, makes them from the front; one consumer takes them in pieces.
//
// BulkBuffer holds all of them in one piece of host memory, so that the first chunk can leave while later slabs are
// still computed and neither side ever waits for the other: a slow or vanished client cannot hold up the device.
// ProduceField and ProduceCopy fill it. DeviceBulk (device_bulk.h) reads what lies on the device through a few slabs.
#ifndef INTRAWARP_SERVER_BULK_BULK_STREAM_H_
#define INTRAWARP_SERVER_BULK_BULK_STREAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "engine/device/device.h"
#include "engine/device/exec_context.h"
#include "engine/device/pinned_pool.h"
#include "engine/geometry/geometry.h"
#include "engine/schedule/latency.h"
#include "engine/transform/transform.h"
#include "server/bulk/field_request.h"

namespace intrawarp::server {

// Fields are evaluated in slabs of so many voxels. In float32 these make three chunks of 1 MiB: small enough that the
// first chunk leaves early, large enough to fill a GPU.
inline constexpr int64_t kSlabVoxels = int64_t{1} << 18;

// Bytes that are final. `owner` keeps them alive while the transport refers to them.
struct BulkPiece {
  int64_t offset = 0;  // in the stream
  const char* data = nullptr;
  int64_t bytes = 0;
  std::shared_ptr<const void> owner;
};

// Thread safety: the consumer's calls may run beside the producer's.
class BulkStream {
 public:
  virtual ~BulkStream() = default;
  // The next bytes, at most `most`; nullopt while there are none.
  virtual std::optional<BulkPiece> Take(int64_t most) = 0;
  // Nothing will come any more: everything was taken, or the producer gave up.
  virtual bool ended() const = 0;
};

// The bytes of a pinned buffer, which they keep; null for null.
std::shared_ptr<char> BytesOf(std::shared_ptr<PinnedBuffer> buffer);

class BulkBuffer final : public BulkStream {
 public:
  // All of the bytes [0, total_bytes) of a stream, for which `memory` has room.
  BulkBuffer(std::shared_ptr<char> memory, int64_t total_bytes) : BulkBuffer(std::move(memory), total_bytes, 0, 0) {}
  BulkBuffer(std::shared_ptr<PinnedBuffer> memory, int64_t total_bytes)
      : BulkBuffer(BytesOf(std::move(memory)), total_bytes) {}
  // The bytes [begin, total_bytes) of a stream, of which those from `offset` on are sent.
  BulkBuffer(std::shared_ptr<char> memory, int64_t total_bytes, int64_t begin, int64_t offset)
      : memory_(std::move(memory)), total_bytes_(total_bytes), begin_(begin), produced_(begin), taken_(offset) {}

  // Where the stream's byte `offset` lies. Bytes at and after produced() belong to the producer.
  char* at(int64_t offset) const { return memory_.get() + (offset - begin_); }
  int64_t begin() const { return begin_; }
  int64_t total_bytes() const { return total_bytes_; }

  // Producer: the bytes before `produced` are final.
  void Advance(int64_t produced);
  // Producer: no more will come.
  void Abandon();
  int64_t produced() const;
  bool abandoned() const;

  // Gives `most` bytes, fewer only at the end.
  std::optional<BulkPiece> Take(int64_t most) override;
  bool ended() const override;

 private:
  const std::shared_ptr<char> memory_;
  const int64_t total_bytes_;
  const int64_t begin_;
  mutable std::mutex mutex_;
  int64_t produced_;
  int64_t taken_;
  bool abandoned_ = false;
};

// Called by a producer on its thread, after each advance. Answers whether to go on: false ends the production
// CANCELLED.
using AdvanceFn = std::function<bool()>;

// Workspace of MakeFieldAnswer and ProduceField on this device, for a field on `grid` or control points.
int64_t ProduceFieldWorkspaceBytes(const Device& device, const Geometry& grid);

// Where a buffer must begin that ProduceField fills and whose bytes from `offset` on are sent: slabs are evaluated as a
// whole, so that the bytes do not depend on the offset.
int64_t FieldBegin(const FieldRequest& request, int64_t offset);

// Evaluates and encodes the field that `answer` announces, slab by slab, into `stream` (as large as the answer says).
// Adds to the phases encode (evaluation) and download (copies, and on CUDA the wait for both). Waits for the stream.
// Abandons `stream` on error.
absl::Status ProduceField(const ExecContext& ctx, const Transform& transform, const FieldAnswer& answer,
                          BulkBuffer& stream, LatencyBreakdown& latency, const AdvanceFn& advanced);

// Brings the stream's bytes from device memory, where byte 0 lies at `data`, into `stream`, slab by slab. Waits for the
// stream. Abandons `stream` on error.
absl::Status ProduceCopy(const ExecContext& ctx, const void* data, BulkBuffer& stream, LatencyBreakdown& latency,
                         const AdvanceFn& advanced);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BULK_BULK_STREAM_H_
