// SPDX-License-Identifier: Apache-2.0
// Zachariadis (2020), section 3.3.3: expand, sort, compress of single values, CSR to CSR.
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "tests/bench/baselines/sparse_primitives.h"
#include "tests/bench/baselines/sparse_variants.h"

namespace intrawarp::baselines::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 132 * 16;

#define BASELINES_FOR_EACH(i, count) \
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < (count); i += int64_t{gridDim.x} * kThreads)

// Products that an entry of A takes part in.
__global__ void LengthsKernel(ConstCsrView a, ConstCsrView b, int32_t* lengths) {
  BASELINES_FOR_EACH(e, a.entries) {
    const int32_t k = a.column_indices[e];
    lengths[e] = static_cast<int32_t>(b.row_offsets[k + 1] - b.row_offsets[k]);
  }
}

__global__ void ExpandKernel(ConstCsrView a, ConstCsrView b, const int32_t* rows, const int64_t* offsets,
                             const int32_t* owners, int64_t products, uint64_t* keys, float* values) {
  BASELINES_FOR_EACH(i, products) {
    const int32_t e = owners[i];
    const int64_t at = b.row_offsets[a.column_indices[e]] + (i - offsets[e]);
    keys[i] = static_cast<uint64_t>(rows[e]) * b.columns + b.column_indices[at];
    values[i] = static_cast<const float*>(a.values)[e] * static_cast<const float*>(b.values)[at];
  }
}

__global__ void ColumnsKernel(const uint64_t* keys, int64_t count, int32_t columns, int32_t* out) {
  BASELINES_FOR_EACH(i, count) out[i] = static_cast<int32_t>(keys[i] % columns);
}

__global__ void RowOffsetsKernel(const uint64_t* keys, int64_t count, int32_t rows, int32_t columns, int64_t* out) {
  BASELINES_FOR_EACH(r, rows + int64_t{1}) {
    const uint64_t first = static_cast<uint64_t>(r) * columns;
    int64_t low = 0, high = count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (keys[middle] < first) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    out[r] = low;
  }
}

class EscProduct : public SparseProduct {
 public:
  EscProduct(const ExecContext& ctx, const ConstCsrView& a, const ConstCsrView& b) : ctx_(ctx), a_(a), b_(b) {}

  absl::Status Run() override {
    result_ = CsrMatrix();
    const cudaStream_t stream = CudaStream(ctx_);
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer lengths, AllocateItems<int32_t>(ctx_, a_.entries));
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer offsets, AllocateItems<int64_t>(ctx_, a_.entries + 1));
    LengthsKernel<<<kBlocks, kThreads, 0, stream>>>(a_, b_, lengths.as<int32_t>());
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    INTRAWARP_RETURN_IF_ERROR(SumLengths(ctx_, lengths.as<int32_t>(), a_.entries, offsets.as<int64_t>()));
    INTRAWARP_ASSIGN_OR_RETURN(const int64_t products, ReadBack(ctx_, offsets.as<int64_t>() + a_.entries));
    INTRAWARP_ASSIGN_OR_RETURN(Pairs<float> pairs, AllocatePairs<float>(ctx_, products));
    INTRAWARP_RETURN_IF_ERROR(Expand(offsets.as<int64_t>(), products, pairs));
    const int bits = BitsBelow(static_cast<uint64_t>(a_.rows) * b_.columns);
    INTRAWARP_RETURN_IF_ERROR(SortPairs(ctx_, pairs, products, bits));
    INTRAWARP_ASSIGN_OR_RETURN(const int64_t entries, SumRuns(ctx_, pairs.key(), pairs.value(), products,
                                                              pairs.free_key(), pairs.free_value()));
    return Store(pairs.free_key(), pairs.free_value(), entries);
  }

  absl::StatusOr<CsrMatrix> Result() override { return std::move(result_); }

 private:
  absl::Status Expand(const int64_t* offsets, int64_t products, const Pairs<float>& pairs) {
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer owners, OwnersOf(ctx_, offsets, a_.entries, products));
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer rows, RowsOfEntries(ctx_, a_));
    ExpandKernel<<<kBlocks, kThreads, 0, CudaStream(ctx_)>>>(a_, b_, rows.as<int32_t>(), offsets, owners.as<int32_t>(),
                                                             products, pairs.key(), pairs.value());
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  }

  absl::Status Store(const uint64_t* keys, const float* values, int64_t entries) {
    INTRAWARP_ASSIGN_OR_RETURN(CsrMatrix c, CsrMatrix::Allocate(ctx_.device(), ctx_.stream(), a_.rows, b_.columns,
                                                                entries, ValueType::kFloat32));
    const cudaStream_t stream = CudaStream(ctx_);
    ColumnsKernel<<<kBlocks, kThreads, 0, stream>>>(keys, entries, b_.columns, c.column_indices());
    RowOffsetsKernel<<<kBlocks, kThreads, 0, stream>>>(keys, entries, a_.rows, b_.columns, c.row_offsets());
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    INTRAWARP_RETURN_IF_ERROR(ctx_.device().Copy(c.values(), values, entries * sizeof(float), ctx_.stream()));
    result_ = std::move(c);
    return absl::OkStatus();
  }

  const ExecContext& ctx_;
  const ConstCsrView a_, b_;
  CsrMatrix result_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SparseProduct>> MakeEscProduct(const ExecContext& ctx, const ConstCsrView& a,
                                                              const ConstCsrView& b) {
  return std::make_unique<EscProduct>(ctx, a, b);
}

}  // namespace intrawarp::baselines::cuda
