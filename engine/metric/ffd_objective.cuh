// SPDX-License-Identifier: Apache-2.0
// The fused passes of the FFD objective (ffd_objective.h) on CUDA, one kernel for each: a march over the fixed image
// (ffd_march.cuh) with a metric's terms.
#ifndef INTRAWARP_ENGINE_METRIC_FFD_OBJECTIVE_CUH_
#define INTRAWARP_ENGINE_METRIC_FFD_OBJECTIVE_CUH_

#include "engine/metric/ffd_march.cuh"
#include "engine/metric/mind_ffd.cuh"
#include "engine/metric/nmi_ffd.cuh"
#include "engine/metric/ssd_ffd.cuh"

namespace intrawarp::cuda {

enum class FfdPass {
  kSsdValue,
  kSsd,
  kMindValue,
  kMind,
  // Force from FfdArgs::nmi_derivative.
  kNmi,
  kWarp,
  // Force from FfdArgs::voxel_gradient.
  kVoxelGradient,
};
constexpr bool HasGradient(FfdPass p) {
  return p == FfdPass::kSsd || p == FfdPass::kMind || p == FfdPass::kNmi || p == FfdPass::kVoxelGradient;
}
constexpr bool IsMind(FfdPass p) { return p == FfdPass::kMindValue || p == FfdPass::kMind; }
// The pass sums squared differences.
constexpr bool HasSums(FfdPass p) { return IsMind(p) || p == FfdPass::kSsdValue || p == FfdPass::kSsd; }

inline constexpr int kPassTileY = 8;

// MIND holds eight descriptors in registers.
template <FfdPass kPass>
inline constexpr int kBlocksPerProcessor = IsMind(kPass) ? 2 : 3;

// The voxel gradient's pass is never kWeighted: its image has the weights in it.
template <FfdPass kPass, Masking kMasking>
__global__ void __launch_bounds__(kFfdTileX* kPassTileY, kBlocksPerProcessor<kPass>) FfdKernel(const FfdArgs a) {
  if (a.skip != nullptr && *a.skip != 0) return;
  extern __shared__ float4 dynamic_shared[];
  constexpr bool kGradient = HasGradient(kPass), kSums = HasSums(kPass);
  constexpr bool kMasked = kMasking != Masking::kNone, kWeighted = kMasking == Masking::kWeighted;
  float* shared = reinterpret_cast<float*>(dynamic_shared);
  const float* const table = shared;
  if (kPass == FfdPass::kNmi) {
    for (int i = threadIdx.x; i < kNmiBins * kNmiBins / 4; i += blockDim.x) {
      dynamic_shared[i] = reinterpret_cast<const float4*>(a.nmi_derivative)[i];
    }
    shared += kNmiBins * kNmiBins;
  }
  PieceMarch<kPassTileY, kGradient> march(a, shared);
  march.Begin(blockIdx.x);
  const size_t plane = static_cast<size_t>(a.size.x) * a.size.y;
  size_t offset = march.z0 * plane + static_cast<size_t>(march.y) * a.size.x + march.x;
  float value = 0, sum_of_weights = 0;
  int samples = 0;
  for (int i = 0; i < march.count; ++i, offset += plane) {
    while (march.VoxelBase(i) > march.base_z) march.Advance();
    const float4 weights = march.VoxelWeights(i);
    bool is_sample = march.valid;
    float known = 0;
    int bin = 0;
    if (is_sample) {
      if (kPass == FfdPass::kNmi) {
        bin = a.fixed_bins[offset];
        is_sample = bin != kNmiNoBin;
      } else {
        if (kPass != FfdPass::kWarp && !IsMind(kPass))
          known = __ldg((kPass == FfdPass::kVoxelGradient ? a.voxel_gradient : a.fixed) + offset);
        // The voxel gradient is 0 where the mask is.
        if (kMasked && kPass != FfdPass::kVoxelGradient && a.fixed_mask != nullptr) {
          is_sample = __ldg(a.fixed_mask + offset) != 0;
        }
      }
    }
    if constexpr (IsMind(kPass)) {
      MovingCell cell;
      if (is_sample) is_sample = FindCell<kMasking>(a, march.frame, march.Position(i, weights), &cell);
      Vec3f force;
      if (is_sample) {
        const float weight = kWeighted ? FixedWeight(a, offset) * cell.mask_weight : 1.0f;
        force = MindForce<kWeighted>(a, cell, LoadChannels(a.fixed_descriptors, offset), weight, &value);
        if (kWeighted) sum_of_weights += weight;
        ++samples;
      }
      if constexpr (kGradient) march.AddForce(weights, force);
      continue;
    }
    MovingSample sample;
    if (is_sample) is_sample = SampleMoving<kMasking>(a, march.frame, march.Position(i, weights), &sample);
    const float weight = kWeighted && is_sample ? FixedWeight(a, offset) * sample.weight : 0.0f;
    float r = 0;
    if (kSums && is_sample) {
      const float difference = sample.value - known;
      r = kWeighted ? weight * difference : difference;
      value = fmaf(r, difference, value);
      if (kWeighted) sum_of_weights += weight;
      ++samples;
    }
    if (kPass == FfdPass::kNmi && is_sample) {
      r = NmiVoxelGradient(table + bin * kNmiBins, MakeNmiWindow(a.moving_bins, sample.value));
      if (kWeighted) r *= weight;
    }
    if (kPass == FfdPass::kVoxelGradient && is_sample) r = known;
    if (kPass == FfdPass::kWarp && march.valid)
      a.warped[offset] = is_sample ? sample.value : __int_as_float(0x7fffffff);
    if (kPass == FfdPass::kWarp && kWeighted && march.valid) a.warped_weights[offset] = weight;
    if constexpr (kGradient) march.AddForce(weights, r * sample.gradient);
  }
  march.End();
  if constexpr (kSums) {
    SampleSums<kWeighted ? 3 : 2> sums, total;
    sums.of[0] = value;
    sums.of[1] = samples;
    if constexpr (kWeighted) sums.of[2] = sum_of_weights;
    if (SumOverBlocks<kFfdTileX * kPassTileY>(a, sums, &total)) {
      const double weight = total.of[kWeighted ? 2 : 1];
      a.value->metric = weight > 0 ? a.scale * total.of[0] / weight : nan("");
      a.value->samples = total.of[1];
      *a.total_weight = weight;
    }
  }
}

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_METRIC_FFD_OBJECTIVE_CUH_
