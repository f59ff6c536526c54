// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "engine/device/cuda_device.h"
#include "engine/feature/descriptor_kernels.h"
#include "engine/transform/displacement.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 128;
// Threads and blocks that count variations.
constexpr int kCountThreads = 256;
constexpr int64_t kMostCountBlocks = 512;

__device__ int64_t Place() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

__global__ void __launch_bounds__(kThreads)
    SumAlongXKernel(const float* image, Int3 size, int distance, int64_t count, Differences* along_x) {
  const int64_t place = Place();
  if (place >= count) return;
  const Int3 voxel = VoxelAt(size, place);
  Differences sum = DifferencesAt(image, size, {max(voxel.x - 1, 0), voxel.y, voxel.z}, distance);
  Add(DifferencesAt(image, size, voxel, distance), &sum);
  Add(DifferencesAt(image, size, {min(voxel.x + 1, size.x - 1), voxel.y, voxel.z}, distance), &sum);
  along_x[place] = sum;
}

__global__ void __launch_bounds__(kThreads)
    MeanKernel(const Differences* along_x, Int3 size, int64_t count, Differences* means) {
  const int64_t place = Place();
  if (place < count) means[place] = MeanOfRows(along_x, size, VoxelAt(size, place));
}

// Sets the variations of `out`, and adds those of valid voxels to `counts`.
__global__ void __launch_bounds__(kCountThreads)
    VariationKernel(const Differences* means, const uint8_t* valid, Int3 size, int distance, int64_t count,
                    Descriptor* out, int* counts) {
  __shared__ int own[kNoiseBins];
  for (int bin = threadIdx.x; bin < kNoiseBins; bin += kCountThreads) own[bin] = 0;
  __syncthreads();
  const int64_t stride = int64_t{gridDim.x} * kCountThreads;
  for (int64_t place = int64_t{blockIdx.x} * kCountThreads + threadIdx.x; place < count; place += stride) {
    const float variation = DistancesAt(means, size, VoxelAt(size, place), distance).variation;
    out[place].variation = variation;
    if (valid[place] != 0) atomicAdd(&own[NoiseBin(variation)], 1);
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < kNoiseBins; bin += kCountThreads) {
    if (own[bin] != 0) atomicAdd(&counts[bin], own[bin]);
  }
}

// One block: the noise from the counts. Each thread has kNoiseBins / kCountThreads bins.
__global__ void __launch_bounds__(kCountThreads) NoiseKernel(const int* counts, float* noise) {
  constexpr int kBins = kNoiseBins / kCountThreads;
  static_assert(kBins * kCountThreads == kNoiseBins);
  __shared__ int64_t until[kCountThreads];
  const int first = threadIdx.x * kBins;
  int64_t own = 0;
  for (int i = 0; i < kBins; ++i) own += counts[first + i];
  until[threadIdx.x] = own;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < kCountThreads; ++i) until[i] += until[i - 1];
  }
  __syncthreads();
  const int64_t total = until[kCountThreads - 1];
  if (total == 0 && threadIdx.x == 0) *noise = 0;
  const double rank = kNoiseQuantile * static_cast<double>(total);
  int64_t below = until[threadIdx.x] - own;
  // The thread whose bins hold the rank: no other one writes.
  if (total == 0 || static_cast<double>(until[threadIdx.x]) < rank) return;
  if (threadIdx.x > 0 && static_cast<double>(below) >= rank) return;
  int bin = first;
  while (static_cast<double>(below + counts[bin]) < rank) below += counts[bin++];
  *noise = NoiseIn(bin, rank, below, counts[bin]);
}

__global__ void __launch_bounds__(kThreads)
    DescriptorKernel(const Differences* means, Int3 size, int distance, int64_t count, float floor, const float* noise,
                     Descriptor* out) {
  const int64_t place = Place();
  if (place >= count) return;
  out[place] = DescriptorAt(means, size, VoxelAt(size, place), distance, fmaxf(floor, kFloorNoises * *noise));
}

}  // namespace

absl::Status ComputeDescriptors(const ExecContext& ctx, const float* image, const uint8_t* valid, Int3 size,
                                int distance, float floor, const DescriptorWorkspace& workspace, Descriptor* out,
                                float* noise) {
  const int64_t count = int64_t{size.x} * size.y * size.z;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  const auto count_blocks =
      static_cast<unsigned>(std::min<int64_t>((count + kCountThreads - 1) / kCountThreads, kMostCountBlocks));
  const cudaStream_t stream = CudaStream(ctx);
  auto* const along_x = reinterpret_cast<Differences*>(workspace.sums);
  auto* const means = reinterpret_cast<Differences*>(workspace.means);
  SumAlongXKernel<<<blocks, kThreads, 0, stream>>>(image, size, distance, count, along_x);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  MeanKernel<<<blocks, kThreads, 0, stream>>>(along_x, size, count, means);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(workspace.counts, 0, kNoiseBins * sizeof(int), stream));
  VariationKernel<<<count_blocks, kCountThreads, 0, stream>>>(means, valid, size, distance, count, out,
                                                              workspace.counts);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  NoiseKernel<<<1, kCountThreads, 0, stream>>>(workspace.counts, noise);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  DescriptorKernel<<<blocks, kThreads, 0, stream>>>(means, size, distance, count, floor, noise, out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
