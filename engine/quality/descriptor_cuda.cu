// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "engine/quality/descriptor_kernels.h"
#include "engine/transform/displacement.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 128;

__device__ int64_t Place() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

__global__ void __launch_bounds__(kThreads)
    SumAlongXKernel(const float* image, Int3 size, int64_t count, Differences* along_x) {
  const int64_t place = Place();
  if (place >= count) return;
  const Int3 voxel = VoxelAt(size, place);
  Differences sum = DifferencesAt(image, size, {max(voxel.x - 1, 0), voxel.y, voxel.z});
  Add(DifferencesAt(image, size, voxel), &sum);
  Add(DifferencesAt(image, size, {min(voxel.x + 1, size.x - 1), voxel.y, voxel.z}), &sum);
  along_x[place] = sum;
}

__global__ void __launch_bounds__(kThreads)
    MeanKernel(const Differences* along_x, Int3 size, int64_t count, Differences* means) {
  const int64_t place = Place();
  if (place < count) means[place] = MeanOfRows(along_x, size, VoxelAt(size, place));
}

__global__ void __launch_bounds__(kThreads)
    DescriptorKernel(const Differences* means, Int3 size, int64_t count, float floor, Descriptor* out) {
  const int64_t place = Place();
  if (place < count) out[place] = DescriptorAt(means, size, VoxelAt(size, place), floor);
}

}  // namespace

absl::Status ComputeDescriptors(const ExecContext& ctx, const float* image, Int3 size, float floor,
                                const DescriptorWorkspace& workspace, Descriptor* out) {
  const int64_t count = int64_t{size.x} * size.y * size.z;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  const cudaStream_t stream = CudaStream(ctx);
  SumAlongXKernel<<<blocks, kThreads, 0, stream>>>(image, size, count, workspace.along_x);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  MeanKernel<<<blocks, kThreads, 0, stream>>>(workspace.along_x, size, count, workspace.means);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  DescriptorKernel<<<blocks, kThreads, 0, stream>>>(workspace.means, size, count, floor, out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
