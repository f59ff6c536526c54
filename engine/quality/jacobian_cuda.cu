// SPDX-License-Identifier: Apache-2.0
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/quality/block_sum.cuh"
#include "engine/quality/jacobian_kernels.h"

namespace intrawarp::cuda {
namespace {

template <typename Input, typename Sums>
__global__ void __launch_bounds__(kSumThreads) PieceKernel(Input in, int64_t count, Sums* partial) {
  __shared__ RawArray<Sums> shared;
  const int64_t begin = int64_t{blockIdx.x} * kSumPieceVoxels;
  const Int3 base = VoxelAt(in.size, begin);
  Sums sums;
  for (int offset = threadIdx.x; offset < kSumPieceVoxels && begin + offset < count; offset += kSumThreads) {
    AddAt(in, VoxelAfter(in.size, base, offset), &sums);
  }
  sums = BlockSum(sums, shared.get(), kSumThreads / 32);
  if (threadIdx.x == 0) partial[blockIdx.x] = sums;
}

template <typename Sums>
__global__ void __launch_bounds__(kSumThreads) PiecesKernel(const Sums* partial, int64_t pieces, Sums* total) {
  __shared__ RawArray<Sums> shared;
  const Sums sums = SumPartials(partial, pieces, shared.get());
  if (threadIdx.x == 0) *total = sums;
}

template <typename Input, typename Sums>
absl::Status SumVoxels(const ExecContext& ctx, const Input& in, Sums* partial, Sums* total) {
  const int64_t count = int64_t{in.size.x} * in.size.y * in.size.z, pieces = SumPieces(count);
  PieceKernel<<<static_cast<unsigned>(pieces), kSumThreads, 0, CudaStream(ctx)>>>(in, count, partial);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  PiecesKernel<<<1, kSumThreads, 0, CudaStream(ctx)>>>(partial, pieces, total);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace

absl::Status SumJacobian(const ExecContext& ctx, const JacobianInput& in, JacobianSums* partial, JacobianSums* total) {
  return SumVoxels(ctx, in, partial, total);
}

absl::Status SumInverse(const ExecContext& ctx, const InverseInput& in, InverseSums* partial, InverseSums* total) {
  return SumVoxels(ctx, in, partial, total);
}

}  // namespace intrawarp::cuda
