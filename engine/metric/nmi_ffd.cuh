// SPDX-License-Identifier: Apache-2.0
// The kernels of NMI (nmi.h) in the FFD objective on CUDA: the joint histogram and the bins of the fixed image.
//
// The histogram is counted in shared memory, in copies that neighbouring lanes take turns at, so that the lanes of a
// warp that lies in the background do not all wait for the same bins. A thread adds up what goes into the same four
// bins along its march before it counts it.
#ifndef INTRAWARP_ENGINE_METRIC_NMI_FFD_CUH_
#define INTRAWARP_ENGINE_METRIC_NMI_FFD_CUH_

#include <cstdint>

#include "engine/device/warp.cuh"
#include "engine/metric/ffd_march.cuh"
#include "engine/metric/nmi.cuh"
#include "engine/metric/nmi.h"

namespace intrawarp::cuda {

inline constexpr int kCountTileY = 16;
// Integers in no order: blocks take the next piece as they come. kWeighted: adds the number of samples to *a.samples.
template <int kCopies, Masking kMasking>
__global__ void __launch_bounds__(kFfdTileX* kCountTileY, 2) NmiCountKernel(const FfdArgs a) {
  if (a.skip != nullptr && *a.skip != 0) return;
  extern __shared__ float4 dynamic_shared[];
  unsigned* const histogram = reinterpret_cast<unsigned*>(dynamic_shared);
  __shared__ int next;
  for (int i = threadIdx.x; i < HistogramWords<kCopies>(); i += blockDim.x) histogram[i] = 0;
  PieceMarch<kCountTileY, false> march(a, reinterpret_cast<float*>(histogram + HistogramWords<kCopies>()));
  const size_t plane = static_cast<size_t>(a.size.x) * a.size.y;
  const int piece_voxels = kFfdTileX * kCountTileY * a.tiles.run;
  int counted = 0;
  unsigned long long samples = 0;
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) next = atomicAdd(a.next_piece, 1u);
    __syncthreads();
    const int piece = next;
    if (piece >= a.tiles.pieces()) break;
    if (counted + piece_voxels > kVoxelsBetweenFlushes) {
      FlushHistogram<kCopies>(histogram, a.histogram);
      counted = 0;
    }
    counted += piece_voxels;
    march.Begin(piece);
    size_t offset = march.z0 * plane + static_cast<size_t>(march.y) * a.size.x + march.x;
    BinRun<kCopies> run(histogram);
    for (int i = 0; i < march.count; ++i, offset += plane) {
      while (march.VoxelBase(i) > march.base_z) march.Advance();
      const int bin = march.valid ? a.fixed_bins[offset] : kNmiNoBin;
      if (bin == kNmiNoBin) continue;
      MovingSample sample;
      if (!SampleMoving<kMasking>(a, march.frame, march.Position(i, march.VoxelWeights(i)), &sample)) continue;
      const NmiWindow window = MakeNmiWindow(a.moving_bins, sample.value);
      if constexpr (kMasking == Masking::kWeighted) {
        run.Add(bin, window, FixedWeight(a, offset) * sample.weight);
        ++samples;
      } else {
        run.Add(bin, window);
      }
    }
    run.Flush();
  }
  FlushHistogram<kCopies>(histogram, a.histogram);
  if constexpr (kMasking == Masking::kWeighted) {
    samples = WarpSum(samples);
    if (threadIdx.x % 32 == 0) atomicAdd(a.samples, samples);
  }
}

static __global__ void FixedBinsKernel(const float* fixed, const uint8_t* mask, NmiScale scale, size_t voxels,
                                       uint8_t* bins) {
  const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= voxels) return;
  bins[i] = mask != nullptr && mask[i] == 0 ? kNmiNoBin : static_cast<uint8_t>(NmiFixedBin(scale, fixed[i]));
}

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_METRIC_NMI_FFD_CUH_
