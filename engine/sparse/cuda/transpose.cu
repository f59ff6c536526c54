// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <climits>
#include <cub/device/device_radix_sort.cuh>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/sparse/cuda/carver.h"
#include "engine/sparse/cuda/launcher.cuh"
#include "engine/sparse/cuda/search.cuh"
#include "engine/sparse/cuda/transpose.h"

namespace intrawarp::cuda::spgemm {
namespace {

TransposeView Carve(Carver& carver, int64_t rows, int64_t entries) {
  TransposeView view;
  view.offsets = carver.Take<int64_t>(rows + 1);
  view.indices = carver.Take<int32_t>(entries);
  view.positions = carver.Take<int32_t>(entries);
  return view;
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

__global__ void OffsetsKernel(const int32_t* sorted_columns, int64_t entries, int32_t columns, int64_t* offsets) {
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c <= columns)
    offsets[c] = c == columns ? entries : LowerBound(sorted_columns, int64_t{0}, entries, static_cast<int32_t>(c));
}

__global__ void RowsKernel(ConstPatternView m, const int32_t* positions, int32_t* rows) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= m.entries) return;
  rows[i] =
      static_cast<int32_t>(LowerBound(m.row_offsets, int64_t{0}, int64_t{m.rows} + 1, int64_t{positions[i]} + 1) - 1);
}

template <typename T>
__global__ void GatherKernel(const T* from, const int32_t* positions, int64_t count, T* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) to[i] = from[positions[i]];
}

template <typename T>
absl::Status Gather(const ExecContext& ctx, const Transpose& transpose, const void* from, void* to) {
  GatherKernel<<<BlocksFor(transpose.entries), kThreads, 0, CudaStream(ctx)>>>(
      static_cast<const T*>(from), transpose.view().positions, transpose.entries, static_cast<T*>(to));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status SortIntoTranspose(const ExecContext& ctx, const ConstPatternView& m, const TransposeView& to) {
  const cudaStream_t stream = CudaStream(ctx);
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(size_t sort_bytes, SortBytes(m));
  INTRAWARP_ASSIGN_OR_RETURN(int32_t* const columns, ctx.arena().Allocate<int32_t>(m.entries));
  INTRAWARP_ASSIGN_OR_RETURN(int32_t* const order, ctx.arena().Allocate<int32_t>(m.entries));
  INTRAWARP_ASSIGN_OR_RETURN(void* const sort, ctx.arena().AllocateBytes(sort_bytes));
  CountUpKernel<<<BlocksFor(m.entries), kThreads, 0, stream>>>(order, m.entries);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cub::DeviceRadixSort::SortPairs(sort, sort_bytes, m.column_indices, columns,
                                                                 static_cast<const int32_t*>(order), to.positions,
                                                                 m.entries, 0, BitsOf(m), stream));
  OffsetsKernel<<<BlocksFor(int64_t{m.columns} + 1), kThreads, 0, stream>>>(columns, m.entries, m.columns, to.offsets);
  RowsKernel<<<BlocksFor(m.entries), kThreads, 0, stream>>>(m, to.positions, to.indices);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace

int64_t Transpose::Bytes(const ConstPatternView& m) {
  Carver carver;
  Carve(carver, m.columns, m.entries);
  return carver.bytes();
}

absl::StatusOr<int64_t> Transpose::WorkspaceBytes(const ConstPatternView& m) {
  INTRAWARP_ASSIGN_OR_RETURN(const size_t sort, SortBytes(m));
  return 2 * Arena::Rounded(m.entries * sizeof(int32_t)) + Arena::Rounded(sort);
}

TransposeView Transpose::view() const {
  Carver carver(memory);
  return Carve(carver, rows, entries);
}

ConstPatternView Transpose::pattern() const {
  const TransposeView arrays = view();
  return {rows, columns, entries, arrays.offsets, arrays.indices};
}

absl::Status CheckTranspose(const ConstPatternView& m) {
  if (m.entries <= INT32_MAX) return absl::OkStatus();
  return FieldError(absl::StatusCode::kUnimplemented, "transpose_a",
                    absl::StrCat("A has ", m.entries, " entries; CUDA transposes ", INT32_MAX, " at most"));
}

absl::StatusOr<Transpose> MakeTranspose(const ExecContext& ctx, const ConstPatternView& m) {
  INTRAWARP_RETURN_IF_ERROR(CheckTranspose(m));
  Transpose t;
  t.rows = m.columns;
  t.columns = m.rows;
  t.entries = m.entries;
  INTRAWARP_ASSIGN_OR_RETURN(t.memory, ctx.device().Allocate(Transpose::Bytes(m), ctx.stream()));
  if (m.entries > 0) {
    INTRAWARP_RETURN_IF_ERROR(SortIntoTranspose(ctx, m, t.view()));
  } else {
    const size_t offsets_bytes = (int64_t{t.rows} + 1) * sizeof(int64_t);
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(t.view().offsets, 0, offsets_bytes, ctx.stream()));
  }
  return t;
}

absl::Status TransposeValues(const ExecContext& ctx, const Transpose& transpose, const ConstCsrView& m, void* values) {
  if (m.entries == 0) return absl::OkStatus();
  if (m.type == ValueType::kFloat64) return Gather<double>(ctx, transpose, m.values, values);
  return Gather<float>(ctx, transpose, m.values, values);
}

}  // namespace intrawarp::cuda::spgemm
