// SPDX-License-Identifier: Apache-2.0
// The launches of the affine objective (affine_objective.h) on CUDA. The last one sums value, gradient and Hessian:
// every block sums its samples, the last block of a group sums the group, the last block of a map sums the groups and
// calls `finish` with the result, so that an optimiser can take its step in the same launch. The order of summation
// depends on the image's size only. SSD and NGF evaluate several maps in one launch (blockIdx.y is the map), which
// fills the device where a level is small; each map's sums have the bits that it would have by itself.
//
// Traffic of SSD and NGF: each fixed and moving voxel is read once (8 bytes a fixed voxel); nothing is written per
// voxel. SSD is bound by instruction issue, NGF by it twice over. NMI reads both twice; LNCC writes and reads the
// warped image and its derivative besides what EvaluateLncc does.
#ifndef INTRAWARP_ENGINE_METRIC_AFFINE_OBJECTIVE_CUH_
#define INTRAWARP_ENGINE_METRIC_AFFINE_OBJECTIVE_CUH_

#include <algorithm>
#include <cstdint>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/metric/affine_moments.cuh"
#include "engine/metric/affine_objective.h"
#include "engine/metric/affine_reduce.cuh"
#include "engine/metric/affine_terms.h"
#include "engine/metric/lncc.h"
#include "engine/metric/lncc_affine.cuh"
#include "engine/metric/ngf_affine.cuh"
#include "engine/metric/nmi.cuh"
#include "engine/metric/nmi_affine.cuh"
#include "engine/metric/soft_mask.h"
#include "engine/metric/ssd_affine.cuh"

namespace intrawarp::cuda {

inline absl::Status SetUpNmi(const ExecContext& ctx, const AffineObjective& objective, ObjectiveArgs* args) {
  constexpr int kCells = kNmiBins * kNmiBins;
  args->fixed_bins = FixedScale(objective);
  args->moving_bins = MovingScale(objective);
  INTRAWARP_ASSIGN_OR_RETURN(args->histogram, ctx.arena().Allocate<unsigned long long>(kCells));
  INTRAWARP_ASSIGN_OR_RETURN(args->nmi_derivative, ctx.arena().Allocate<float>(kCells));
  INTRAWARP_ASSIGN_OR_RETURN(args->nmi_curvature, ctx.arena().Allocate<float>(kNmiBins));
  return ctx.device().Fill(args->histogram, 0, sizeof(*args->histogram) * kCells, ctx.stream());
}

inline absl::Status SetUpLncc(const ExecContext& ctx, const AffineObjective& objective, ObjectiveArgs* args) {
  const int64_t voxels = objective.fixed.geometry.voxels();
  INTRAWARP_ASSIGN_OR_RETURN(args->warped, ctx.arena().Allocate<float>(voxels));
  INTRAWARP_ASSIGN_OR_RETURN(args->voxel_derivative, ctx.arena().Allocate<float>(voxels));
  INTRAWARP_ASSIGN_OR_RETURN(args->voxel_curvature, ctx.arena().Allocate<float>(voxels));
  return absl::OkStatus();
}

// Takes workspace from the arena (it stays taken: use an ArenaScope) and clears it.
inline absl::Status SetUpObjective(const ExecContext& ctx, const AffineObjective& objective, ObjectiveArgs* args) {
  *args = {};
  const Geometry& fixed = objective.fixed.geometry;
  args->fixed = objective.fixed.data;
  args->moving = objective.moving.data;
  args->fixed_mask = objective.fixed_mask.data;
  args->moving_mask = objective.moving_mask.data;
  args->fixed_weight_per_unit = objective.fixed_mask.weight_per_unit;
  args->moving_weight_per_unit = objective.moving_mask.weight_per_unit;
  args->fixed_size = fixed.size;
  args->moving_size = objective.moving.geometry.size;
  for (int a = 0; a < 3; ++a) {
    args->center[a] = 0.5f * (fixed.size[a] - 1);
    args->inverse_radius[a] = 2.0f / std::max(fixed.size[a] - 1, 1);
    args->half_inverse_spacing[a] = fixed.size[a] > 1 ? static_cast<float>(0.5 / fixed.spacing[a]) : 0.0f;
  }
  args->intensity_scale = static_cast<float>(objective.intensity_scale);
  args->fixed_eta2 = static_cast<float>(objective.fixed_edge * objective.fixed_edge);
  args->moving_eta2 = static_cast<float>(objective.moving_edge * objective.moving_edge);
  INTRAWARP_ASSIGN_OR_RETURN(args->block_sums, ctx.arena().Allocate<double>(kObjectiveSums * kMaxObjectiveBlocks));
  INTRAWARP_ASSIGN_OR_RETURN(args->group_sums, ctx.arena().Allocate<double>(kObjectiveSums * kMaxObjectiveGroups));
  constexpr int kTickets = kMaxObjectiveGroups + kMaxMapsAtOnce;
  INTRAWARP_ASSIGN_OR_RETURN(args->tickets, ctx.arena().Allocate<unsigned>(kTickets));
  INTRAWARP_ASSIGN_OR_RETURN(args->value, ctx.arena().Allocate<MetricValue>(1));
  INTRAWARP_ASSIGN_OR_RETURN(args->skip, ctx.arena().Allocate<int>(1));
  if (objective.metric == MetricKind::kNmi) INTRAWARP_RETURN_IF_ERROR(SetUpNmi(ctx, objective, args));
  if (objective.metric == MetricKind::kLncc) INTRAWARP_RETURN_IF_ERROR(SetUpLncc(ctx, objective, args));
  return ctx.device().Fill(args->tickets, 0, sizeof(unsigned) * kTickets, ctx.stream());
}

inline int CeilDivide(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

// The cut of the fixed image into pieces of 32 columns and a run of rows.
inline void SetPieces(ObjectiveArgs* args) {
  const Int3 n = args->fixed_size;
  const int64_t voxels = int64_t{n.x} * n.y * n.z;
  args->run = voxels >= (1 << 21) ? 32 : voxels >= (1 << 18) ? 16 : 8;
  args->pieces = CeilDivide(n.x, 32) * CeilDivide(n.y, args->run) * n.z;
  args->pieces_per_worker = CeilDivide(args->pieces, 528 * kMomentWarps);
}

inline bool IsMasked(const ObjectiveArgs& args) { return args.fixed_mask != nullptr || args.moving_mask != nullptr; }
inline Masking MaskingOf(const ObjectiveArgs& args) {
  return intrawarp::MaskingOf(ConstMaskView{args.fixed_mask, {}, args.fixed_weight_per_unit},
                              ConstMaskView{args.moving_mask, {}, args.moving_weight_per_unit});
}

// Calls launch(grid, finish of the grid's first map) for all `maps`, `blocks` blocks a map, as many maps at once as the
// workspace has room for.
template <typename Finish, typename Launch>
absl::Status LaunchForMaps(int blocks, int maps, const Finish& finish, const Launch& launch) {
  const int at_once = std::clamp(kMaxObjectiveBlocks / blocks, 1, kMaxMapsAtOnce);
  for (int first = 0; first < maps; first += at_once) {
    launch(dim3(blocks, std::min(at_once, maps - first)), finish.From(first));
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  }
  return absl::OkStatus();
}

// With kTakesWeights the kernel multiplies by the samples' weights; otherwise Term has done so.
template <class Term, bool kTakesWeights, typename Finish>
absl::Status LaunchMoments(const ExecContext& ctx, const ObjectiveArgs& args, const Finish& finish, int maps) {
  const int blocks = CeilDivide(args.pieces, int64_t{args.pieces_per_worker} * kMomentWarps);
  const cudaStream_t stream = CudaStream(ctx);
  return LaunchForMaps(blocks, maps, finish, [&](dim3 grid, const Finish& at) {
    if (!IsMasked(args)) {
      AffineMomentKernel<Term, Masking::kNone><<<grid, kMomentThreads, 0, stream>>>(args, at);
      return;
    }
    if constexpr (kTakesWeights) {
      if (MaskingOf(args) == Masking::kWeighted) {
        AffineMomentKernel<Term, Masking::kWeighted><<<grid, kMomentThreads, 0, stream>>>(args, at);
        return;
      }
    }
    AffineMomentKernel<Term, Masking::kBinary><<<grid, kMomentThreads, 0, stream>>>(args, at);
  });
}

template <typename Finish>
void LaunchNmiCount(const ObjectiveArgs& args, const Finish& finish, int blocks, cudaStream_t stream) {
  switch (MaskingOf(args)) {
    case Masking::kNone:
      AffineNmiCountKernel<Masking::kNone><<<blocks, kNmiCountThreads, 0, stream>>>(args, finish);
      return;
    case Masking::kBinary:
      AffineNmiCountKernel<Masking::kBinary><<<blocks, kNmiCountThreads, 0, stream>>>(args, finish);
      return;
    case Masking::kWeighted:
      AffineNmiCountKernel<Masking::kWeighted><<<blocks, kNmiCountThreads, 0, stream>>>(args, finish);
      return;
  }
}

template <typename Finish>
absl::Status LaunchNmi(const ExecContext& ctx, const ObjectiveArgs& args, const Finish& finish) {
  // Integer sums are the same for any number of blocks.
  constexpr int kMaxBlocks = 528;
  LaunchNmiCount(args, finish, std::min(kMaxBlocks, CeilDivide(args.pieces, kNmiCountWarps)), CudaStream(ctx));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  const NmiArgs nmi{args.skip,           args.histogram,     args.moving_bins, args.value,
                    args.nmi_derivative, args.nmi_curvature, nullptr};
  NmiKernel<<<1, kNmiThreads, 0, CudaStream(ctx)>>>(nmi);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return LaunchMoments<NmiTerm, true>(ctx, args, finish, 1);
}

template <typename Finish>
void LaunchWarp(const ObjectiveArgs& args, const Finish& finish, int blocks, cudaStream_t stream) {
  switch (MaskingOf(args)) {
    case Masking::kNone:
      AffineWarpKernel<Masking::kNone><<<blocks, kWarpThreads, 0, stream>>>(args, finish);
      return;
    case Masking::kBinary:
      AffineWarpKernel<Masking::kBinary><<<blocks, kWarpThreads, 0, stream>>>(args, finish);
      return;
    case Masking::kWeighted:
      AffineWarpKernel<Masking::kWeighted><<<blocks, kWarpThreads, 0, stream>>>(args, finish);
      return;
  }
}

template <typename Finish>
absl::Status LaunchLncc(const ExecContext& ctx, const AffineObjective& objective, const ObjectiveArgs& args,
                        const Finish& finish) {
  LnccTask task = MakeLnccTask(objective, args.warped, args.voxel_curvature);
  // EvaluateLncc takes the weights out of the image that the derivative goes to.
  if (MaskingOf(args) == Masking::kWeighted) task.weights = args.voxel_derivative;
  LaunchWarp(args, finish, CeilDivide(args.pieces, kWarpWarps), CudaStream(ctx));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  INTRAWARP_RETURN_IF_ERROR(intrawarp::EvaluateLncc(ctx, task, args.skip, args.voxel_derivative, args.value));
  return LaunchMoments<StoredTerm, false>(ctx, args, finish, 1);
}

// kDim: 2 where both images have one plane.
template <int kDim, typename Finish>
void LaunchNgfKernel(const ObjectiveArgs& args, const Finish& finish, dim3 grid, cudaStream_t stream) {
  switch (MaskingOf(args)) {
    case Masking::kNone:
      AffineNgfKernel<kDim, Masking::kNone><<<grid, kNgfThreads, 0, stream>>>(args, finish);
      return;
    case Masking::kBinary:
      AffineNgfKernel<kDim, Masking::kBinary><<<grid, kNgfThreads, 0, stream>>>(args, finish);
      return;
    case Masking::kWeighted:
      AffineNgfKernel<kDim, Masking::kWeighted><<<grid, kNgfThreads, 0, stream>>>(args, finish);
      return;
  }
}

template <typename Finish>
absl::Status LaunchNgf(const ExecContext& ctx, ObjectiveArgs args, const Finish& finish, int maps) {
  const Int3 n = args.fixed_size;
  const bool is_3d = n.z > 1 || args.moving_size.z > 1;
  const cudaStream_t stream = CudaStream(ctx);
  const int tiles = CeilDivide(n.x, kNgfTileX) * CeilDivide(n.y, kNgfTileY);
  args.run = 1;
  if (is_3d) {
    args.run = 32;
    while (args.run > 4 && tiles * CeilDivide(n.z, args.run) < 264) args.run /= 2;
  }
  args.pieces = tiles * CeilDivide(n.z, args.run);
  args.pieces_per_worker = CeilDivide(args.pieces, is_3d ? kMaxObjectiveBlocks : 1056);
  const int blocks = CeilDivide(args.pieces, args.pieces_per_worker);
  return LaunchForMaps(blocks, maps, finish, [&](dim3 grid, const Finish& at) {
    is_3d ? LaunchNgfKernel<3>(args, at, grid, stream) : LaunchNgfKernel<2>(args, at, grid, stream);
  });
}

// Enqueues one evaluation of each of `maps` maps. Finish, on the device, for the map blockIdx.y: Done() skips it,
// Position() is W, and operator()(sums) is called by every thread of the last block, with the sums in shared memory. On
// the host, From(first) is the finish whose map 0 is this one's map `first`.
template <typename Finish>
absl::Status LaunchAffineObjective(const ExecContext& ctx, const AffineObjective& objective, ObjectiveArgs args,
                                   const Finish& finish, int maps) {
  if (objective.metric == MetricKind::kNgf) return LaunchNgf(ctx, args, finish, maps);
  SetPieces(&args);
  if (objective.metric == MetricKind::kSsd) return LaunchMoments<SsdTerm, true>(ctx, args, finish, maps);
  for (int map = 0; map < maps; ++map) {
    const Finish at = finish.From(map);
    INTRAWARP_RETURN_IF_ERROR(objective.metric == MetricKind::kNmi ? LaunchNmi(ctx, args, at)
                                                                   : LaunchLncc(ctx, objective, args, at));
  }
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_METRIC_AFFINE_OBJECTIVE_CUH_
