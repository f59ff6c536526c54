// SPDX-License-Identifier: Apache-2.0
// FieldStream: a field (or volume) on its way from the job that makes it to the stream that sends it: one pinned
// buffer, filled from the front by a producer and sent from the front by a consumer, so that the first chunk can leave
// while later slabs are still computed. The buffer holds the whole, so neither side ever waits for the other: a slow or
// vanished client cannot hold up the device.
//
// ProduceField and ProduceCopy are the producers; they know nothing of gRPC.
#ifndef INTRAWARP_SERVER_BULK_FIELD_STREAM_H_
#define INTRAWARP_SERVER_BULK_FIELD_STREAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "engine/device/device.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/geometry.h"
#include "engine/schedule/latency.h"
#include "engine/transform/transform.h"
#include "server/transform/field_request.h"

namespace intrawarp::server {

// Thread safety: one producer and any number of consumers may use it at the same time.
class FieldStream {
 public:
  // `memory` holds at least `total_bytes`.
  FieldStream(std::shared_ptr<PinnedBuffer> memory, int64_t total_bytes)
      : memory_(std::move(memory)), total_bytes_(total_bytes) {}

  // Bytes at and after produced() belong to the producer, those before it to the consumers.
  char* data() const { return memory_->as<char>(); }
  // What keeps the bytes alive while the transport refers to them.
  const std::shared_ptr<PinnedBuffer>& memory() const { return memory_; }
  int64_t total_bytes() const { return total_bytes_; }

  // Producer: the first `produced` bytes are final.
  void Advance(int64_t produced);
  // Producer: no more will come.
  void Abandon();

  int64_t produced() const;
  bool abandoned() const;

 private:
  const std::shared_ptr<PinnedBuffer> memory_;
  const int64_t total_bytes_;
  mutable std::mutex mutex_;
  int64_t produced_ = 0;
  bool abandoned_ = false;
};

// Called by a producer on its thread, after each advance. Answers whether to go on: false ends the production
// CANCELLED.
using AdvanceFn = std::function<bool()>;

// Workspace of MakeFieldAnswer and ProduceField on this device, for a field on `grid` or control points.
int64_t ProduceFieldWorkspaceBytes(const Device& device, const Geometry& grid);

// Evaluates and encodes the field that `answer` announces, slab by slab, into `stream` (as large as the answer says).
// Adds to the phases encode (evaluation) and download (copies, and on CUDA the wait for both). Waits for the stream.
// Abandons `stream` on error.
absl::Status ProduceField(const ExecContext& ctx, const Transform& transform, const FieldAnswer& answer,
                          FieldStream& stream, LatencyBreakdown& latency, const AdvanceFn& advanced);

// Brings `bytes` bytes of device memory into `stream`, slab by slab. Waits for the stream. Abandons `stream` on error.
absl::Status ProduceCopy(const ExecContext& ctx, const void* data, FieldStream& stream, LatencyBreakdown& latency,
                         const AdvanceFn& advanced);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BULK_FIELD_STREAM_H_
