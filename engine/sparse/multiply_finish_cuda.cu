// SPDX-License-Identifier: Apache-2.0
#include <cub/device/device_scan.cuh>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/sparse/multiply_finish.h"

namespace intrawarp::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kThreads = 256;

// The patterns that meet. Those that are not there have no offsets.
struct Operands {
  ConstPatternView product, mask, addend;
  bool complement;
};

Operands OperandsOf(const ConstPatternView& product, const MultiplyOptions& options) {
  Operands o = {product, {}, {}, options.complement_mask};
  if (options.mask) o.mask = *options.mask;
  if (options.addend) o.addend = *options.addend;
  return o;
}

// Row `row` of a pattern: `length` columns.
struct Row {
  const int32_t* columns;
  int length;
  int64_t begin;

  __device__ Row(const ConstPatternView& m, int64_t row) : columns(nullptr), length(0), begin(0) {
    if (m.row_offsets == nullptr) return;
    begin = m.row_offsets[row];
    length = static_cast<int>(m.row_offsets[row + 1] - begin);
    columns = m.column_indices + begin;
  }
  // The first place whose column is not less.
  __device__ int LowerBound(int32_t column) const {
    int low = 0, high = length;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (columns[middle] < column) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
  __device__ bool Has(int32_t column) const {
    const int place = LowerBound(column);
    return place < length && columns[place] == column;
  }
};

__device__ bool Keeps(const Operands& o, const Row& mask, int32_t column) {
  return o.mask.row_offsets == nullptr || mask.Has(column) != o.complement;
}

// A warp a row: writes the number of entries of C's row to counts, and of_product as the number of kept entries before
// an entry in its row, complemented where it is masked out.
__global__ void CountKernel(Operands o, int64_t* counts, int64_t* of_product) {
  const int lane = threadIdx.x % 32;
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (row >= o.product.rows) return;
  const Row product(o.product, row), mask(o.mask, row), addend(o.addend, row);
  int kept = 0, both = 0;
  for (int i = 0; i < product.length; i += 32) {
    const bool there = i + lane < product.length;
    const bool keep = there && Keeps(o, mask, product.columns[i + lane]);
    const unsigned keeps = __ballot_sync(kAll, keep);
    const int64_t before = kept + __popc(keeps & ((1u << lane) - 1));
    if (there) of_product[product.begin + i + lane] = keep ? before : ~before;
    kept += __popc(keeps);
    both += __popc(__ballot_sync(kAll, keep && addend.Has(product.columns[i + lane])));
  }
  if (lane == 0) counts[row] = kept + addend.length - both;
}

// A warp a row: columns of C, and where entries go.
__global__ void FillKernel(Operands o, const int64_t* offsets, FinishPlan finish, int32_t* indices) {
  const int lane = threadIdx.x % 32;
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (row >= o.product.rows) return;
  const Row product(o.product, row), addend(o.addend, row);
  const int64_t begin = offsets[row];
  int64_t* const places = finish.of_product + product.begin;
  // Entries of the addend first: places still holds ranks.
  int matched = 0;
  int64_t kept = 0;
  if (product.length > 0) {
    const int64_t last = places[product.length - 1];
    kept = last >= 0 ? last + 1 : ~last;
  }
  for (int i = 0; i < addend.length; i += 32) {
    const bool there = i + lane < addend.length;
    const int32_t column = there ? addend.columns[i + lane] : 0;
    const int at = there ? product.LowerBound(column) : product.length;
    const int64_t rank = at < product.length ? places[at] : kept;
    const bool match = there && at < product.length && product.columns[at] == column && rank >= 0;
    const unsigned matches = __ballot_sync(kAll, match);
    const int64_t place =
        begin + (rank >= 0 ? rank : ~rank) + i + lane - matched - __popc(matches & ((1u << lane) - 1));
    if (there) finish.of_addend[addend.begin + i + lane] = match ? place : -2 - place;
    if (there) indices[place] = column;
    matched += __popc(matches);
  }
  __syncwarp();
  matched = 0;
  for (int i = 0; i < product.length; i += 32) {
    const bool there = i + lane < product.length;
    const int64_t rank = there ? places[i + lane] : -1;
    const bool keep = rank >= 0;
    const int32_t column = there ? product.columns[i + lane] : 0;
    const int before = keep ? addend.LowerBound(column) : 0;
    const bool match = keep && before < addend.length && addend.columns[before] == column;
    const unsigned matches = __ballot_sync(kAll, match);
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

unsigned BlocksFor(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

absl::StatusOr<size_t> ScanBytes(int64_t rows) {
  size_t bytes = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cub::DeviceScan::ExclusiveSum(nullptr, bytes, static_cast<int64_t*>(nullptr),
                                                               static_cast<int64_t*>(nullptr), rows + 1));
  return bytes;
}

template <typename T>
absl::Status ExecuteAs(const ExecContext& ctx, const FinishPlan& finish, int64_t product_entries,
                       const void* product_values, const MultiplyOptions& options, T* values) {
  const cudaStream_t stream = CudaStream(ctx);
  if (product_entries > 0) {
    ProductValuesKernel<T><<<BlocksFor(product_entries), kThreads, 0, stream>>>(
        static_cast<const T*>(product_values), finish.of_product, product_entries, values);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  }
  if (!options.addend || options.addend->entries == 0) return absl::OkStatus();
  AddendValuesKernel<T><<<BlocksFor(options.addend->entries), kThreads, 0, stream>>>(
      static_cast<const T*>(options.addend->values), finish.of_addend, options.addend->entries,
      static_cast<T>(options.beta), values);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace

int64_t FinishBytes(int64_t product_entries, const MultiplyOptions& options) {
  return Arena::Rounded(product_entries * sizeof(int64_t)) +
         Arena::Rounded(options.addend ? options.addend->entries * sizeof(int64_t) : 0);
}

FinishPlan FinishIn(char* memory, int64_t product_entries) {
  return {reinterpret_cast<int64_t*>(memory),
          reinterpret_cast<int64_t*>(memory + Arena::Rounded(product_entries * sizeof(int64_t)))};
}

absl::StatusOr<int64_t> FinishWorkspaceBytes(int64_t rows) {
  INTRAWARP_ASSIGN_OR_RETURN(const size_t scan, ScanBytes(rows));
  return Arena::Rounded(scan);
}

absl::Status PlanFinish(const ExecContext& ctx, const ConstPatternView& product, const MultiplyOptions& options,
                        const FinishPlan& finish, int64_t* offsets, Buffer* indices, int64_t* entries) {
  const cudaStream_t stream = CudaStream(ctx);
  const int64_t rows = product.rows;
  const Operands operands = OperandsOf(product, options);
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(offsets, 0, (rows + 1) * sizeof(int64_t), ctx.stream()));
  *entries = 0;
  if (rows == 0) return absl::OkStatus();
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(size_t scan_bytes, ScanBytes(rows));
  INTRAWARP_ASSIGN_OR_RETURN(void* const scan, ctx.arena().AllocateBytes(scan_bytes));
  CountKernel<<<BlocksFor(rows * 32), kThreads, 0, stream>>>(operands, offsets, finish.of_product);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cub::DeviceScan::ExclusiveSum(scan, scan_bytes, offsets, offsets, rows + 1, stream));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(entries, offsets + rows, sizeof(int64_t), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  INTRAWARP_ASSIGN_OR_RETURN(*indices, ctx.device().Allocate(*entries * sizeof(int32_t), ctx.stream()));
  FillKernel<<<BlocksFor(rows * 32), kThreads, 0, stream>>>(operands, offsets, finish, indices->as<int32_t>());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status ExecuteFinish(const ExecContext& ctx, const FinishPlan& finish, int64_t product_entries,
                           const void* product_values, const MultiplyOptions& options, void* values) {
  if (ValueTypeOf(options.precision) == ValueType::kFloat64) {
    return ExecuteAs(ctx, finish, product_entries, product_values, options, static_cast<double*>(values));
  }
  return ExecuteAs(ctx, finish, product_entries, product_values, options, static_cast<float*>(values));
}

}  // namespace intrawarp::cuda
