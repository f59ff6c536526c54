// SPDX-License-Identifier: Apache-2.0
// LNCC (lncc.h) in the affine objective on CUDA: the warp of the moving image, and the term of the summing pass.
#ifndef INTRAWARP_ENGINE_METRIC_LNCC_AFFINE_CUH_
#define INTRAWARP_ENGINE_METRIC_LNCC_AFFINE_CUH_

#include "engine/image/sample.h"
#include "engine/metric/affine_moments.cuh"

namespace intrawarp::cuda {

inline constexpr int kWarpThreads = 256, kWarpWarps = kWarpThreads / 32;

// Writes args.warped, NaN where there is no sample, with kWeighted the samples' weights to args.voxel_derivative, and
// says in args.skip whether the evaluation is skipped. A warp takes a piece: 32 columns of x, args.run rows of y.
template <Masking kMasking, typename Finish>
__global__ void __launch_bounds__(kWarpThreads) AffineWarpKernel(const ObjectiveArgs args, Finish finish) {
  const bool done = finish.Done();
  if (blockIdx.x == 0 && threadIdx.x == 0) *args.skip = done ? 1 : 0;
  if (done) return;
  __shared__ AffineMapF map;
  LoadIndexMap(finish.Position(), args, map);
  const int piece = blockIdx.x * kWarpWarps + threadIdx.x / 32;
  const int columns = (args.fixed_size.x + 31) / 32, runs = (args.fixed_size.y + args.run - 1) / args.run;
  const int x = piece % columns * 32 + (threadIdx.x & 31), y0 = piece / columns % runs * args.run;
  const int z = piece / columns / runs, y1 = min(y0 + args.run, args.fixed_size.y);
  if (piece >= args.pieces || x >= args.fixed_size.x) return;
  for (int y = y0; y < y1; ++y) {
    const size_t offset = (static_cast<size_t>(z) * args.fixed_size.y + y) * args.fixed_size.x + x;
    Vec3f index;
    float weight;
    const bool counts = FindSample<kMasking>(args, map, x, y, z, offset, &index, &weight);
    args.warped[offset] =
        counts ? SampleLinear(args.moving, args.moving_size, index) : __int_as_float(0x7fffffff);  // NaN
    if constexpr (kMasking == Masking::kWeighted) args.voxel_derivative[offset] = counts ? weight : 0.0f;
  }
}

// From the images that EvaluateLncc stores.
struct StoredTerm {
  static constexpr bool kIsSquare = false;
  static __device__ float Scale(const ObjectiveArgs&) { return 1; }
  static __device__ SampleTerm At(const ObjectiveArgs& args, size_t offset, float) {
    return {args.voxel_derivative[offset], args.voxel_curvature[offset]};
  }
};

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_METRIC_LNCC_AFFINE_CUH_
