// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/warp.cuh"
#include "engine/sparse/cuda/launcher.cuh"
#include "engine/sparse/cuda/marks.cuh"
#include "engine/sparse/cuda/mask_selection.h"
#include "engine/sparse/cuda/search.cuh"
#include "engine/sparse/multiply_kernels.h"

namespace intrawarp::cuda::spgemm {
namespace {

// Where the whole product has entry i of the mask; -1 where it does not.
__device__ int64_t PlaceOf(const ConstPatternView& whole, const ConstPatternView& mask, int64_t i) {
  const int64_t row = LowerBound(mask.row_offsets + 1, int64_t{0}, int64_t{mask.rows}, i + 1);
  const int64_t end = whole.row_offsets[row + 1];
  const int32_t column = mask.column_indices[i];
  const int64_t at = LowerBound(whole.column_indices, whole.row_offsets[row], end, column);
  return at < end && whole.column_indices[at] == column ? at : -1;
}

// A thread takes an entry of the mask, so that a warp has the 32 of one word of bits; the word behind the last entry is
// written, too.
__global__ void FindKernel(ConstPatternView whole, ConstPatternView mask, Marks marks, int64_t* places) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t place = i < mask.entries ? PlaceOf(whole, mask, i) : -1;
  const unsigned found = __ballot_sync(kAllLanes, place >= 0);
  if (threadIdx.x % 32 == 0 && i / 32 < marks.words) marks.bits[i / 32] = found;
  if (i < mask.entries) places[i] = place;
}

// Moves the places of the marked entries together.
__global__ void CompactKernel(Marks marks, const int64_t* places, int64_t mask_entries, int64_t* selected) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < mask_entries && IsMarked(marks, i)) selected[RankOf(marks, i)] = places[i];
}

template <typename T>
__global__ void SelectKernel(const T* whole, const int64_t* places, int64_t entries, T* values) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < entries) values[i] = whole[places[i]];
}

template <typename T>
absl::Status SelectAs(const ExecContext& ctx, const MaskSelection& part, int64_t entries, const void* whole,
                      void* values) {
  SelectKernel<T><<<BlocksFor(entries), kThreads, 0, CudaStream(ctx)>>>(
      static_cast<const T*>(whole), part.places.as<int64_t>(), entries, static_cast<T*>(values));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> MaskSelection::WorkspaceBytes(const ConstPatternView& mask) {
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t pattern, MarkedPatternBytes(mask.entries));
  return MarksBytes(mask.entries) + static_cast<int64_t>(Arena::Rounded(PlacesBytes(mask.entries))) + pattern;
}

absl::StatusOr<CsrPattern> PlanSelection(const ExecContext& ctx, CsrPattern whole, const ConstPatternView& mask,
                                         MaskSelection* part) {
  part->whole = std::move(whole);
  const ConstPatternView product = part->whole.view();
  if (product.entries == 0 || mask.entries == 0) return MakeEmptyPattern(ctx, product.rows, product.columns);
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const Marks marks, AllocateMarks(ctx, mask));
  INTRAWARP_ASSIGN_OR_RETURN(int64_t* const places, ctx.arena().Allocate<int64_t>(mask.entries));
  FindKernel<<<BlocksFor(marks.words * 32), kThreads, 0, CudaStream(ctx)>>>(product, mask, marks, places);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  INTRAWARP_ASSIGN_OR_RETURN(CsrPattern c, MakeMarkedPattern(ctx, mask, marks));
  if (c.entries == 0) return c;
  INTRAWARP_ASSIGN_OR_RETURN(part->places, AllocateForEntries(ctx, "places", c.entries, sizeof(int64_t)));
  CompactKernel<<<BlocksFor(mask.entries), kThreads, 0, CudaStream(ctx)>>>(marks, places, mask.entries,
                                                                           part->places.as<int64_t>());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return c;
}

absl::Status SelectValues(const ExecContext& ctx, const MaskSelection& part, int64_t entries, ValueType type,
                          const void* whole_values, void* values) {
  if (type == ValueType::kFloat64) return SelectAs<double>(ctx, part, entries, whole_values, values);
  return SelectAs<float>(ctx, part, entries, whole_values, values);
}

}  // namespace intrawarp::cuda::spgemm
