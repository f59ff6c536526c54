// SPDX-License-Identifier: Apache-2.0
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/quality/block_sum.cuh"
#include "engine/quality/similarity_kernels.h"

namespace intrawarp::cuda {
namespace {

struct DoubleSum {
  double value = 0;
  __device__ void Add(const DoubleSum& o) { value += o.value; }
};

// --- Sums and joint histogram: one block a piece ---

__global__ void __launch_bounds__(kSumThreads)
    CompareKernel(SimilarityInput in, int64_t count, SimilarityWorkspace workspace) {
  __shared__ unsigned histogram[kHistogramBins * kHistogramBins];
  __shared__ RawArray<SimilaritySums> shared;
  for (int i = threadIdx.x; i < kHistogramBins * kHistogramBins; i += kSumThreads) histogram[i] = 0;
  __syncthreads();
  const int64_t begin = int64_t{blockIdx.x} * kPieceVoxels;
  const Int3 base = VoxelAt(in.fixed_size, begin);
  SimilaritySums sums;
  for (int offset = threadIdx.x; offset < kPieceVoxels; offset += kSumThreads) {
    const int64_t place = begin + offset;
    int bin = -1;
    if (place < count) {
      Compare(in, place, VoxelAfter(in.fixed_size, base, offset), &sums, &workspace.warped[place], &bin);
    }
    // A warp in the background would hit one bin 32 times.
    int same = 0;
    __match_all_sync(kAllLanes, bin, &same);
    if (bin >= 0) {
      if (!same) {
        atomicAdd(&histogram[bin], 1u);
      } else if (threadIdx.x % 32 == 0) {
        atomicAdd(&histogram[bin], 32u);
      }
    }
  }
  // Also makes every thread's counts visible.
  sums = BlockSum(sums, shared.get(), kSumThreads / 32);
  if (threadIdx.x == 0) workspace.sums[blockIdx.x] = sums;
  for (int i = threadIdx.x; i < kHistogramBins * kHistogramBins; i += kSumThreads) {
    if (histogram[i] != 0) {
      atomicAdd(&workspace.totals->histogram[i], static_cast<unsigned long long>(histogram[i]));
    }
  }
}

// --- SSIM: one block a tile, which goes through the tile's planes in order of z. Each plane is windowed along x and y
// in shared memory; along z each thread carries the sums that are still to be finished (a transposed FIR filter), so
// that nothing but the two images is read and nothing stored ---

constexpr int kSsimThreads = kTileX * kTileY;
constexpr int kHaloX = kTileX + 2 * kWindowRadius, kHaloY = kTileY + 2 * kWindowRadius;
constexpr int kLoads = (kHaloX * kHaloY + kSsimThreads - 1) / kSsimThreads;
constexpr int kCarried = kWindowTaps - 1;

struct SsimShared {
  float valid[kHaloX * kHaloY];
  float fixed[kHaloX * kHaloY];
  float moving[kHaloX * kHaloY];
  float along_x[kSsimChannels][kHaloY][kTileX];
};

// The voxels of a plane and its halo that a thread has read.
struct PlaneLoads {
  float fixed[kLoads];
  float warped[kLoads];
};

__device__ void LoadPlane(const float* fixed, const float* warped, Int3 size, int x0, int y0, int z,
                          PlaneLoads* loads) {
#pragma unroll
  for (int r = 0; r < kLoads; ++r) {
    const int e = threadIdx.x + r * kSsimThreads;
    const int x = x0 - kWindowRadius + e % kHaloX, y = y0 - kWindowRadius + e / kHaloX;
    const bool inside = z >= 0 && z < size.z && x >= 0 && x < size.x && y >= 0 && y < size.y;
    const int64_t place = (int64_t{z} * size.y + y) * size.x + x;
    loads->fixed[r] = inside ? fixed[place] : 0.0f;
    loads->warped[r] = inside ? warped[place] : NAN;
  }
}

__device__ void StorePlane(const PlaneLoads& loads, const SsimScale& scale, SsimShared* shared) {
#pragma unroll
  for (int r = 0; r < kLoads; ++r) {
    const int e = threadIdx.x + r * kSsimThreads;
    if (e >= kHaloX * kHaloY) return;
    const float f = loads.fixed[r], m = loads.warped[r];
    const bool valid = m == m;
    shared->valid[e] = valid ? 1.0f : 0.0f;
    shared->fixed[e] = valid ? (f - scale.fixed_shift) * scale.inverse_range : 0.0f;
    shared->moving[e] = valid ? (m - scale.moving_shift) * scale.inverse_range : 0.0f;
  }
}

__device__ void WindowAlongX(SsimShared* shared) {
  for (int e = threadIdx.x; e < kHaloY * kTileX; e += kSsimThreads) {
    const int row = e / kTileX, x = e % kTileX, from = row * kHaloX + x;
    float sums[kSsimChannels] = {};
#pragma unroll
    for (int k = 0; k < kWindowTaps; ++k) {
      const float w = WindowWeight(k - kWindowRadius);
      const float f = shared->fixed[from + k], m = shared->moving[from + k], wf = w * f, wm = w * m;
      sums[0] += w * shared->valid[from + k];
      sums[1] += wf;
      sums[2] += wm;
      sums[3] += wf * f;
      sums[4] += wm * m;
      sums[5] += wf * m;
    }
#pragma unroll
    for (int c = 0; c < kSsimChannels; ++c) shared->along_x[c][row][x] = sums[c];
  }
}

__global__ void __launch_bounds__(kSsimThreads)
    SsimKernel(const float* fixed, const float* warped, Int3 size, SsimScale scale, double* partial) {
  __shared__ SsimShared shared;
  __shared__ double warp_sums[kSsimThreads / 32];
  const int tx = threadIdx.x % kTileX, ty = threadIdx.x / kTileX;
  const int x0 = blockIdx.x * kTileX, y0 = blockIdx.y * kTileY, z0 = blockIdx.z * kTileZ;
  const int begin = z0 - kWindowRadius, end = min(z0 + kTileZ, size.z) + kWindowRadius;
  float carried[kSsimChannels][kCarried] = {};
  // Bit i: this thread's voxel i planes ago was valid.
  unsigned history = 0;
  double sum = 0;
  PlaneLoads loads;
  LoadPlane(fixed, warped, size, x0, y0, begin, &loads);
  for (int z = begin; z < end; ++z) {
    float plane[kSsimChannels] = {};
    history <<= 1;
    const bool exists = z >= 0 && z < size.z;
    if (exists) {
      StorePlane(loads, scale, &shared);
      __syncthreads();
    }
    LoadPlane(fixed, warped, size, x0, y0, z + 1, &loads);
    if (exists) {
      history |= shared.valid[(ty + kWindowRadius) * kHaloX + tx + kWindowRadius] != 0;
      WindowAlongX(&shared);
      // After this no thread reads the plane any more, and the next one may be stored.
      __syncthreads();
#pragma unroll
      for (int c = 0; c < kSsimChannels; ++c) {
#pragma unroll
        for (int k = 0; k < kWindowTaps; ++k) {
          plane[c] += WindowWeight(k - kWindowRadius) * shared.along_x[c][ty + k][tx];
        }
      }
    }
    float finished[kSsimChannels];
#pragma unroll
    for (int c = 0; c < kSsimChannels; ++c) {
      finished[c] = carried[c][0] + WindowWeight(kWindowRadius) * plane[c];
#pragma unroll
      for (int k = 0; k < kCarried; ++k) {
        const float next = k + 1 < kCarried ? carried[c][k + 1] : 0.0f;
        carried[c][k] = next + WindowWeight(kWindowRadius - 1 - k) * plane[c];
      }
    }
    if (z - kWindowRadius >= z0 && (history >> kWindowRadius & 1)) sum += Ssim(scale, finished);
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(kAllLanes, sum, offset);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kSsimThreads / 32; ++w) sum += warp_sums[w];
  partial[(int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kSumThreads)
    TotalKernel(SimilarityWorkspace workspace, int64_t pieces, int64_t tiles) {
  __shared__ RawArray<SimilaritySums> shared;
  __shared__ RawArray<DoubleSum> shared_ssim;
  const SimilaritySums sums = SumPartials(workspace.sums, pieces, shared.get());
  const DoubleSum ssim = SumPartials(reinterpret_cast<const DoubleSum*>(workspace.ssim), tiles, shared_ssim.get());
  if (threadIdx.x != 0) return;
  workspace.totals->sums = sums;
  workspace.totals->ssim = ssim.value;
}

}  // namespace

absl::Status SumSimilarity(const ExecContext& ctx, const SimilarityInput& in, const SimilarityWorkspace& workspace) {
  const cudaStream_t stream = CudaStream(ctx);
  const Int3 size = in.fixed_size;
  const int64_t count = int64_t{size.x} * size.y * size.z, pieces = Pieces(count);
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(workspace.totals, 0, sizeof(SimilarityTotals), ctx.stream()));
  CompareKernel<<<static_cast<unsigned>(pieces), kSumThreads, 0, stream>>>(in, count, workspace);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  const bool ssim = in.range > 0;
  if (ssim) {
    const dim3 tiles((size.x + kTileX - 1) / kTileX, (size.y + kTileY - 1) / kTileY, (size.z + kTileZ - 1) / kTileZ);
    SsimKernel<<<tiles, kSsimThreads, 0, stream>>>(in.fixed, workspace.warped, size, MakeSsimScale(in), workspace.ssim);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  }
  TotalKernel<<<1, kSumThreads, 0, stream>>>(workspace, pieces, ssim ? Tiles(size) : 0);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
