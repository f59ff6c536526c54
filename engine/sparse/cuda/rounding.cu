// SPDX-License-Identifier: Apache-2.0
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/sparse/cuda/launcher.cuh"
#include "engine/sparse/cuda/rounding.h"

namespace intrawarp::cuda::spgemm {
namespace {

// The exponent stays float32's. The largest values, which have no neighbour above, stay as they are.
__device__ float RoundSignificand(float x, int dropped) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  const uint32_t rounded = (bits + (1u << (dropped - 1)) - 1 + ((bits >> dropped) & 1)) & ~((1u << dropped) - 1);
  return (rounded & 0x7f800000u) == 0x7f800000u ? x : __uint_as_float(rounded);
}

__global__ void RoundKernel(const float* from, int64_t count, int dropped, float* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) to[i] = RoundSignificand(from[i], dropped);
}

}  // namespace

absl::StatusOr<ConstCsrView> RoundValues(const ExecContext& ctx, ConstCsrView m, int dropped_bits) {
  if (m.entries == 0) return m;
  INTRAWARP_ASSIGN_OR_RETURN(float* const values, ctx.arena().Allocate<float>(m.entries));
  RoundKernel<<<BlocksFor(m.entries), kThreads, 0, CudaStream(ctx)>>>(static_cast<const float*>(m.values), m.entries,
                                                                      dropped_bits, values);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  m.values = values;
  return m;
}

}  // namespace intrawarp::cuda::spgemm
