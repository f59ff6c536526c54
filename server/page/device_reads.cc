// SPDX-License-Identifier: Apache-2.0
#include "server/page/device_reads.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <memory>

#include "engine/base/status_macros.h"
#include "engine/schedule/copy_lane.h"
#include "server/device/device_set.h"
#include "server/job/job_support.h"

namespace intrawarp::server {
namespace {

constexpr int64_t kSlabBytes = int64_t{4} << 20;

// Runs `work` on the copy lane and waits for it.
absl::Status OnCopyLane(DeviceContext& context, std::function<absl::Status(const ExecContext& ctx)> work) {
  INTRAWARP_RETURN_IF_ERROR(CheckUsable(context));
  auto done = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> status = done->get_future();
  INTRAWARP_RETURN_IF_ERROR(
      context.copies.Submit([work = std::move(work), done](const absl::StatusOr<const ExecContext*>& ctx) {
        done->set_value(ctx.ok() ? work(**ctx) : ctx.status());
      }));
  return status.get();
}

absl::Status EvaluateTo(const ExecContext& ctx, const Transform& transform, const Geometry& grid, void* to) {
  const auto bytes = static_cast<size_t>(3 * grid.voxels()) * sizeof(float);
  INTRAWARP_ASSIGN_OR_RETURN(Buffer nodes, ctx.device().Allocate(bytes, ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(EvaluateField(ctx, transform, grid, 0, grid.voxels(), nodes.as<float>()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(to, nodes.as<char>(), bytes, ctx.stream()));
  return ctx.device().Synchronize(ctx.stream());
}

}  // namespace

absl::StatusOr<ShownField> ReadField(DeviceContext& context, const Transform& transform, const Geometry& fixed,
                                     const std::string& owner) {
  const Geometry grid = CoarseGrid(fixed);
  const int64_t bytes = 3 * grid.voxels() * static_cast<int64_t>(sizeof(float));
  Claim claim;
  claim.owner = owner;
  claim.workspace_bytes = bytes;
  INTRAWARP_ASSIGN_OR_RETURN(const Grant workspace, Admit(context, claim));
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<PinnedBuffer> host, LeasePinned(context, bytes, owner));
  INTRAWARP_RETURN_IF_ERROR(
      OnCopyLane(context, [&](const ExecContext& ctx) { return EvaluateTo(ctx, transform, grid, host->as<char>()); }));
  return ShowField(host->as<float>(), grid);
}

absl::StatusOr<std::vector<float>> ReadVoxels(DeviceContext& context, const PreparedImage& image,
                                              const std::string& owner) {
  const ConstVolumeView volume = image.volume();
  const int64_t bytes = volume.geometry.voxels() * static_cast<int64_t>(sizeof(float));
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<PinnedBuffer> slab,
                             LeasePinned(context, std::min(bytes, kSlabBytes), owner));
  std::vector<float> voxels(volume.geometry.voxels());
  for (int64_t at = 0; at < bytes; at += kSlabBytes) {
    const auto count = static_cast<size_t>(std::min(kSlabBytes, bytes - at));
    INTRAWARP_RETURN_IF_ERROR(OnCopyLane(context, [&](const ExecContext& ctx) {
      const char* const from = reinterpret_cast<const char*>(volume.data) + at;
      INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(slab->as<char>(), from, count, ctx.stream()));
      return ctx.device().Synchronize(ctx.stream());
    }));
    std::memcpy(reinterpret_cast<char*>(voxels.data()) + at, slab->as<char>(), count);
  }
  return voxels;
}

}  // namespace intrawarp::server
