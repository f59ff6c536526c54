// SPDX-License-Identifier: Apache-2.0
// The kernel that sums the affine objective (affine_objective.h) on CUDA, for a metric whose derivative by a voxel's
// moving value and whose curvature in it are known voxel by voxel.
//
// A warp takes a run of rows, one lane a column of x: along the run x and z are constant, so that of the 60 different
// entries of sum h (g g^T) kron (q q^T) only 18 have to be summed per voxel (6 of h g g^T, with q_y^0, q_y^1, q_y^2).
#ifndef INTRAWARP_ENGINE_METRIC_AFFINE_MOMENTS_CUH_
#define INTRAWARP_ENGINE_METRIC_AFFINE_MOMENTS_CUH_

#include "engine/image/sample.h"
#include "engine/metric/affine_reduce.cuh"
#include "engine/metric/affine_terms.h"
#include "engine/metric/soft_mask.h"

namespace intrawarp::cuda {

inline constexpr int kMomentThreads = 256, kMomentWarps = kMomentThreads / 32;

struct Moments {
  float gg[3][6];  // [power of q_y][xx xy xz yy yz zz]
  float rg[2][3];  // [power of q_y][x y z]
  float value;
  float samples;
  // Only with weights.
  float weight;
};

// The moving index of a fixed voxel; false where it is not a sample.
template <bool kMasked>
__device__ inline bool FindSample(const ObjectiveArgs& args, const AffineMapF& map, int x, int y, int z, size_t offset,
                                  Vec3f* index) {
  if (kMasked && args.fixed_mask != nullptr && args.fixed_mask[offset] == 0) return false;
  *index = map({static_cast<float>(x), static_cast<float>(y), static_cast<float>(z)});
  if (!IsInside(args.moving_size, *index)) return false;
  return !kMasked || args.moving_mask == nullptr || args.moving_mask[NearestOffset(args.moving_size, *index)] != 0;
}

// The same, and the weight of a sample.
template <Masking kMasking>
__device__ inline bool FindSample(const ObjectiveArgs& args, const AffineMapF& map, int x, int y, int z, size_t offset,
                                  Vec3f* index, float* weight) {
  *weight = 1;
  if constexpr (kMasking != Masking::kWeighted) {
    return FindSample<kMasking != Masking::kNone>(args, map, x, y, z, offset, index);
  } else {
    if (args.fixed_mask != nullptr) {
      const uint8_t byte = args.fixed_mask[offset];
      if (byte == 0) return false;
      *weight = MaskWeight(byte, args.fixed_weight_per_unit);
    }
    *index = map({static_cast<float>(x), static_cast<float>(y), static_cast<float>(z)});
    if (!IsInside(args.moving_size, *index)) return false;
    if (args.moving_mask == nullptr) return true;
    const uint8_t byte = args.moving_mask[NearestOffset(args.moving_size, *index)];
    *weight *= MaskWeight(byte, args.moving_weight_per_unit);
    return byte != 0;
  }
}

// The derivative of the metric by a moving value, and its curvature in it.
struct SampleTerm {
  float derivative, curvature;
};

// Term is a class with
//   static constexpr bool kIsSquare;   whether the metric is half the sum of the derivatives' squares, and h is 1;
//                                      under weights, half the sum of the weighted squares, and h is the weight
//   static float Scale(args);          a factor to the moving image's derivative
//   static SampleTerm At(args, size_t offset, float value);   of the fixed voxel at `offset`
template <class Term, Masking kMasking>
__device__ inline void AddSample(const ObjectiveArgs& args, const AffineMapF& map, int x, int y, int z, float qy,
                                 Moments& m) {
  const size_t offset = (static_cast<size_t>(z) * args.fixed_size.y + y) * args.fixed_size.x + x;
  constexpr bool kWeighted = kMasking == Masking::kWeighted;
  Vec3f index;
  float weight;
  if (!FindSample<kMasking>(args, map, x, y, z, offset, &index, &weight)) return;
  Vec3f g;
  const SampleTerm term = Term::At(args, offset, SampleLinearGradient(args.moving, args.moving_size, index, &g));
  const float r = kWeighted ? weight * term.derivative : term.derivative;
  g = Term::Scale(args) * g;
  const float curvature = kWeighted ? (Term::kIsSquare ? weight : weight * term.curvature) : term.curvature;
  const Vec3f h = Term::kIsSquare && !kWeighted ? g : curvature * g;
  const float gg[6] = {h.x * g.x, h.x * g.y, h.x * g.z, h.y * g.y, h.y * g.z, h.z * g.z};
  const float rg[3] = {r * g.x, r * g.y, r * g.z};
  const float qy2 = qy * qy;
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    m.gg[0][i] += gg[i];
    m.gg[1][i] += qy * gg[i];
    m.gg[2][i] += qy2 * gg[i];
  }
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    m.rg[0][i] += rg[i];
    m.rg[1][i] += qy * rg[i];
  }
  if (Term::kIsSquare) m.value += 0.5f * r * term.derivative;
  m.samples += 1.0f;
  if (kWeighted) m.weight += weight;
}

// Entry i of the 96 sums from a lane's moments and its q_x, q_z; i is a compile-time constant after unrolling.
__device__ inline float MomentEntry(const Moments& m, float qx, float qz, int i) {
  if (i < 60) {
    const int a = i / 10, b = i % 10;
    const float s0 = m.gg[0][a], s1 = m.gg[1][a], s2 = m.gg[2][a];
    return b == 0   ? qx * qx * s0
           : b == 1 ? qx * s1
           : b == 2 ? qx * qz * s0
           : b == 3 ? qx * s0
           : b == 4 ? s2
           : b == 5 ? qz * s1
           : b == 6 ? s1
           : b == 7 ? qz * qz * s0
           : b == 8 ? qz * s0
                    : s0;
  }
  if (i < 72) {
    const int a = (i - 60) / 4, c = (i - 60) % 4;
    return c == 0 ? qx * m.rg[0][a] : c == 1 ? m.rg[1][a] : c == 2 ? qz * m.rg[0][a] : m.rg[0][a];
  }
  return i == 72 ? m.value : i == 73 ? m.samples : i == 74 ? m.weight : 0.0f;
}

__device__ inline int Symmetric3(int i, int j) {
  const int a = i < j ? i : j, b = i < j ? j : i;
  return a == 0 ? b : a + b + 1;  // 00 01 02 11 12 22 -> 0 1 2 3 4 5
}
__device__ inline int Symmetric4(int i, int j) {
  const int a = i < j ? i : j, b = i < j ? j : i;
  return a * 4 - a * (a - 1) / 2 + (b - a);
}

// The 96 sums as NormalEquations; all threads of the block call it. Unless the metric is a sum of squares, D is at
// args.value, and the sums are those of its derivatives.
template <class Term, bool kWeighted>
__device__ inline void ExpandMoments(const double* total, const ObjectiveArgs& args, NormalEquations& sums) {
  const double weight = Term::kIsSquare ? 1 : SampleWeight(*args.value);
  const auto weighted = [&](double sum) { return Term::kIsSquare ? sum : weight > 0 ? weight * sum : 0; };
  for (int i = threadIdx.x; i < kAffineParameters * kAffineParameters; i += blockDim.x) {
    const int p = i / kAffineParameters, q = i % kAffineParameters;
    if (p > q) continue;
    sums.hessian[HessianEntry(p, q)] = weighted(total[Symmetric3(p / 4, q / 4) * 10 + Symmetric4(p % 4, q % 4)]);
  }
  if (threadIdx.x < kAffineParameters) sums.gradient[threadIdx.x] = weighted(total[60 + threadIdx.x]);
  if (threadIdx.x == 0) {
    sums.value = Term::kIsSquare ? total[72] : weighted(args.value->metric);
    sums.samples = Term::kIsSquare || kWeighted ? total[73] : args.value->samples;
    sums.weight = !Term::kIsSquare ? weight : total[kWeighted ? 74 : 73];
  }
  __syncthreads();
}

template <class Term, Masking kMasking, typename Finish>
__global__ void __launch_bounds__(kMomentThreads) AffineMomentKernel(const ObjectiveArgs args, Finish finish) {
  if (finish.Done()) return;
  __shared__ AffineMapF map;
  __shared__ double warp_sums[kMomentWarps][kObjectiveSums];
  __shared__ double total[kObjectiveSums];
  LoadIndexMap(finish.Position(), args, map);
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const int worker = blockIdx.x * kMomentWarps + warp;
  const int columns = (args.fixed_size.x + 31) / 32, runs = (args.fixed_size.y + args.run - 1) / args.run;
  double lane_sums[3] = {0, 0, 0};
  const int end = min((worker + 1) * args.pieces_per_worker, args.pieces);
  for (int piece = worker * args.pieces_per_worker; piece < end; ++piece) {
    const int x = piece % columns * 32 + lane, y0 = piece / columns % runs * args.run, z = piece / columns / runs;
    const int y1 = min(y0 + args.run, args.fixed_size.y);
    Moments m = {};
    if (x < args.fixed_size.x) {
#pragma unroll 2
      for (int y = y0; y < y1; ++y) {
        AddSample<Term, kMasking>(args, map, x, y, z, (y - args.center.y) * args.inverse_radius.y, m);
      }
    }
    const float qx = (x - args.center.x) * args.inverse_radius.x, qz = (z - args.center.z) * args.inverse_radius.z;
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      float v[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) v[i] = MomentEntry(m, qx, qz, g * 32 + i);
      lane_sums[g] += ReduceScatter(v);
    }
  }
  for (int g = 0; g < 3; ++g) warp_sums[warp][g * 32 + lane] = lane_sums[g];
  if (!ReduceBlocks(args, warp_sums, total)) return;
  __shared__ NormalEquations sums;
  ExpandMoments<Term, kMasking == Masking::kWeighted>(total, args, sums);
  finish(sums);
}

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_METRIC_AFFINE_MOMENTS_CUH_
