// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/image/bspline_filter_kernels.h"

namespace intrawarp::cuda {
namespace {

// --- Along x: a half warp takes kRowVoxels voxels of a row, each lane kRun of them, from shared memory with the
// warm-up on both sides. Not in place: blocks read voxels that other blocks write. ---

constexpr int kRowThreads = 16, kRun = 8, kRowVoxels = kRowThreads * kRun, kRowsPerBlock = 8;
constexpr int kRowLoads = kRowVoxels + 2 * kFilterWarmUp;
// One float in kRun is left out, so that lanes read different banks.
constexpr int kRowFloats = kRowLoads + kRowLoads / kRun + 1;
__device__ constexpr int Padded(int i) { return i + i / kRun; }

__global__ void __launch_bounds__(kRowThreads* kRowsPerBlock)
    FilterRowsKernel(const float* in, int n, int64_t rows, float* out) {
  __shared__ float shared[kRowsPerBlock][kRowFloats];
  const int64_t row =
      int64_t{blockIdx.y} * gridDim.z * kRowsPerBlock + int64_t{blockIdx.z} * kRowsPerBlock + threadIdx.y;
  const int begin = blockIdx.x * kRowVoxels, lane = threadIdx.x;
  float* mine = shared[threadIdx.y];
  const bool exists = row < rows;
  if (exists) {
    for (int i = lane; i < kRowLoads; i += kRowThreads) {
      mine[Padded(i)] = in[row * n + MirroredVoxel(begin - kFilterWarmUp + i, n)];
    }
  }
  __syncwarp();
  // p of the run and of the warm-up after it. The warm-up before the run may lie in the lane before.
  float c[kRun];
  if (exists) {
    float p = 0, ahead[kRun + kFilterWarmUp];
#pragma unroll
    for (int i = 0; i < kRun + 2 * kFilterWarmUp; ++i) {
      p = kFilterGain * mine[Padded(lane * kRun + i)] + kFilterPole * p;
      if (i >= kFilterWarmUp) ahead[i - kFilterWarmUp] = p;
    }
    float after = kFilterSteady * p;
#pragma unroll
    for (int i = kRun + kFilterWarmUp - 2; i >= 0; --i) {
      after = kFilterPole * (after - ahead[i]);
      if (i < kRun) c[i] = after;
    }
  }
  __syncwarp();
  if (exists) {
#pragma unroll
    for (int i = 0; i < kRun; ++i) mine[Padded(lane * kRun + i)] = c[i];
  }
  __syncwarp();
  if (!exists) return;
  for (int i = lane; i < kRowVoxels && begin + i < n; i += kRowThreads) out[row * n + begin + i] = mine[Padded(i)];
}

// --- Along y or z: a thread goes along one line, in place, kSteps voxels at a time; p of the warm-up after them is
// kept for the next. Each voxel is read once and written once. ---

constexpr int kSteps = 16, kLineThreads = 128;

// `lines` lines of n > 1 voxels, `stride` apart; those with neighbouring numbers lie side by side, `stride` of them in
// a block of n * stride voxels.
__global__ void __launch_bounds__(kLineThreads) FilterLinesKernel(float* data, int n, int64_t stride, int64_t lines) {
  const int64_t line = int64_t{blockIdx.x} * kLineThreads + threadIdx.x;
  if (line >= lines) return;
  float* at = data + line / stride * (n * stride) + line % stride;
  float p = 0;
  for (int i = -kFilterWarmUp; i < 0; ++i) p = kFilterGain * at[MirroredVoxel(i, n) * stride] + kFilterPole * p;
  float ahead[kSteps + kFilterWarmUp];
#pragma unroll
  for (int i = 0; i < kFilterWarmUp; ++i) {
    if (i < n) p = kFilterGain * at[i * stride] + kFilterPole * p;
    ahead[kSteps + i] = p;
  }
  // p[begin - 1], for lines that end at once.
  float before = 0;
  for (int begin = 0; begin < n; begin += kSteps) {
#pragma unroll
    for (int i = 0; i < kFilterWarmUp; ++i) ahead[i] = ahead[kSteps + i];
    float fresh[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int voxel = begin + kFilterWarmUp + i;
      fresh[i] = voxel < n ? at[voxel * stride] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      p = kFilterGain * fresh[i] + kFilterPole * p;
      ahead[kFilterWarmUp + i] = p;
    }
    float after = kFilterSteady * p;
    const float first = before;
    before = ahead[kSteps - 1];
#pragma unroll
    for (int i = kSteps + kFilterWarmUp - 2; i >= 0; --i) {
      const int voxel = begin + i;
      const float previous = i > 0 ? ahead[i > 0 ? i - 1 : 0] : first;
      after = voxel == n - 1 ? kFilterEnd * (ahead[i] + kFilterPole * previous) : kFilterPole * (after - ahead[i]);
      if (i < kSteps && voxel < n) at[voxel * stride] = after;
    }
  }
}

absl::Status FilterRows(const ExecContext& ctx, const float* in, Int3 n, float* out) {
  const int64_t rows = int64_t{n.y} * n.z, groups = (rows + kRowsPerBlock - 1) / kRowsPerBlock;
  constexpr int64_t kMaxGridZ = 32768;
  const int64_t z = std::min(groups, kMaxGridZ);
  const dim3 grid((n.x + kRowVoxels - 1) / kRowVoxels, static_cast<unsigned>((groups + z - 1) / z),
                  static_cast<unsigned>(z));
  FilterRowsKernel<<<grid, dim3(kRowThreads, kRowsPerBlock), 0, CudaStream(ctx)>>>(in, n.x, rows, out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status FilterLines(const ExecContext& ctx, float* data, int n, int64_t stride, int64_t lines) {
  const unsigned blocks = static_cast<unsigned>((lines + kLineThreads - 1) / kLineThreads);
  FilterLinesKernel<<<blocks, kLineThreads, 0, CudaStream(ctx)>>>(data, n, stride, lines);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace

absl::Status PrefilterCubic(const ExecContext& ctx, const float* image, Int3 size, float* coefficients) {
  const int64_t row = size.x, plane = row * size.y;
  if (size.x > 1) {
    INTRAWARP_RETURN_IF_ERROR(FilterRows(ctx, image, size, coefficients));
  } else {
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(coefficients, image, sizeof(float) * plane * size.z, ctx.stream()));
  }
  if (size.y > 1) INTRAWARP_RETURN_IF_ERROR(FilterLines(ctx, coefficients, size.y, row, row * size.z));
  if (size.z > 1) INTRAWARP_RETURN_IF_ERROR(FilterLines(ctx, coefficients, size.z, plane, plane));
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
