// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/bulk_stream.h"

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/transform/velocity.h"

namespace intrawarp::server {
namespace {

constexpr int64_t kSlabBytes = kSlabVoxels * int64_t{3 * sizeof(float)};

// Announces slabs one behind the device: while slab k is copied, k + 1 is already enqueued.
class SlabPipeline {
 public:
  static absl::StatusOr<SlabPipeline> Create(const ExecContext& ctx, BulkBuffer& stream, LatencyBreakdown& latency,
                                             const AdvanceFn& advanced) {
    INTRAWARP_ASSIGN_OR_RETURN(Event first, ctx.device().CreateEvent());
    INTRAWARP_ASSIGN_OR_RETURN(Event second, ctx.device().CreateEvent());
    return SlabPipeline(ctx, stream, latency, advanced, std::move(first), std::move(second));
  }

  // Copies the slab that ends at byte `end` of the stream from `data`, unless it is already in place.
  absl::Status Push(const void* data, int64_t end) {
    char* to = stream_.at(enqueued_);
    {
      PhaseTimer timer(latency_, Phase::kDownload);
      if (data != to) {
        INTRAWARP_RETURN_IF_ERROR(ctx_.device().Copy(to, data, end - enqueued_, ctx_.stream()));
      }
      INTRAWARP_RETURN_IF_ERROR(events_[next_].Record(ctx_.stream()));
    }
    const int64_t previous = std::exchange(enqueued_, end);
    next_ = 1 - next_;
    // On the CPU a slab is done by now.
    if (!ctx_.is_cuda()) return Announce(events_[1 - next_], enqueued_);
    return previous == stream_.begin() ? absl::OkStatus() : Announce(events_[next_], previous);
  }
  absl::Status Flush() { return ctx_.is_cuda() ? Announce(events_[1 - next_], enqueued_) : absl::OkStatus(); }

 private:
  SlabPipeline(const ExecContext& ctx, BulkBuffer& stream, LatencyBreakdown& latency, const AdvanceFn& advanced,
               Event first, Event second)
      : ctx_(ctx),
        stream_(stream),
        latency_(latency),
        advanced_(advanced),
        events_{std::move(first), std::move(second)},
        enqueued_(stream.begin()) {}

  absl::Status Announce(const Event& event, int64_t end) {
    {
      PhaseTimer timer(latency_, Phase::kDownload);
      INTRAWARP_RETURN_IF_ERROR(event.Wait());
    }
    stream_.Advance(end);
    return advanced_() ? absl::OkStatus() : absl::CancelledError("nobody waits for the result any more");
  }

  const ExecContext& ctx_;
  BulkBuffer& stream_;
  LatencyBreakdown& latency_;
  const AdvanceFn& advanced_;
  Event events_[2];
  int next_ = 0;
  int64_t enqueued_;
};

// Where slabs of a field are made: in place where the stream takes float32 from the CPU, otherwise in the arena.
struct SlabScratch {
  float* values = nullptr;
  void* encoded = nullptr;
};

absl::StatusOr<SlabScratch> MakeScratch(const ExecContext& ctx, const FieldAnswer& answer) {
  const bool encodes = answer.encoding.type != ComponentType::kFloat32;
  const int64_t components = 3 * std::min(kSlabVoxels, answer.grid.voxels());
  SlabScratch scratch;
  if (ctx.is_cuda() || encodes) {
    INTRAWARP_ASSIGN_OR_RETURN(scratch.values, ctx.arena().Allocate<float>(components));
  }
  if (ctx.is_cuda() && encodes) {
    INTRAWARP_ASSIGN_OR_RETURN(scratch.encoded,
                               ctx.arena().AllocateBytes(components * BytesPerComponent(answer.encoding.type)));
  }
  return scratch;
}

absl::Status FieldSlabs(const ExecContext& ctx, const Transform& transform, const FieldAnswer& answer,
                        BulkBuffer& stream, LatencyBreakdown& latency, const AdvanceFn& advanced) {
  INTRAWARP_ASSIGN_OR_RETURN(SlabPipeline pipeline, SlabPipeline::Create(ctx, stream, latency, advanced));
  INTRAWARP_ASSIGN_OR_RETURN(const SlabScratch scratch, MakeScratch(ctx, answer));
  const bool encodes = answer.encoding.type != ComponentType::kFloat32;
  const int64_t voxel_bytes = 3 * BytesPerComponent(answer.encoding.type);
  for (int64_t first = stream.begin() / voxel_bytes; first < answer.grid.voxels(); first += kSlabVoxels) {
    const int64_t count = std::min(kSlabVoxels, answer.grid.voxels() - first);
    char* in_place = stream.at(first * voxel_bytes);
    float* values = scratch.values != nullptr ? scratch.values : reinterpret_cast<float*>(in_place);
    void* out = values;
    {
      PhaseTimer timer(latency, Phase::kEncode);
      INTRAWARP_RETURN_IF_ERROR(answer.form == FieldForm::kVelocity
                                    ? EvaluateVelocity(ctx, transform, answer.grid, first, count, values)
                                    : EvaluateField(ctx, transform, answer.grid, first, count, values));
      if (encodes) {
        out = scratch.encoded != nullptr ? scratch.encoded : in_place;
        INTRAWARP_RETURN_IF_ERROR(EncodeComponents(ctx, values, 3 * count, answer.encoding, out));
      }
    }
    INTRAWARP_RETURN_IF_ERROR(pipeline.Push(out, (first + count) * voxel_bytes));
  }
  return pipeline.Flush();
}

absl::Status CopySlabs(const ExecContext& ctx, const void* data, BulkBuffer& stream, LatencyBreakdown& latency,
                       const AdvanceFn& advanced) {
  INTRAWARP_ASSIGN_OR_RETURN(SlabPipeline pipeline, SlabPipeline::Create(ctx, stream, latency, advanced));
  for (int64_t begin = stream.begin(); begin < stream.total_bytes(); begin += kSlabBytes) {
    const int64_t end = std::min(begin + kSlabBytes, stream.total_bytes());
    INTRAWARP_RETURN_IF_ERROR(pipeline.Push(static_cast<const char*>(data) + begin, end));
  }
  return pipeline.Flush();
}

// Whatever still runs writes into the arena and the pinned buffer, so the device comes to rest before either goes.
absl::Status Conclude(const ExecContext& ctx, absl::Status status, BulkBuffer& stream) {
  if (status.ok()) return status;
  stream.Abandon();
  (void)ctx.device().Synchronize(ctx.stream());
  return status;
}

}  // namespace

std::shared_ptr<char> BytesOf(std::shared_ptr<PinnedBuffer> buffer) {
  char* const bytes = buffer == nullptr ? nullptr : buffer->as<char>();
  return std::shared_ptr<char>(std::move(buffer), bytes);
}

void BulkBuffer::Advance(int64_t produced) {
  std::lock_guard<std::mutex> lock(mutex_);
  produced_ = produced;
}

void BulkBuffer::Abandon() {
  std::lock_guard<std::mutex> lock(mutex_);
  abandoned_ = true;
}

int64_t BulkBuffer::produced() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return produced_;
}

bool BulkBuffer::abandoned() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return abandoned_;
}

std::optional<BulkPiece> BulkBuffer::Take(int64_t most) {
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t end = std::min(taken_ + most, total_bytes_);
  if (abandoned_ || taken_ == total_bytes_ || produced_ < end) return std::nullopt;
  const int64_t offset = std::exchange(taken_, end);
  return BulkPiece{offset, at(offset), end - offset, memory_};
}

bool BulkBuffer::ended() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return abandoned_ || taken_ == total_bytes_;
}

int64_t FieldBegin(const FieldRequest& request, int64_t offset) {
  const int64_t slab = kSlabVoxels * 3 * BytesPerComponent(request.component);
  return offset / slab * slab;
}

int64_t ProduceFieldWorkspaceBytes(const Device& device, const Geometry& grid) {
  const size_t components = 3 * std::min(kSlabVoxels, grid.voxels());
  const size_t encoded = device.kind() == DeviceKind::kCuda ? Arena::Rounded(components * sizeof(int16_t)) : 0;
  return static_cast<int64_t>(Arena::Rounded(components * sizeof(float)) + encoded) + DisplacementBoundWorkspaceBytes();
}

absl::Status ProduceField(const ExecContext& ctx, const Transform& transform, const FieldAnswer& answer,
                          BulkBuffer& stream, LatencyBreakdown& latency, const AdvanceFn& advanced) {
  if (answer.form == FieldForm::kControlPoints) {
    return ProduceCopy(ctx, transform.control_grid().data, stream, latency, advanced);
  }
  ArenaScope scope(ctx.arena());
  return Conclude(ctx, FieldSlabs(ctx, transform, answer, stream, latency, advanced), stream);
}

absl::Status ProduceCopy(const ExecContext& ctx, const void* data, BulkBuffer& stream, LatencyBreakdown& latency,
                         const AdvanceFn& advanced) {
  return Conclude(ctx, CopySlabs(ctx, data, stream, latency, advanced), stream);
}

}  // namespace intrawarp::server
