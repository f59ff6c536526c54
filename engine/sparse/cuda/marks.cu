// SPDX-License-Identifier: Apache-2.0
#include <cub/device/device_scan.cuh>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/sparse/cuda/launcher.cuh"
#include "engine/sparse/cuda/marks.cuh"
#include "engine/sparse/multiply_kernels.h"

namespace intrawarp::cuda::spgemm {
namespace {

__global__ void CountMarksKernel(Marks marks) {
  const int64_t w = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (w < marks.words) marks.before[w] = __popc(marks.bits[w]);
}

__global__ void OffsetsKernel(ConstPatternView mask, Marks marks, int64_t* offsets) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row <= mask.rows) offsets[row] = RankOf(marks, mask.row_offsets[row]);
}

__global__ void ColumnsKernel(ConstPatternView mask, Marks marks, int32_t* indices) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < mask.entries && IsMarked(marks, i)) indices[RankOf(marks, i)] = mask.column_indices[i];
}

absl::StatusOr<size_t> ScanBytes(int64_t words) {
  size_t bytes = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cub::DeviceScan::ExclusiveSum(nullptr, bytes, static_cast<int64_t*>(nullptr),
                                                               static_cast<int64_t*>(nullptr), words));
  return bytes;
}

// Fills the offsets of C; returns the number of its entries. Waits.
absl::StatusOr<int64_t> CountEntries(const ExecContext& ctx, const ConstPatternView& mask, const Marks& marks,
                                     int64_t* offsets) {
  const cudaStream_t stream = CudaStream(ctx);
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(size_t scan_bytes, ScanBytes(marks.words));
  INTRAWARP_ASSIGN_OR_RETURN(void* const scan, ctx.arena().AllocateBytes(scan_bytes));
  CountMarksKernel<<<BlocksFor(marks.words), kThreads, 0, stream>>>(marks);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  INTRAWARP_CUDA_RETURN_IF_ERROR(
      cub::DeviceScan::ExclusiveSum(scan, scan_bytes, marks.before, marks.before, marks.words, stream));
  OffsetsKernel<<<BlocksFor(int64_t{mask.rows} + 1), kThreads, 0, stream>>>(mask, marks, offsets);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  int64_t entries = 0;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&entries, offsets + mask.rows, sizeof(int64_t), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return entries;
}

absl::StatusOr<CsrPattern> AllocateOffsets(const ExecContext& ctx, int32_t rows, int32_t columns) {
  CsrPattern c = {rows, columns, 0, {}, {}};
  INTRAWARP_ASSIGN_OR_RETURN(c.row_offsets, ctx.device().Allocate((int64_t{rows} + 1) * sizeof(int64_t), ctx.stream()));
  return c;
}

}  // namespace

int64_t MarksBytes(int64_t mask_entries) {
  const int64_t words = Marks::WordsFor(mask_entries);
  return Arena::Rounded(words * sizeof(uint32_t)) + Arena::Rounded(words * sizeof(int64_t));
}

absl::StatusOr<int64_t> MarkedPatternBytes(int64_t mask_entries) {
  INTRAWARP_ASSIGN_OR_RETURN(const size_t scan, ScanBytes(Marks::WordsFor(mask_entries)));
  return Arena::Rounded(scan);
}

absl::StatusOr<Marks> AllocateMarks(const ExecContext& ctx, const ConstPatternView& mask) {
  Marks marks = {nullptr, nullptr, Marks::WordsFor(mask.entries)};
  INTRAWARP_ASSIGN_OR_RETURN(marks.bits, ctx.arena().Allocate<uint32_t>(marks.words));
  INTRAWARP_ASSIGN_OR_RETURN(marks.before, ctx.arena().Allocate<int64_t>(marks.words));
  return marks;
}

absl::StatusOr<CsrPattern> MakeMarkedPattern(const ExecContext& ctx, const ConstPatternView& mask, const Marks& marks) {
  INTRAWARP_ASSIGN_OR_RETURN(CsrPattern c, AllocateOffsets(ctx, mask.rows, mask.columns));
  INTRAWARP_ASSIGN_OR_RETURN(c.entries, CountEntries(ctx, mask, marks, c.row_offsets.as<int64_t>()));
  if (c.entries == 0) return c;
  INTRAWARP_ASSIGN_OR_RETURN(c.column_indices, AllocateForEntries(ctx, "columns", c.entries, sizeof(int32_t)));
  ColumnsKernel<<<BlocksFor(mask.entries), kThreads, 0, CudaStream(ctx)>>>(mask, marks, c.column_indices.as<int32_t>());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return c;
}

absl::StatusOr<CsrPattern> MakeEmptyPattern(const ExecContext& ctx, int32_t rows, int32_t columns) {
  INTRAWARP_ASSIGN_OR_RETURN(CsrPattern c, AllocateOffsets(ctx, rows, columns));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(c.row_offsets.as<void>(), 0, c.row_offsets.bytes(), ctx.stream()));
  return c;
}

}  // namespace intrawarp::cuda::spgemm
