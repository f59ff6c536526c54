// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/slab_source.h"

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/transform/velocity.h"
#include "server/bulk/bulk_stream.h"

namespace intrawarp::server {
namespace {

int64_t VoxelBytes(const FieldRequest& request) { return 3 * BytesPerComponent(request.component); }

int64_t FloatBytes(int64_t voxels) {
  return static_cast<int64_t>(Arena::Rounded(static_cast<size_t>(voxels) * 3 * sizeof(float)));
}

}  // namespace

ResidentSource::ResidentSource(ResidentBytes from)
    : SlabSource(TotalBytes(from.bytes), kSlabBytes), from_(std::move(from)) {}

absl::Status ResidentSource::Read(const ExecContext& ctx, int64_t begin, int64_t bytes, void* to) {
  return CopyRange(ctx, from_.bytes, begin, bytes, to);
}

int64_t FieldSource::SlabBytes(const FieldRequest& request) { return kSlabVoxels * VoxelBytes(request); }

int64_t FieldSource::ScratchBytes(const Device& device, const FieldRequest& request, const Geometry& grid) {
  const int64_t voxels = std::min(kSlabVoxels, grid.voxels());
  const bool encodes = request.component != ComponentType::kFloat32;
  const bool is_cuda = device.kind() == DeviceKind::kCuda;
  const int64_t values = is_cuda || encodes ? FloatBytes(voxels) : 0;
  return values + (is_cuda && encodes ? voxels * VoxelBytes(request) : 0);
}

absl::StatusOr<std::unique_ptr<FieldSource>> FieldSource::Create(const ExecContext& ctx, const FieldRequest& request,
                                                                 Transform transform, std::shared_ptr<const void> owner,
                                                                 FieldAnswer answer, Grant& grant) {
  Scratch scratch;
  if (const int64_t bytes = ScratchBytes(ctx.device(), request, answer.grid); bytes > 0) {
    scratch.grant = grant.Split({.resident_bytes = bytes});
    INTRAWARP_ASSIGN_OR_RETURN(scratch.memory, ctx.device().Allocate(static_cast<size_t>(bytes), ctx.stream()));
  }
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return std::unique_ptr<FieldSource>(
      new FieldSource(request, std::move(transform), std::move(owner), std::move(answer), std::move(scratch)));
}

FieldSource::FieldSource(const FieldRequest& request, Transform transform, std::shared_ptr<const void> owner,
                         FieldAnswer answer, Scratch scratch)
    : SlabSource(FieldBytes(request, answer.grid), SlabBytes(request)),
      owner_(std::move(owner)),
      transform_(std::move(transform)),
      answer_(std::move(answer)),
      voxel_bytes_(VoxelBytes(request)),
      scratch_(std::move(scratch)) {}

absl::Status FieldSource::Evaluate(const ExecContext& ctx, int64_t first, int64_t count, float* values) const {
  return answer_.form == FieldForm::kVelocity ? EvaluateVelocity(ctx, transform_, answer_.grid, first, count, values)
                                              : EvaluateField(ctx, transform_, answer_.grid, first, count, values);
}

absl::Status FieldSource::Read(const ExecContext& ctx, int64_t begin, int64_t bytes, void* to) {
  const int64_t count = bytes / voxel_bytes_;
  const bool encodes = answer_.encoding.type != ComponentType::kFloat32;
  float* const values = scratch_.memory.empty() ? static_cast<float*>(to) : scratch_.memory.as<float>();
  void* out = values;
  LatencyBreakdown latency;
  {
    PhaseTimer timer(latency, Phase::kEncode);
    INTRAWARP_RETURN_IF_ERROR(Evaluate(ctx, begin / voxel_bytes_, count, values));
    if (encodes) {
      const int64_t voxels = std::min(kSlabVoxels, answer_.grid.voxels());
      out = ctx.is_cuda() ? scratch_.memory.as<char>() + FloatBytes(voxels) : to;
      INTRAWARP_RETURN_IF_ERROR(EncodeComponents(ctx, values, 3 * count, answer_.encoding, out));
    }
  }
  {
    PhaseTimer timer(latency, Phase::kDownload);
    if (out != to) {
      INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(to, out, static_cast<size_t>(bytes), ctx.stream()));
    }
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Phase phase : {Phase::kEncode, Phase::kDownload}) latency_.Add(phase, latency.phase(phase));
  return absl::OkStatus();
}

LatencyBreakdown FieldSource::latency() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return latency_;
}

}  // namespace intrawarp::server
