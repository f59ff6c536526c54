// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/reduce.cuh"
#include "engine/image/statistics_kernels.h"

namespace intrawarp::cuda {
namespace {

struct CombineParts {
  template <typename T>
  __device__ void operator()(T& a, const T& b) const {
    Combine(a, b);
  }
};

// Shared memory for BlockReduce of types whose default constructor is not trivial.
template <typename T>
struct Scratch {
  alignas(T) char bytes[kReduceThreads * sizeof(T)];
  __device__ T* get() { return reinterpret_cast<T*>(bytes); }
};

// Block i sums piece i. Squares are of differences from the piece's first value, so that a large offset common to all
// intensities cancels before it is squared.
__global__ void IntensityKernel(const float* data, int nx, RowPieces rows, IntensitySums* partial) {
  __shared__ Scratch<IntensitySums> scratch;
  const float* begin = data + int64_t{rows.begin(blockIdx.x)} * nx;
  const int64_t count = int64_t{rows.end(blockIdx.x) - rows.begin(blockIdx.x)} * nx;
  const double shift = begin[0];
  double sum = 0, squares = 0;
  float low = INFINITY, high = -INFINITY;
  int nonfinite = 0, mine = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < count; i += kReduceThreads) {
    const float v = begin[i];
    nonfinite += !IsFiniteBits(__float_as_uint(v));
    low = fminf(low, v);
    high = fmaxf(high, v);
    const double d = v - shift;
    sum += d;
    squares += d * d;
    ++mine;
  }
  IntensitySums s;
  s.nonfinite = nonfinite;
  s.minimum = low;
  s.maximum = high;
  if (mine > 0) {
    s.count = mine;
    s.mean = shift + sum / mine;
    s.m2 = fmax(0.0, squares - sum * (sum / mine));
  }
  s = BlockReduce(s, scratch.get(), CombineParts());
  if (threadIdx.x == 0) partial[blockIdx.x] = s;
}

// One block adds up the pieces.
template <typename T>
__global__ void FinishKernel(const T* partial, int pieces, T* total) {
  __shared__ Scratch<T> scratch;
  T s;
  for (int i = threadIdx.x; i < pieces; i += kReduceThreads) Combine(s, partial[i]);
  s = BlockReduce(s, scratch.get(), CombineParts());
  if (threadIdx.x == 0) *total = s;
}

// Counts the voxels of the faces: a warp a row, counters of the block in shared memory, then integer atomics.
__global__ void FaceHistogramKernel(const float* data, Int3 n, RawStatistics* raw) {
  if (!HasRange(raw->intensity)) return;
  __shared__ uint32_t counts[kBackgroundBins];
  static_assert(kBackgroundBins == kReduceThreads);
  counts[threadIdx.x] = 0;
  __syncthreads();
  const double minimum = raw->intensity.minimum, scale = BinsPerUnit(raw->intensity);
  const int lane = threadIdx.x % 32, rows = n.y * n.z;
  for (int row = blockIdx.x * kReduceWarps + threadIdx.x / 32; row < rows; row += gridDim.x * kReduceWarps) {
    const bool whole = IsFaceRow(n, row % n.y, row / n.y);
    if (!whole && n.x == 1) continue;
    const int step = whole ? 1 : n.x - 1;
    const float* values = data + int64_t{row} * n.x;
    for (int x = lane * step; x < n.x && (whole || lane < 2); x += 32 * step) {
      atomicAdd(&counts[BackgroundBin(values[x], minimum, scale)], 1u);
    }
  }
  __syncthreads();
  if (counts[threadIdx.x] != 0) atomicAdd(&raw->histogram[threadIdx.x], counts[threadIdx.x]);
}

// Block i sums piece i, a warp a row.
__global__ void MassKernel(const float* data, Int3 n, RowPieces rows, const RawStatistics* raw, MassSums* partial) {
  __shared__ Scratch<MassSums> scratch;
  __shared__ uint64_t fullest[kReduceThreads];
  MassSums s;
  if (HasRange(raw->intensity)) {
    // The count above, the bin below it, turned round so that the first of equal bins wins.
    const uint64_t key =
        (static_cast<uint64_t>(raw->histogram[threadIdx.x]) << 32) | (kBackgroundBins - 1 - threadIdx.x);
    const uint64_t best = BlockReduce(key, fullest, [](uint64_t& a, uint64_t b) { a = b > a ? b : a; });
    const int bin = kBackgroundBins - 1 - static_cast<int>(best & 0xffffffffu);
    const double background = BackgroundOf(raw->intensity, bin), threshold = MassThreshold(raw->intensity);
    const int lane = threadIdx.x % 32, end = rows.end(blockIdx.x);
    for (int row = rows.begin(blockIdx.x) + threadIdx.x / 32; row < end; row += kReduceWarps) {
      const float* values = data + int64_t{row} * n.x;
      double mass = 0, moment = 0;
#pragma unroll 4
      for (int x = lane; x < n.x; x += 32) {
        const double w = MassOf(values[x], background, threshold);
        mass += w;
        moment += w * x;
      }
      Combine(s, {mass, moment, mass * (row % n.y), mass * (row / n.y)});
    }
  }
  s = BlockReduce(s, scratch.get(), CombineParts());
  if (threadIdx.x == 0) partial[blockIdx.x] = s;
}

}  // namespace

absl::Status EnqueueStatistics(const ExecContext& ctx, ConstVolumeView volume, RawStatistics* raw) {
  ArenaScope scope(ctx.arena());
  const Int3 n = volume.geometry.size;
  const RowPieces rows = MakeRowPieces(n.y * n.z, n.x);
  INTRAWARP_ASSIGN_OR_RETURN(IntensitySums * intensity, ctx.arena().Allocate<IntensitySums>(rows.pieces));
  INTRAWARP_ASSIGN_OR_RETURN(MassSums * mass, ctx.arena().Allocate<MassSums>(rows.pieces));
  const cudaStream_t stream = CudaStream(ctx);
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(raw, 0, sizeof(RawStatistics), ctx.stream()));
  IntensityKernel<<<rows.pieces, kReduceThreads, 0, stream>>>(volume.data, n.x, rows, intensity);
  FinishKernel<<<1, kReduceThreads, 0, stream>>>(intensity, rows.pieces, &raw->intensity);
  const int face_blocks = std::min((n.y * n.z + kReduceWarps - 1) / kReduceWarps, 1024);
  FaceHistogramKernel<<<face_blocks, kReduceThreads, 0, stream>>>(volume.data, n, raw);
  MassKernel<<<rows.pieces, kReduceThreads, 0, stream>>>(volume.data, n, rows, raw, mass);
  FinishKernel<<<1, kReduceThreads, 0, stream>>>(mass, rows.pieces, &raw->mass);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
