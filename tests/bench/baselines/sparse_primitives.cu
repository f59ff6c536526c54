// SPDX-License-Identifier: Apache-2.0
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>
#include <climits>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_run_length_encode.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>
#include <cuda/functional>
#include <cuda/std/functional>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "tests/bench/baselines/sparse_primitives.h"

namespace intrawarp::baselines::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 8192;

struct Widen {
  __host__ __device__ int64_t operator()(int32_t v) const { return v; }
};
struct Shift {
  int by;
  __host__ __device__ uint64_t operator()(uint64_t v) const { return v >> by; }
};
struct NotZero {
  __host__ __device__ bool operator()(float v) const { return v != 0; }
  __host__ __device__ bool operator()(const Tile& t) const { return t.bitmap != 0; }
};

// call(storage, bytes) asks for the bytes with a null pointer, then works.
template <typename Call>
absl::Status WithStorage(const ExecContext& ctx, const Call& call) {
  size_t bytes = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(call(nullptr, bytes));
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer storage, ctx.device().Allocate(std::max<size_t>(bytes, 1), ctx.stream()));
  INTRAWARP_CUDA_RETURN_IF_ERROR(call(storage.as<void>(), bytes));
  return absl::OkStatus();
}

// call(storage, bytes, int64_t* selected): how many it selected.
template <typename Call>
absl::StatusOr<int64_t> Selected(const ExecContext& ctx, int64_t count, const Call& call) {
  if (count == 0) return 0;
  INTRAWARP_RETURN_IF_ERROR(CheckCount(count));
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer selected, AllocateItems<int64_t>(ctx, 1));
  INTRAWARP_RETURN_IF_ERROR(
      WithStorage(ctx, [&](void* storage, size_t& bytes) { return call(storage, bytes, selected.as<int64_t>()); }));
  return ReadBack(ctx, selected.as<int64_t>());
}

__global__ void ScatterHeadsKernel(const int64_t* offsets, int64_t count, int32_t* owners) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    if (offsets[i] < offsets[i + 1]) owners[offsets[i]] = static_cast<int32_t>(i);
  }
}

__global__ void RowsOfEntriesKernel(ConstPatternView m, int32_t* rows) {
  const int lane = threadIdx.x % 32;
  const int64_t warps = int64_t{gridDim.x} * kThreads / 32;
  for (int64_t r = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32; r < m.rows; r += warps) {
    for (int64_t e = m.row_offsets[r] + lane; e < m.row_offsets[r + 1]; e += 32) rows[e] = static_cast<int32_t>(r);
  }
}

unsigned Blocks(int64_t threads) {
  return static_cast<unsigned>(std::clamp<int64_t>((threads + kThreads - 1) / kThreads, 1, kMaxBlocks));
}

}  // namespace

absl::Status CheckCount(int64_t count) {
  if (count <= INT_MAX) return absl::OkStatus();
  return absl::ResourceExhaustedError("a list of more than 2^31 - 1 items");
}

absl::Status SumLengths(const ExecContext& ctx, const int32_t* lengths, int64_t count, int64_t* offsets) {
  INTRAWARP_RETURN_IF_ERROR(CheckCount(count));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(offsets, 0, sizeof(int64_t), CudaStream(ctx)));
  if (count == 0) return absl::OkStatus();
  const auto wide = thrust::make_transform_iterator(lengths, Widen());
  return WithStorage(ctx, [&](void* storage, size_t& bytes) {
    return cub::DeviceScan::InclusiveSum(storage, bytes, wide, offsets + 1, static_cast<int>(count), CudaStream(ctx));
  });
}

absl::StatusOr<int64_t> ReadBack(const ExecContext& ctx, const int64_t* value) {
  int64_t result = 0;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&result, value, sizeof(result), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return result;
}

absl::StatusOr<Buffer> OwnersOf(const ExecContext& ctx, const int64_t* offsets, int64_t count, int64_t total) {
  INTRAWARP_RETURN_IF_ERROR(CheckCount(total));
  INTRAWARP_ASSIGN_OR_RETURN(Buffer owners, AllocateItems<int32_t>(ctx, total));
  if (total == 0) return owners;
  int32_t* const p = owners.as<int32_t>();
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(p, 0, total * sizeof(int32_t), CudaStream(ctx)));
  ScatterHeadsKernel<<<Blocks(count), kThreads, 0, CudaStream(ctx)>>>(offsets, count, p);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  INTRAWARP_RETURN_IF_ERROR(WithStorage(ctx, [&](void* storage, size_t& bytes) {
    return cub::DeviceScan::InclusiveScan(storage, bytes, p, p, ::cuda::maximum<>(), static_cast<int>(total),
                                          CudaStream(ctx));
  }));
  return owners;
}

template <typename Value>
absl::StatusOr<Pairs<Value>> AllocatePairs(const ExecContext& ctx, int64_t count) {
  INTRAWARP_RETURN_IF_ERROR(CheckCount(count));
  Pairs<Value> pairs;
  for (int i = 0; i < 2; ++i) {
    INTRAWARP_ASSIGN_OR_RETURN(pairs.keys[i], AllocateItems<uint64_t>(ctx, count));
    INTRAWARP_ASSIGN_OR_RETURN(pairs.values[i], AllocateItems<Value>(ctx, count));
  }
  return pairs;
}
template absl::StatusOr<Pairs<float>> AllocatePairs(const ExecContext&, int64_t);
template absl::StatusOr<Pairs<uint64_t>> AllocatePairs(const ExecContext&, int64_t);

template <typename Value>
absl::Status SortPairs(const ExecContext& ctx, Pairs<Value>& pairs, int64_t count, int bits) {
  if (count == 0 || bits == 0) return absl::OkStatus();
  cub::DoubleBuffer<uint64_t> keys(pairs.key(), pairs.free_key());
  cub::DoubleBuffer<Value> values(pairs.value(), pairs.free_value());
  INTRAWARP_RETURN_IF_ERROR(WithStorage(ctx, [&](void* storage, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(storage, bytes, keys, values, static_cast<int>(count), 0, bits,
                                           CudaStream(ctx));
  }));
  // Both halves change together.
  if (keys.Current() != pairs.key()) pairs.current = 1 - pairs.current;
  return absl::OkStatus();
}
template absl::Status SortPairs(const ExecContext&, Pairs<float>&, int64_t, int);
template absl::Status SortPairs(const ExecContext&, Pairs<uint64_t>&, int64_t, int);

int BitsBelow(uint64_t limit) {
  int bits = 0;
  while (bits < 64 && (limit > 0 ? limit - 1 : 0) >> bits > 0) ++bits;
  return bits;
}

absl::StatusOr<int64_t> RunLengths(const ExecContext& ctx, const uint64_t* keys, int shift, int64_t count,
                                   uint64_t* unique, int32_t* lengths) {
  const auto shifted = thrust::make_transform_iterator(keys, Shift{shift});
  return Selected(ctx, count, [&](void* storage, size_t& bytes, int64_t* runs) {
    return cub::DeviceRunLengthEncode::Encode(storage, bytes, shifted, unique, lengths, runs, static_cast<int>(count),
                                              CudaStream(ctx));
  });
}

absl::StatusOr<int64_t> SumRuns(const ExecContext& ctx, const uint64_t* keys, const float* values, int64_t count,
                                uint64_t* unique, float* sums) {
  return Selected(ctx, count, [&](void* storage, size_t& bytes, int64_t* runs) {
    return cub::DeviceReduce::ReduceByKey(storage, bytes, keys, unique, values, sums, runs, ::cuda::std::plus<>(),
                                          static_cast<int>(count), CudaStream(ctx));
  });
}

absl::StatusOr<int64_t> RemoveZeros(const ExecContext& ctx, const float* values, int64_t count, float* kept) {
  return Selected(ctx, count, [&](void* storage, size_t& bytes, int64_t* left) {
    return cub::DeviceSelect::If(storage, bytes, values, kept, left, count, NotZero(), CudaStream(ctx));
  });
}

absl::StatusOr<int64_t> RemoveEmpty(const ExecContext& ctx, const Tile* tiles, int64_t count, Tile* kept) {
  return Selected(ctx, count, [&](void* storage, size_t& bytes, int64_t* left) {
    return cub::DeviceSelect::If(storage, bytes, tiles, kept, left, count, NotZero(), CudaStream(ctx));
  });
}

absl::StatusOr<Buffer> RowsOfEntries(const ExecContext& ctx, const ConstPatternView& m) {
  INTRAWARP_RETURN_IF_ERROR(CheckCount(m.entries));
  INTRAWARP_ASSIGN_OR_RETURN(Buffer rows, AllocateItems<int32_t>(ctx, m.entries));
  RowsOfEntriesKernel<<<Blocks(int64_t{32} * m.rows), kThreads, 0, CudaStream(ctx)>>>(m, rows.as<int32_t>());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return rows;
}

}  // namespace intrawarp::baselines::cuda
