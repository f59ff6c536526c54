// SPDX-License-Identifier: Apache-2.0
#include <cub/device/device_scan.cuh>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/warp.cuh"
#include "engine/sparse/cuda/carver.h"
#include "engine/sparse/cuda/launcher.cuh"
#include "engine/sparse/cuda/mask_add.h"
#include "engine/sparse/cuda/search.cuh"
#include "engine/sparse/multiply_kernels.h"

namespace intrawarp::cuda::spgemm {
namespace {

MaskAddView Carve(Carver& carver, int64_t product_entries, int64_t addend_entries) {
  MaskAddView view;
  view.of_product = carver.Take<int64_t>(product_entries);
  view.of_addend = carver.Take<int64_t>(addend_entries);
  return view;
}

// The patterns that C is made from: the entries of the product that are not entries of `without`, and the addend's. An
// absent pattern has no offsets.
struct Operands {
  ConstPatternView product, without, addend;
};

Operands OperandsOf(const ConstPatternView& product, const MultiplyOptions& options) {
  Operands o = {product, {}, {}};
  if (options.complement_mask) o.without = *options.mask;
  if (options.addend) o.addend = *options.addend;
  return o;
}

// Row `row` of a pattern: `length` columns. Places have 64 bits, so that a step of 32 past the end of a row of 2^31 - 1
// columns does not wrap.
struct Row {
  const int32_t* columns;
  int64_t length;
  int64_t begin;

  __device__ Row(const ConstPatternView& m, int64_t row) : columns(nullptr), length(0), begin(0) {
    if (m.row_offsets == nullptr) return;
    begin = m.row_offsets[row];
    length = m.row_offsets[row + 1] - begin;
    columns = m.column_indices + begin;
  }
  // The first place whose column is not less.
  __device__ int64_t PlaceOf(int32_t column) const { return LowerBound(columns, int64_t{0}, length, column); }
  __device__ bool Has(int32_t column) const {
    const int64_t place = PlaceOf(column);
    return place < length && columns[place] == column;
  }
};

// A warp takes a row. Writes the number of entries of C's row to `counts`, and to `of_product` the number of kept
// entries before each entry of the row, complemented for an entry that is masked out.
__global__ void CountKernel(Operands o, int64_t* counts, int64_t* of_product) {
  const int lane = threadIdx.x % 32;
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (row >= o.product.rows) return;
  const Row product(o.product, row), without(o.without, row), addend(o.addend, row);
  int64_t kept = 0, both = 0;
  for (int64_t i = 0; i < product.length; i += 32) {
    const bool there = i + lane < product.length;
    const bool keep = there && !without.Has(product.columns[i + lane]);
    const unsigned keeps = __ballot_sync(kAllLanes, keep);
    const int64_t before = kept + __popc(keeps & ((1u << lane) - 1));
    if (there) of_product[product.begin + i + lane] = keep ? before : ~before;
    kept += __popc(keeps);
    both += __popc(__ballot_sync(kAllLanes, keep && addend.Has(product.columns[i + lane])));
  }
  if (lane == 0) counts[row] = kept + addend.length - both;
}

// A warp takes a row. Writes the columns of C and where entries go.
__global__ void FillKernel(Operands o, const int64_t* offsets, MaskAddView to, int32_t* indices) {
  const int lane = threadIdx.x % 32;
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (row >= o.product.rows) return;
  const Row product(o.product, row), addend(o.addend, row);
  const int64_t begin = offsets[row];
  int64_t* const places = to.of_product + product.begin;
  // The addend comes first, while `places` still holds ranks.
  int64_t matched = 0, kept = 0;
  if (product.length > 0) {
    const int64_t last = places[product.length - 1];
    kept = last >= 0 ? last + 1 : ~last;
  }
  for (int64_t i = 0; i < addend.length; i += 32) {
    const bool there = i + lane < addend.length;
    const int32_t column = there ? addend.columns[i + lane] : 0;
    const int64_t at = there ? product.PlaceOf(column) : product.length;
    const int64_t rank = at < product.length ? places[at] : kept;
    const bool match = there && at < product.length && product.columns[at] == column && rank >= 0;
    const unsigned matches = __ballot_sync(kAllLanes, match);
    const int64_t place =
        begin + (rank >= 0 ? rank : ~rank) + i + lane - matched - __popc(matches & ((1u << lane) - 1));
    if (there) to.of_addend[addend.begin + i + lane] = match ? place : -2 - place;
    if (there) indices[place] = column;
    matched += __popc(matches);
  }
  __syncwarp();
  matched = 0;
  for (int64_t i = 0; i < product.length; i += 32) {
    const bool there = i + lane < product.length;
    const int64_t rank = there ? places[i + lane] : -1;
    const bool keep = rank >= 0;
    const int32_t column = there ? product.columns[i + lane] : 0;
    const int64_t before = keep ? addend.PlaceOf(column) : 0;
    const bool match = keep && before < addend.length && addend.columns[before] == column;
    const unsigned matches = __ballot_sync(kAllLanes, match);
    const int64_t place = begin + rank + before - matched - __popc(matches & ((1u << lane) - 1));
    if (there) places[i + lane] = keep ? place : -1;
    if (keep) indices[place] = column;
    matched += __popc(matches);
  }
}

template <typename T>
__global__ void ProductValuesKernel(const T* product, const int64_t* places, int64_t count, T* values) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count && places[i] >= 0) values[places[i]] = product[i];
}

template <typename T>
__global__ void AddendValuesKernel(const T* addend, const int64_t* places, int64_t count, T beta, T* values) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t place = places[i];
  if (place >= 0) {
    values[place] += beta * addend[i];
  } else {
    values[-2 - place] = beta * addend[i];
  }
}

absl::StatusOr<size_t> ScanBytes(int64_t rows) {
  size_t bytes = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cub::DeviceScan::ExclusiveSum(nullptr, bytes, static_cast<int64_t*>(nullptr),
                                                               static_cast<int64_t*>(nullptr), rows + 1));
  return bytes;
}

template <typename T>
absl::Status ExecuteAs(const ExecContext& ctx, const MaskAdd& part, const void* product_values,
                       const MultiplyOptions& options, T* values) {
  const cudaStream_t stream = CudaStream(ctx);
  const MaskAddView to = part.view();
  const int64_t product_entries = part.product.entries;
  if (product_entries > 0) {
    ProductValuesKernel<T><<<BlocksFor(product_entries), kThreads, 0, stream>>>(static_cast<const T*>(product_values),
                                                                                to.of_product, product_entries, values);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  }
  if (!options.addend || options.addend->entries == 0) return absl::OkStatus();
  AddendValuesKernel<T><<<BlocksFor(options.addend->entries), kThreads, 0, stream>>>(
      static_cast<const T*>(options.addend->values), to.of_addend, options.addend->entries,
      static_cast<T>(options.beta), values);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

// Fills the offsets of C and the ranks of the product's entries; returns the number of entries of C. Waits.
absl::StatusOr<int64_t> CountEntries(const ExecContext& ctx, const Operands& operands, const MaskAddView& to,
                                     int64_t* offsets) {
  const cudaStream_t stream = CudaStream(ctx);
  const int64_t rows = operands.product.rows;
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(size_t scan_bytes, ScanBytes(rows));
  INTRAWARP_ASSIGN_OR_RETURN(void* const scan, ctx.arena().AllocateBytes(scan_bytes));
  CountKernel<<<BlocksFor(rows * 32), kThreads, 0, stream>>>(operands, offsets, to.of_product);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cub::DeviceScan::ExclusiveSum(scan, scan_bytes, offsets, offsets, rows + 1, stream));
  int64_t entries = 0;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&entries, offsets + rows, sizeof(int64_t), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return entries;
}

}  // namespace

int64_t MaskAdd::PlacesBytes(int64_t product_entries, const MultiplyOptions& options) {
  Carver carver;
  Carve(carver, product_entries, options.addend ? options.addend->entries : 0);
  return carver.bytes();
}

absl::StatusOr<int64_t> MaskAdd::WorkspaceBytes(int64_t rows) {
  INTRAWARP_ASSIGN_OR_RETURN(const size_t scan, ScanBytes(rows));
  return Arena::Rounded(scan);
}

MaskAddView MaskAdd::view() const {
  Carver carver(places);
  return Carve(carver, product.entries, 0);
}

absl::StatusOr<CsrPattern> PlanMaskAdd(const ExecContext& ctx, CsrPattern product, const MultiplyOptions& options,
                                       MaskAdd* part) {
  part->product = std::move(product);
  const ConstPatternView whole = part->product.view();
  CsrPattern c = {whole.rows, whole.columns, 0, {}, {}};
  const size_t places_bytes = MaskAdd::PlacesBytes(whole.entries, options),
               offsets_bytes = (c.rows + int64_t{1}) * sizeof(int64_t);
  INTRAWARP_ASSIGN_OR_RETURN(part->places, ctx.device().Allocate(places_bytes, ctx.stream()));
  INTRAWARP_ASSIGN_OR_RETURN(c.row_offsets, ctx.device().Allocate(offsets_bytes, ctx.stream()));
  int64_t* const offsets = c.row_offsets.as<int64_t>();
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(offsets, 0, offsets_bytes, ctx.stream()));
  if (c.rows == 0) return c;
  const Operands operands = OperandsOf(whole, options);
  const MaskAddView to = part->view();
  INTRAWARP_ASSIGN_OR_RETURN(c.entries, CountEntries(ctx, operands, to, offsets));
  INTRAWARP_ASSIGN_OR_RETURN(c.column_indices, AllocateForEntries(ctx, "columns", c.entries, sizeof(int32_t)));
  FillKernel<<<BlocksFor(int64_t{c.rows} * 32), kThreads, 0, CudaStream(ctx)>>>(operands, offsets, to,
                                                                                c.column_indices.as<int32_t>());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return c;
}

absl::Status ExecuteMaskAdd(const ExecContext& ctx, const MaskAdd& part, const void* product_values,
                            const MultiplyOptions& options, void* values) {
  if (ValueTypeOf(options.precision) == ValueType::kFloat64) {
    return ExecuteAs(ctx, part, product_values, options, static_cast<double*>(values));
  }
  return ExecuteAs(ctx, part, product_values, options, static_cast<float*>(values));
}

}  // namespace intrawarp::cuda::spgemm
