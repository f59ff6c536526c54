// SPDX-License-Identifier: Apache-2.0
#include <climits>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/sparse/multiply.h"
#include "tests/bench/baselines/sparse_primitives.h"
#include "tests/bench/baselines/sparse_variants.h"

namespace intrawarp::baselines::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 132 * 16;

#define BASELINES_FOR_EACH(i, count) \
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < (count); i += int64_t{gridDim.x} * kThreads)

// The number that stands in for an operand's value: itself, its magnitude, the largest magnitude that fp16 may make of
// it, 1.
enum class Stand { kValue, kMagnitude, kRoundedUp, kOne };

__global__ void StandKernel(const float* values, int64_t count, Stand stand, double* out) {
  BASELINES_FOR_EACH(i, count) {
    const double v = values[i], size = fabs(v);
    out[i] = stand == Stand::kValue       ? v
             : stand == Stand::kMagnitude ? size
             : stand == Stand::kRoundedUp ? size + fmax(0x1p-11 * size, 0x1p-25)
                                          : 1;
  }
}

struct Counters {
  unsigned long long pattern, values, unsorted, malformed;
  // Bits of numbers that are not negative are in the numbers' order.
  unsigned long long largest, of_bound;
};

// Offsets that stay inside the arrays, columns inside the matrix.
__global__ void LookKernel(ConstPatternView c, Counters* counters) {
  BASELINES_FOR_EACH(r, c.rows) {
    const int64_t begin = c.row_offsets[r], end = c.row_offsets[r + 1];
    if (begin < 0 || end < begin || end > c.entries || (r == 0 && begin != 0) ||
        (r == c.rows - 1 && end != c.entries)) {
      atomicAdd(&counters->malformed, 1ull);
    }
  }
  BASELINES_FOR_EACH(e, c.entries) {
    if (c.column_indices[e] < 0 || c.column_indices[e] >= c.columns) atomicAdd(&counters->malformed, 1ull);
  }
}

__global__ void OrderKernel(ConstPatternView c, Counters* counters) {
  const int lane = threadIdx.x % 32;
  for (int64_t r = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32; r < c.rows; r += gridDim.x * kThreads / 32) {
    for (int64_t e = c.row_offsets[r] + lane; e + 1 < c.row_offsets[r + 1]; e += 32) {
      if (c.column_indices[e] >= c.column_indices[e + 1]) atomicAdd(&counters->unsorted, 1ull);
    }
  }
}

__global__ void KeysKernel(ConstCsrView c, const int32_t* rows, uint64_t* keys, float* values) {
  BASELINES_FOR_EACH(e, c.entries) {
    keys[e] = static_cast<uint64_t>(rows[e]) * c.columns + c.column_indices[e];
    values[e] = static_cast<const float*>(c.values)[e];
  }
}

__global__ void ColumnsKernel(const uint64_t* keys, int64_t count, int32_t columns, int32_t* out) {
  BASELINES_FOR_EACH(i, count) out[i] = static_cast<int32_t>(keys[i] % columns);
}

struct ReferenceView {
  ConstPatternView pattern;
  const double *exact, *magnitude, *rounded_up, *terms;
};

// gamma_n(u) = n u / (1 - n u) (Higham 2002, 3.1).
__device__ double Gamma(double n, double u) { return n * u / (1 - n * u); }

__device__ double Bound(const ReferenceView& reference, int64_t at, SparseCheck check) {
  const double k = reference.terms[at], magnitude = reference.magnitude[at], rounded = reference.rounded_up[at];
  if (check == SparseCheck::kFp32) return Gamma(2 * k, 0x1p-24) * magnitude + k * 0x1p-126;
  return rounded - magnitude + Gamma(k, 0x1p-22) * rounded + k * 0x1p-126;
}

__device__ void CompareValue(const ReferenceView& reference, int64_t at, SparseCheck check, float got,
                             Counters* counters) {
  const double exact = reference.exact[at], magnitude = reference.magnitude[at];
  if (!isfinite(magnitude)) return;
  if (check == SparseCheck::kExact && got != static_cast<float>(exact)) atomicAdd(&counters->values, 1ull);
  if (check == SparseCheck::kExact) return;
  const double difference = fabs(got - exact), bound = Bound(reference, at, check);
  if (!(difference <= bound)) atomicAdd(&counters->values, 1ull);
  if (difference == 0 || magnitude < 0x1p-100) return;
  // fmin makes infinity of NaN.
  atomicMax(&counters->largest, __double_as_longlong(fmin(difference / magnitude, HUGE_VAL)));
  atomicMax(&counters->of_bound, __double_as_longlong(fmin(difference / bound, HUGE_VAL)));
}

// Where `column` is among [begin, end), or -1.
__device__ int64_t Find(const int32_t* columns, int64_t begin, int64_t end, int32_t column) {
  int64_t low = begin, high = end;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (columns[middle] < column) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < end && columns[low] == column ? low : -1;
}

// A warp takes a row. It counts expected entries that C lacks and entries of C that nobody expects.
__global__ void CompareKernel(ReferenceView reference, ConstCsrView c, SparseCheck check, bool zeros_may_lack,
                              Counters* counters) {
  const int lane = threadIdx.x % 32;
  const ConstPatternView& p = reference.pattern;
  for (int64_t r = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32; r < c.rows; r += gridDim.x * kThreads / 32) {
    const int64_t begin = c.row_offsets[r], end = c.row_offsets[r + 1];
    int64_t found = 0;
    for (int64_t e = p.row_offsets[r] + lane; e < p.row_offsets[r + 1]; e += 32) {
      const int64_t at = Find(c.column_indices, begin, end, p.column_indices[e]);
      if (at >= 0) ++found;
      if (at < 0 && !zeros_may_lack) {
        atomicAdd(&counters->pattern, 1ull);
        continue;
      }
      CompareValue(reference, e, check, at < 0 ? 0 : static_cast<const float*>(c.values)[at], counters);
    }
    for (int offset = 16; offset > 0; offset /= 2) found += __shfl_xor_sync(0xffffffffu, found, offset);
    if (lane == 0 && found != end - begin)
      atomicAdd(&counters->pattern, static_cast<unsigned long long>(end - begin - found));
  }
}

class Reference : public SparseReference {
 public:
  explicit Reference(const ExecContext& ctx) : ctx_(ctx) {}

  absl::Status Make(const ConstCsrView& a, const ConstCsrView& b) {
    MultiplyOptions options;
    options.precision = MultiplyPrecision::kFp64;
    INTRAWARP_ASSIGN_OR_RETURN(const MultiplyEstimate estimate, EstimateMultiply(ctx_, a, b, options));
    INTRAWARP_ASSIGN_OR_RETURN(Buffer workspace, ctx_.device().Allocate(estimate.workspace_bytes, ctx_.stream()));
    Arena arena(std::move(workspace));
    const ExecContext ctx(ctx_.device(), ctx_.stream(), arena);
    products_ = estimate.multiplications;
    INTRAWARP_ASSIGN_OR_RETURN(plan_, PlanMultiply(ctx, a, b, options));
    const std::pair<Stand, Buffer*> stands[] = {{Stand::kValue, &exact_},
                                                {Stand::kMagnitude, &magnitude_},
                                                {Stand::kRoundedUp, &rounded_up_},
                                                {Stand::kOne, &terms_}};
    for (const auto& [stand, values] : stands) {
      INTRAWARP_ASSIGN_OR_RETURN(const Buffer a_values, Values(a, stand));
      INTRAWARP_ASSIGN_OR_RETURN(const Buffer b_values, Values(b, stand));
      INTRAWARP_ASSIGN_OR_RETURN(*values, AllocateItems<double>(ctx_, entries()));
      INTRAWARP_RETURN_IF_ERROR(
          ExecuteMultiply(ctx, plan_, WithValues(a, a_values), WithValues(b, b_values), values->as<void>()));
    }
    return ctx_.device().Synchronize(ctx_.stream());
  }

  int64_t entries() const override { return plan_.pattern().entries; }
  int64_t products() const override { return products_; }

  absl::StatusOr<SparseErrors> Compare(const CsrMatrix& c, SparseCheck check, bool zeros_may_lack) override {
    const ConstCsrView view = c.view();
    const ConstPatternView expected = plan_.pattern();
    if (view.rows != expected.rows || view.columns != expected.columns || view.type != ValueType::kFloat32) {
      return absl::InternalError("C has another shape");
    }
    INTRAWARP_ASSIGN_OR_RETURN(counters_, AllocateItems<Counters>(ctx_, 1));
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(counters_.as<void>(), 0, sizeof(Counters), CudaStream(ctx_)));
    LookKernel<<<kBlocks, kThreads, 0, CudaStream(ctx_)>>>(view, counters_.as<Counters>());
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    INTRAWARP_ASSIGN_OR_RETURN(Counters counters, Download());
    if (counters.malformed > 0) return absl::InternalError("C is no CSR matrix");
    OrderKernel<<<kBlocks, kThreads, 0, CudaStream(ctx_)>>>(view, counters_.as<Counters>());
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    INTRAWARP_ASSIGN_OR_RETURN(counters, Download());
    if (counters.unsorted == 0) return CompareSorted(view, check, zeros_may_lack);
    CsrMatrix sorted;
    INTRAWARP_ASSIGN_OR_RETURN(sorted, Sorted(view));
    INTRAWARP_ASSIGN_OR_RETURN(SparseErrors errors, CompareSorted(sorted.view(), check, zeros_may_lack));
    errors.sorted = false;
    return errors;
  }

 private:
  static ConstCsrView WithValues(ConstCsrView m, const Buffer& values) {
    m.type = ValueType::kFloat64;
    m.values = values.as<void>();
    return m;
  }

  absl::StatusOr<Buffer> Values(const ConstCsrView& m, Stand stand) {
    INTRAWARP_ASSIGN_OR_RETURN(Buffer values, AllocateItems<double>(ctx_, m.entries));
    StandKernel<<<kBlocks, kThreads, 0, CudaStream(ctx_)>>>(static_cast<const float*>(m.values), m.entries, stand,
                                                            values.as<double>());
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return values;
  }

  absl::StatusOr<Counters> Download() {
    Counters counters;
    INTRAWARP_RETURN_IF_ERROR(ctx_.device().Copy(&counters, counters_.as<void>(), sizeof(counters), ctx_.stream()));
    INTRAWARP_RETURN_IF_ERROR(ctx_.device().Synchronize(ctx_.stream()));
    return counters;
  }

  absl::StatusOr<CsrMatrix> Sorted(const ConstCsrView& c) {
    INTRAWARP_ASSIGN_OR_RETURN(CsrMatrix sorted, CsrMatrix::Allocate(ctx_.device(), ctx_.stream(), c.rows, c.columns,
                                                                     c.entries, ValueType::kFloat32));
    INTRAWARP_ASSIGN_OR_RETURN(Pairs<float> pairs, AllocatePairs<float>(ctx_, c.entries));
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer rows, RowsOfEntries(ctx_, c));
    KeysKernel<<<kBlocks, kThreads, 0, CudaStream(ctx_)>>>(c, rows.as<int32_t>(), pairs.key(), pairs.value());
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    INTRAWARP_RETURN_IF_ERROR(SortPairs(ctx_, pairs, c.entries, BitsBelow(static_cast<uint64_t>(c.rows) * c.columns)));
    ColumnsKernel<<<kBlocks, kThreads, 0, CudaStream(ctx_)>>>(pairs.key(), c.entries, c.columns,
                                                              sorted.column_indices());
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    INTRAWARP_RETURN_IF_ERROR(
        ctx_.device().Copy(sorted.values(), pairs.value(), c.entries * sizeof(float), ctx_.stream()));
    INTRAWARP_RETURN_IF_ERROR(ctx_.device().Copy(sorted.row_offsets(), c.row_offsets,
                                                 (c.rows + int64_t{1}) * sizeof(int64_t), ctx_.stream()));
    return sorted;
  }

  absl::StatusOr<SparseErrors> CompareSorted(const ConstCsrView& c, SparseCheck check, bool zeros_may_lack) {
    const ReferenceView reference{plan_.pattern(), exact_.as<double>(), magnitude_.as<double>(),
                                  rounded_up_.as<double>(), terms_.as<double>()};
    CompareKernel<<<kBlocks, kThreads, 0, CudaStream(ctx_)>>>(reference, c, check, zeros_may_lack,
                                                              counters_.as<Counters>());
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    INTRAWARP_ASSIGN_OR_RETURN(const Counters counters, Download());
    const auto number = [](unsigned long long bits) {
      double value;
      static_assert(sizeof(value) == sizeof(bits));
      std::memcpy(&value, &bits, sizeof(value));
      return value;
    };
    return SparseErrors{static_cast<int64_t>(counters.pattern), static_cast<int64_t>(counters.values),
                        number(counters.largest), number(counters.of_bound)};
  }

  const ExecContext& ctx_;
  MultiplyPlan plan_;
  int64_t products_ = 0;
  Buffer exact_, magnitude_, rounded_up_, terms_;
  Buffer counters_;
};

absl::StatusOr<cudaMemPool_t> Pool() {
  int device = 0;
  cudaMemPool_t pool = nullptr;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetDefaultMemPool(&pool, device));
  return pool;
}

int64_t PoolAttribute(cudaMemPoolAttr attribute) {
  uint64_t bytes = 0;
  if (const auto pool = Pool(); pool.ok()) (void)cudaMemPoolGetAttribute(*pool, attribute, &bytes);
  return static_cast<int64_t>(bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SparseReference>> MakeSparseReference(const ExecContext& ctx, const ConstCsrView& a,
                                                                     const ConstCsrView& b) {
  auto reference = std::make_unique<Reference>(ctx);
  INTRAWARP_RETURN_IF_ERROR(reference->Make(a, b));
  return reference;
}

int64_t TakePoolPeakBytes() {
  const int64_t peak = PoolAttribute(cudaMemPoolAttrUsedMemHigh);
  uint64_t zero = 0;
  if (const auto pool = Pool(); pool.ok()) (void)cudaMemPoolSetAttribute(*pool, cudaMemPoolAttrUsedMemHigh, &zero);
  return peak;
}
int64_t PoolUsedBytes() { return PoolAttribute(cudaMemPoolAttrUsedMemCurrent); }

}  // namespace intrawarp::baselines::cuda
