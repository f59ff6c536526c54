// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <climits>
#include <cub/device/device_radix_sort.cuh>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/sparse/multiply_transpose.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 256;

// What lies in the memory of a transpose.
struct Parts {
  int64_t* offsets;
  int32_t* indices;
  int32_t* positions;  // in the values of the matrix
};

Parts PartsIn(char* memory, const ConstPatternView& m) {
  Parts parts;
  parts.offsets = reinterpret_cast<int64_t*>(memory);
  memory += Arena::Rounded((int64_t{m.columns} + 1) * sizeof(int64_t));
  parts.indices = reinterpret_cast<int32_t*>(memory);
  parts.positions = reinterpret_cast<int32_t*>(memory + Arena::Rounded(m.entries * sizeof(int32_t)));
  return parts;
}

int BitsOf(const ConstPatternView& m) { return std::bit_width(static_cast<uint32_t>(m.columns)); }

absl::StatusOr<size_t> SortBytes(const ConstPatternView& m) {
  size_t bytes = 0;
  const int32_t* in = nullptr;
  int32_t* out = nullptr;
  INTRAWARP_CUDA_RETURN_IF_ERROR(
      cub::DeviceRadixSort::SortPairs(nullptr, bytes, in, out, in, out, m.entries, 0, BitsOf(m)));
  return bytes;
}

__global__ void CountUpKernel(int32_t* to, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) to[i] = static_cast<int32_t>(i);
}

// The first of `count` ascending values that is not less.
template <typename T>
__device__ int64_t LowerBound(const T* values, int64_t count, T value) {
  int64_t begin = 0;
  while (begin < count) {
    const int64_t middle = begin + (count - begin) / 2;
    if (values[middle] < value) {
      begin = middle + 1;
    } else {
      count = middle;
    }
  }
  return begin;
}

__global__ void OffsetsKernel(const int32_t* sorted_columns, int64_t entries, int32_t columns, int64_t* offsets) {
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c <= columns) offsets[c] = c == columns ? entries : LowerBound(sorted_columns, entries, static_cast<int32_t>(c));
}

__global__ void RowsKernel(ConstPatternView m, const int32_t* positions, int32_t* rows) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= m.entries) return;
  rows[i] = static_cast<int32_t>(LowerBound(m.row_offsets, int64_t{m.rows} + 1, int64_t{positions[i]} + 1) - 1);
}

template <typename T>
__global__ void GatherKernel(const T* from, const int32_t* positions, int64_t count, T* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) to[i] = from[positions[i]];
}

unsigned BlocksFor(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

}  // namespace

int64_t TransposeBytes(const ConstPatternView& m) {
  return Arena::Rounded((int64_t{m.columns} + 1) * sizeof(int64_t)) + 2 * Arena::Rounded(m.entries * sizeof(int32_t));
}

absl::StatusOr<int64_t> TransposeWorkspaceBytes(const ConstPatternView& m) {
  INTRAWARP_ASSIGN_OR_RETURN(const size_t sort, SortBytes(m));
  return 2 * Arena::Rounded(m.entries * sizeof(int32_t)) + Arena::Rounded(sort);
}

absl::Status MakeTranspose(const ExecContext& ctx, const ConstPatternView& m, char* memory) {
  if (m.entries > INT32_MAX) return absl::UnimplementedError("transpose_a: of 2^31 entries and more, not on CUDA yet");
  const Parts parts = PartsIn(memory, m);
  const cudaStream_t stream = CudaStream(ctx);
  if (m.entries == 0) {
    return ctx.device().Fill(parts.offsets, 0, (int64_t{m.columns} + 1) * sizeof(int64_t), ctx.stream());
  }
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(size_t sort_bytes, SortBytes(m));
  INTRAWARP_ASSIGN_OR_RETURN(int32_t* const columns, ctx.arena().Allocate<int32_t>(m.entries));
  INTRAWARP_ASSIGN_OR_RETURN(int32_t* const order, ctx.arena().Allocate<int32_t>(m.entries));
  INTRAWARP_ASSIGN_OR_RETURN(void* const sort, ctx.arena().AllocateBytes(sort_bytes));
  CountUpKernel<<<BlocksFor(m.entries), kThreads, 0, stream>>>(order, m.entries);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cub::DeviceRadixSort::SortPairs(sort, sort_bytes, m.column_indices, columns,
                                                                 static_cast<const int32_t*>(order), parts.positions,
                                                                 m.entries, 0, BitsOf(m), stream));
  OffsetsKernel<<<BlocksFor(int64_t{m.columns} + 1), kThreads, 0, stream>>>(columns, m.entries, m.columns,
                                                                            parts.offsets);
  RowsKernel<<<BlocksFor(m.entries), kThreads, 0, stream>>>(m, parts.positions, parts.indices);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

ConstPatternView TransposeIn(const char* memory, const ConstPatternView& m) {
  const Parts parts = PartsIn(const_cast<char*>(memory), m);
  return {m.columns, m.rows, m.entries, parts.offsets, parts.indices};
}

absl::Status TransposeValues(const ExecContext& ctx, const ConstCsrView& m, const char* memory, void* values) {
  if (m.entries == 0) return absl::OkStatus();
  const Parts parts = PartsIn(const_cast<char*>(memory), m);
  const unsigned blocks = BlocksFor(m.entries);
  if (m.type == ValueType::kFloat64) {
    GatherKernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(static_cast<const double*>(m.values), parts.positions,
                                                           m.entries, static_cast<double*>(values));
  } else {
    GatherKernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(static_cast<const float*>(m.values), parts.positions,
                                                           m.entries, static_cast<float*>(values));
  }
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
