// SPDX-License-Identifier: Apache-2.0
// NMI (nmi.h) in the affine objective on CUDA: the count of the joint histogram, and the term of the summing pass.
#ifndef INTRAWARP_ENGINE_METRIC_NMI_AFFINE_CUH_
#define INTRAWARP_ENGINE_METRIC_NMI_AFFINE_CUH_

#include "engine/image/sample.h"
#include "engine/metric/affine_moments.cuh"
#include "engine/metric/nmi.cuh"

namespace intrawarp::cuda {

inline constexpr int kNmiCountThreads = 256, kNmiCountWarps = kNmiCountThreads / 32;
inline constexpr int kNmiCountCopies = 2;

// Counts a piece: 32 columns of x, args.run rows of y.
template <Masking kMasking>
__device__ inline void CountPiece(const ObjectiveArgs& args, const AffineMapF& map, int piece, unsigned* histogram) {
  const int columns = (args.fixed_size.x + 31) / 32, runs = (args.fixed_size.y + args.run - 1) / args.run;
  const int x = piece % columns * 32 + (threadIdx.x & 31), y0 = piece / columns % runs * args.run;
  const int z = piece / columns / runs, y1 = min(y0 + args.run, args.fixed_size.y);
  if (x >= args.fixed_size.x) return;
  BinRun<kNmiCountCopies> run(histogram);
  for (int y = y0; y < y1; ++y) {
    const size_t offset = (static_cast<size_t>(z) * args.fixed_size.y + y) * args.fixed_size.x + x;
    Vec3f index;
    float weight;
    if (!FindSample<kMasking>(args, map, x, y, z, offset, &index, &weight)) continue;
    const float value = SampleLinear(args.moving, args.moving_size, index);
    const int bin = NmiFixedBin(args.fixed_bins, args.fixed[offset]);
    const NmiWindow window = MakeNmiWindow(args.moving_bins, value);
    if constexpr (kMasking == Masking::kWeighted) {
      run.Add(bin, window, weight);
    } else {
      run.Add(bin, window);
    }
  }
  run.Flush();
}

// Adds the windows of all samples, by their weights, to args.histogram, integers in any order, and says in args.skip
// whether the evaluation is skipped. Any number of blocks.
template <Masking kMasking, typename Finish>
__global__ void __launch_bounds__(kNmiCountThreads) AffineNmiCountKernel(const ObjectiveArgs args, Finish finish) {
  const bool done = finish.Done();
  if (blockIdx.x == 0 && threadIdx.x == 0) *args.skip = done ? 1 : 0;
  if (done) return;
  __shared__ AffineMapF map;
  __shared__ unsigned histogram[HistogramWords<kNmiCountCopies>()];
  for (int i = threadIdx.x; i < HistogramWords<kNmiCountCopies>(); i += blockDim.x) histogram[i] = 0;
  LoadIndexMap(finish.Position(), args, map);  // ends with a barrier
  const int voxels = kNmiCountThreads * args.run;
  int counted = 0;
  for (int first = blockIdx.x * kNmiCountWarps; first < args.pieces; first += gridDim.x * kNmiCountWarps) {
    if (counted + voxels > kVoxelsBetweenFlushes) {
      FlushHistogram<kNmiCountCopies>(histogram, args.histogram);
      counted = 0;
    }
    counted += voxels;
    const int piece = first + threadIdx.x / 32;
    if (piece < args.pieces) CountPiece<kMasking>(args, map, piece, histogram);
  }
  FlushHistogram<kNmiCountCopies>(histogram, args.histogram);
}

// From the tables of NmiKernel.
struct NmiTerm {
  static constexpr bool kIsSquare = false;
  static __device__ float Scale(const ObjectiveArgs&) { return 1; }
  static __device__ SampleTerm At(const ObjectiveArgs& args, size_t offset, float value) {
    const int bin = NmiFixedBin(args.fixed_bins, args.fixed[offset]);
    const NmiWindow window = MakeNmiWindow(args.moving_bins, value);
    return {NmiVoxelGradient(args.nmi_derivative + bin * kNmiBins, window), args.nmi_curvature[bin]};
  }
};

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_METRIC_NMI_AFFINE_CUH_
