// SPDX-License-Identifier: Apache-2.0
// The product on the CPU: SuiteSparse:GraphBLAS, one thread a block of rows. GraphBLAS's own threads would share a row
// and add to its entries in an order that changes from run to run; the blocks depend on the patterns alone. Between two
// blocks, which take some hundredths of a second, the job's thread passes a checkpoint.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <complex>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"
#include "engine/sparse/multiply_kernels.h"

// The header of GraphBLAS 7 does not say extern "C" itself.
extern "C" {
#include <GraphBLAS.h>
}

namespace intrawarp::cpu {
namespace {

constexpr int64_t kRowsPerBlock = 512;
// Entries of A plus multiplications in a block of more than one row, at most.
constexpr int64_t kWorkPerBlock = int64_t{1} << 20;
constexpr int64_t kEntriesPerCopy = int64_t{1} << 20;

// Whether a loop over several threads should end. The thread that made the object asks at the checkpoint and tells the
// others.
class Stop {
 public:
  explicit Stop(const ExecContext& ctx) : ctx_(ctx) {}
  bool Asked() {
    const bool is_job = std::this_thread::get_id() == job_thread_;
    if (is_job && ctx_.Checkpoint({}) == Decision::kCancel) asked_ = true;
    return asked_;
  }
  absl::Status status() const { return asked_ ? absl::CancelledError("cancelled") : absl::OkStatus(); }

 private:
  const ExecContext& ctx_;
  const std::thread::id job_thread_ = std::this_thread::get_id();
  std::atomic<bool> asked_ = false;
};

absl::Status GrbStatus(GrB_Info info, const char* call) {
  if (info == GrB_SUCCESS) return absl::OkStatus();
  const std::string text = absl::StrCat(call, ": GraphBLAS error ", static_cast<int>(info));
  if (info == GrB_OUT_OF_MEMORY) return absl::ResourceExhaustedError(text);
  return absl::InternalError(text);
}
#define INTRAWARP_GRB_RETURN_IF_ERROR(call) INTRAWARP_RETURN_IF_ERROR(GrbStatus((call), #call))

// Turns off the library's own pool of small blocks: every thread would take the pool's lock, and its memory would stay
// allocated.
GrB_Info StartGraphBlas() {
  constexpr int kClasses = 64;
  int64_t kept[kClasses] = {};
  GrB_Info info = GrB_init(GrB_BLOCKING);
  if (info == GrB_SUCCESS) info = GxB_Global_Option_set(GxB_MEMORY_POOL, kept);
  if (info == GrB_SUCCESS) info = GxB_Global_Option_set(GxB_GLOBAL_NTHREADS, 1);
  return info;
}

// Starts GraphBLAS once a process; nothing finalises it, since devices come and go.
absl::Status InitGraphBlas() {
  static const GrB_Info result = StartGraphBlas();
  return GrbStatus(result, "GrB_init");
}

class GrbMatrix {
 public:
  GrbMatrix() = default;
  GrbMatrix(const GrbMatrix&) = delete;
  ~GrbMatrix() { GrB_Matrix_free(&matrix_); }
  GrB_Matrix* address() { return &matrix_; }
  GrB_Matrix get() const { return matrix_; }

 private:
  GrB_Matrix matrix_ = nullptr;
};

struct Free {
  void operator()(void* p) const { std::free(p); }
};
template <typename T>
using Array = std::unique_ptr<T[], Free>;

template <typename T>
Array<T> MakeArray(int64_t count) {
  return Array<T>(static_cast<T*>(std::malloc(std::max<int64_t>(count, 1) * sizeof(T))));
}

// Copies rows [first, last) of a matrix into GraphBLAS's form, which has 64-bit indices. `fill` writes the values of
// entries [from, to); with iso it writes one value, which all entries have.
template <typename T, typename Fill>
absl::Status Import(Stop& stop, const ConstPatternView& m, int32_t first, int32_t last, GrB_Type type, bool iso,
                    const Fill& fill, GrbMatrix* out) {
  const int64_t begin = m.row_offsets[first], count = m.row_offsets[last] - begin, rows = last - first;
  Array<GrB_Index> offsets = MakeArray<GrB_Index>(rows + 1), indices = MakeArray<GrB_Index>(count);
  Array<T> values = MakeArray<T>(iso ? 1 : count);
  if (!offsets || !indices || !values) return absl::ResourceExhaustedError("no memory for a matrix of the product");
  for (int64_t r = 0; r <= rows; ++r) offsets[r] = m.row_offsets[first + r] - begin;
  if (iso) fill(begin, begin + 1, values.get());
  ParallelFor((count + kEntriesPerCopy - 1) / kEntriesPerCopy, [&](int64_t i) {
    if (stop.Asked()) return;
    const int64_t from = i * kEntriesPerCopy, to = std::min(count, from + kEntriesPerCopy);
    std::copy(m.column_indices + begin + from, m.column_indices + begin + to, indices.get() + from);
    if (!iso) fill(begin + from, begin + to, values.get() + from);
  });
  INTRAWARP_RETURN_IF_ERROR(stop.status());
  GrB_Index* p = offsets.get();
  GrB_Index* j = indices.get();
  void* x = values.get();
  // GraphBLAS has no matrix with a dimension of 0; the callers don't ask for one.
  INTRAWARP_GRB_RETURN_IF_ERROR(
      GxB_Matrix_import_CSR(out->address(), type, rows, m.columns, &p, &j, &x, (rows + 1) * sizeof(GrB_Index),
                            std::max<int64_t>(count, 1) * sizeof(GrB_Index),
                            std::max<int64_t>(iso ? 1 : count, 1) * sizeof(T), iso, false, nullptr));
  (void)offsets.release(), (void)indices.release(), (void)values.release();
  // Not hypersparse: that form builds an index inside of the operand when it is first used.
  return GrbStatus(GxB_Matrix_Option_set(out->get(), GxB_SPARSITY_CONTROL, GxB_SPARSE), "GxB_Matrix_Option_set");
}

// A block of rows of a product, sorted.
template <typename T>
struct Block {
  Array<GrB_Index> offsets, indices;
  Array<T> values;
  bool iso = false;
  int64_t Begin(int64_t row) const { return offsets[row]; }
  T value(int64_t i) const { return values[iso ? 0 : i]; }
};

template <typename T>
absl::Status Export(GrbMatrix& m, Block<T>* block) {
  GrB_Type type = nullptr;
  GrB_Index rows = 0, columns = 0, offsets_size = 0, indices_size = 0, values_size = 0;
  GrB_Index *offsets = nullptr, *indices = nullptr;
  void* values = nullptr;
  INTRAWARP_GRB_RETURN_IF_ERROR(GxB_Matrix_export_CSR(m.address(), &type, &rows, &columns, &offsets, &indices, &values,
                                                      &offsets_size, &indices_size, &values_size, &block->iso, nullptr,
                                                      nullptr));
  block->offsets.reset(offsets);
  block->indices.reset(indices);
  block->values.reset(static_cast<T*>(values));
  return absl::OkStatus();
}

// A^T. Entry i of A^T is entry positions[i] of A.
struct Transposition {
  std::vector<int64_t> offsets;
  std::vector<int32_t> indices;
  std::vector<int64_t> positions;
};

ConstPatternView Transpose(const ConstPatternView& a, Transposition* t) {
  t->offsets.assign(a.columns + size_t{1}, 0);
  for (int64_t i = 0; i < a.entries; ++i) ++t->offsets[a.column_indices[i] + size_t{1}];
  for (int32_t c = 0; c < a.columns; ++c) t->offsets[c + size_t{1}] += t->offsets[c];
  t->indices.resize(a.entries);
  t->positions.resize(a.entries);
  std::vector<int64_t> next(t->offsets.begin(), t->offsets.end() - 1);
  for (int32_t r = 0; r < a.rows; ++r) {
    for (int64_t i = a.row_offsets[r]; i < a.row_offsets[r + 1]; ++i) {
      const int64_t to = next[a.column_indices[i]]++;
      t->indices[to] = r;
      t->positions[to] = i;
    }
  }
  return {a.columns, a.rows, a.entries, t->offsets.data(), t->indices.data()};
}

ConstPatternView TransposedIfAsked(const ConstPatternView& a, const MultiplyOptions& options, Transposition* t) {
  return options.transpose_a ? Transpose(a, t) : a;
}

int64_t MultiplicationsOfRow(const ConstPatternView& a, const ConstPatternView& b, int32_t row) {
  int64_t multiplications = 0;
  for (int64_t i = a.row_offsets[row]; i < a.row_offsets[row + size_t{1}]; ++i) {
    const size_t k = a.column_indices[i];
    multiplications += b.row_offsets[k + 1] - b.row_offsets[k];
  }
  return multiplications;
}

// Rounds to nearest, ties to even, to a significand with `dropped` bits less; the exponent is float32's.
float RoundSignificand(float x, int dropped) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  const uint32_t rounded = bits + (1u << (dropped - 1)) - 1 + ((bits >> dropped) & 1);
  bits = rounded & ~((1u << dropped) - 1);
  // The largest values have no neighbour above and stay, as a wider format would keep them.
  return (bits & 0x7f800000u) == 0x7f800000u ? x : std::bit_cast<float>(bits);
}

int DroppedBits(MultiplyPrecision precision) {
  switch (precision) {
    case MultiplyPrecision::kFp16:
    case MultiplyPrecision::kTf32:
      return 13;
    case MultiplyPrecision::kBf16:
      return 16;
    case MultiplyPrecision::kFp32:
    case MultiplyPrecision::kFp64:
      return 0;
  }
  return 0;
}

template <typename T>
GrB_Semiring SemiringOf(Semiring semiring) {
  constexpr bool kFloat = sizeof(T) == 4;
  switch (semiring) {
    case Semiring::kPlusTimes:
      return kFloat ? GrB_PLUS_TIMES_SEMIRING_FP32 : GrB_PLUS_TIMES_SEMIRING_FP64;
    case Semiring::kOrAnd:
      return kFloat ? GxB_MAX_LAND_FP32 : GxB_MAX_LAND_FP64;
    case Semiring::kMinPlus:
      return kFloat ? GrB_MIN_PLUS_SEMIRING_FP32 : GrB_MIN_PLUS_SEMIRING_FP64;
  }
  return nullptr;
}

// Computes rows [first, last) of the masked product.
template <typename T, typename Fill>
absl::Status MultiplyBlock(Stop& stop, const ConstPatternView& a, int32_t first, int32_t last, const GrbMatrix& b,
                           int32_t b_columns, const MultiplyOptions& options, GrB_Type type, bool iso,
                           GrB_Semiring semiring, const Fill& fill, Block<T>* block) {
  GrbMatrix rows, mask, product;
  INTRAWARP_RETURN_IF_ERROR(Import<T>(stop, a, first, last, type, iso, fill, &rows));
  GrB_Descriptor descriptor = nullptr;
  if (options.mask) {
    INTRAWARP_RETURN_IF_ERROR(Import<bool>(
        stop, *options.mask, first, last, GrB_BOOL, true, [](int64_t, int64_t, bool* x) { *x = true; }, &mask));
    descriptor = options.complement_mask ? GrB_DESC_SC : GrB_DESC_S;
  }
  INTRAWARP_GRB_RETURN_IF_ERROR(GrB_Matrix_new(product.address(), type, last - first, b_columns));
  INTRAWARP_GRB_RETURN_IF_ERROR(GrB_mxm(product.get(), mask.get(), nullptr, semiring, rows.get(), b.get(), descriptor));
  return Export(product, block);
}

// The first rows of the product's blocks, and the end of the last block.
std::vector<int32_t> CutRows(const ConstPatternView& a, const ConstPatternView& b) {
  std::vector<int32_t> cuts = {0};
  int64_t work = 0;
  for (int32_t r = 0; r < a.rows; ++r) {
    const int64_t of_row = MultiplicationsOfRow(a, b, r) + a.row_offsets[r + size_t{1}] - a.row_offsets[r];
    const bool is_full = r - cuts.back() == kRowsPerBlock || work + of_row > kWorkPerBlock;
    if (is_full && r > cuts.back()) {
      cuts.push_back(r);
      work = 0;
    }
    work += of_row;
  }
  if (a.rows > 0) cuts.push_back(a.rows);
  return cuts;
}

// Calls multiply(block, first, last) and then use(block, i, first, last) for all blocks of rows. Returns the error of
// the first block that has one.
template <typename T, typename Multiply, typename Use>
absl::Status ForBlocks(Stop& stop, const std::vector<int32_t>& cuts, const Multiply& multiply, const Use& use) {
  const int64_t blocks = static_cast<int64_t>(cuts.size()) - 1;
  std::vector<absl::Status> statuses(blocks);
  ParallelFor(blocks, [&](int64_t i) {
    if (stop.Asked()) return;
    Block<T> block;
    statuses[i] = multiply(&block, cuts[i], cuts[i + 1]);
    if (statuses[i].ok()) statuses[i] = use(block, i, cuts[i], cuts[i + 1]);
  });
  INTRAWARP_RETURN_IF_ERROR(stop.status());
  for (const absl::Status& s : statuses) INTRAWARP_RETURN_IF_ERROR(s);
  return absl::OkStatus();
}

// Walks row `row` of D and row `row - first` of a block of the product by columns:
// visit(column, position in the block or -1, position in D or -1).
template <typename T, typename Visit>
void MergeRow(const Block<T>& block, int32_t first, int32_t row, const std::optional<ConstCsrView>& d,
              const Visit& visit) {
  int64_t p = block.Begin(row - first), q = d ? d->row_offsets[row] : 0;
  const int64_t p_end = block.Begin(row - first + 1), q_end = d ? d->row_offsets[row + 1] : 0;
  while (p < p_end || q < q_end) {
    const int64_t from_product = p < p_end ? static_cast<int64_t>(block.indices[p]) : INT64_MAX;
    const int64_t from_addend = q < q_end ? d->column_indices[q] : INT64_MAX;
    const int64_t column = std::min(from_product, from_addend);
    visit(static_cast<int32_t>(column), from_product == column ? p++ : -1, from_addend == column ? q++ : -1);
  }
}

// A block without entries, for an inner dimension of 0 or no columns, which GraphBLAS cannot have.
template <typename T>
absl::Status EmptyBlock(int32_t first, int32_t last, Block<T>* block) {
  block->offsets = MakeArray<GrB_Index>(last - first + 1);
  if (!block->offsets) return absl::ResourceExhaustedError("no memory for a block of the product");
  std::fill_n(block->offsets.get(), last - first + 1, 0);
  return absl::OkStatus();
}

template <typename T>
absl::Status Execute(const ExecContext& ctx, const MultiplyOptions& options, const ConstPatternView& c,
                     const ConstCsrView& a_in, const ConstCsrView& b, T* values) {
  const int dropped = DroppedBits(options.precision);
  const auto rounded = [dropped](T x) {
    if constexpr (sizeof(T) == 4) {
      if (dropped > 0) return RoundSignificand(x, dropped);
    }
    return x;
  };
  Transposition t;
  const ConstPatternView a = TransposedIfAsked(a_in, options, &t);
  const T* a_values = static_cast<const T*>(a_in.values);
  const T* b_values = static_cast<const T*>(b.values);
  const auto fill_a = [&](int64_t from, int64_t to, T* out) {
    for (int64_t i = from; i < to; ++i) *out++ = rounded(a_values[options.transpose_a ? t.positions[i] : i]);
  };
  const auto fill_b = [&](int64_t from, int64_t to, T* out) {
    std::transform(b_values + from, b_values + to, out, rounded);
  };
  const GrB_Type type = sizeof(T) == 4 ? GrB_FP32 : GrB_FP64;
  Stop stop(ctx);
  const bool empty = b.rows == 0 || b.columns == 0;
  GrbMatrix grb_b;
  if (!empty) INTRAWARP_RETURN_IF_ERROR(Import<T>(stop, b, 0, b.rows, type, false, fill_b, &grb_b));
  const T* d_values = options.addend ? static_cast<const T*>(options.addend->values) : nullptr;
  const T alpha = static_cast<T>(options.alpha), beta = static_cast<T>(options.beta);
  return ForBlocks<T>(
      stop, CutRows(a, b),
      [&](Block<T>* block, int32_t first, int32_t last) {
        if (empty) return EmptyBlock(first, last, block);
        return MultiplyBlock<T>(stop, a, first, last, grb_b, b.columns, options, type, false,
                                SemiringOf<T>(options.semiring), fill_a, block);
      },
      [&](const Block<T>& block, int64_t, int32_t first, int32_t last) -> absl::Status {
        bool as_planned = true;
        for (int32_t r = first; r < last; ++r) {
          int64_t i = c.row_offsets[r];
          MergeRow(block, first, r, options.addend, [&](int32_t column, int64_t p, int64_t q) {
            as_planned = as_planned && i < c.row_offsets[r + 1] && c.column_indices[i] == column;
            if (!as_planned) return;
            const T product = p < 0 ? T{} : options.alpha == 1 ? block.value(p) : alpha * block.value(p);
            values[i++] = q < 0 ? product : p < 0 ? beta * d_values[q] : product + beta * d_values[q];
          });
          as_planned = as_planned && i == c.row_offsets[r + 1];
        }
        return as_planned ? absl::OkStatus() : absl::InvalidArgumentError("plan: made for other patterns");
      });
}

// Executions repeat the work of GraphBLAS, so a plan holds nothing but its options.
class Plan final : public DevicePlan {
 public:
  explicit Plan(const MultiplyOptions& options) : options_(options) {}
  int64_t bytes() const override { return 0; }
  absl::Status Execute(const ExecContext& ctx, const ConstPatternView& c, const ConstCsrView& a, const ConstCsrView& b,
                       void* values) const override {
    INTRAWARP_RETURN_IF_ERROR(InitGraphBlas());
    if (ValueTypeOf(options_.precision) == ValueType::kFloat64) {
      return cpu::Execute(ctx, options_, c, a, b, static_cast<double*>(values));
    }
    return cpu::Execute(ctx, options_, c, a, b, static_cast<float*>(values));
  }

 private:
  MultiplyOptions options_;
};

}  // namespace

absl::StatusOr<MultiplyEstimate> EstimateMultiply(const ExecContext&, const ConstPatternView& a_in,
                                                  const ConstPatternView& b, const MultiplyOptions& options) {
  Transposition t;
  const ConstPatternView a = TransposedIfAsked(a_in, options, &t);
  MultiplyEstimate e;
  for (int32_t r = 0; r < a.rows; ++r) {
    const int64_t multiplications = MultiplicationsOfRow(a, b, r);
    int64_t entries = std::min<int64_t>(multiplications, b.columns);
    if (options.mask && !options.complement_mask) {
      entries = std::min(entries, options.mask->row_offsets[r + 1] - options.mask->row_offsets[r]);
    }
    if (options.addend) {
      const int64_t added = options.addend->row_offsets[r + 1] - options.addend->row_offsets[r];
      entries = std::min<int64_t>(entries + added, b.columns);
    }
    // Both addends are less than 2^62.
    e.multiplications = std::min(e.multiplications + multiplications, MultiplyEstimate::kMostCounted);
    e.max_entries += entries;
  }
  e.max_entries = std::min(e.max_entries, MultiplyEstimate::kMostCounted);
  e.plan_bytes = (int64_t{a.rows} + 1) * sizeof(int64_t) + e.max_entries * sizeof(int32_t);
  // B in GraphBLAS's form, and the columns of the blocks before they are copied into C.
  e.workspace_bytes = (int64_t{b.rows} + 1) * sizeof(GrB_Index) +
                      b.entries * (sizeof(GrB_Index) + BytesPerValue(ValueTypeOf(options.precision))) +
                      e.max_entries * sizeof(int32_t);
  e.value_bytes = e.max_entries * BytesPerValue(ValueTypeOf(options.precision));
  return e;
}

absl::StatusOr<PlannedProduct> PlanMultiply(const ExecContext& ctx, const ConstPatternView& a_in,
                                            const ConstPatternView& b, const MultiplyOptions& options, Executions) {
  INTRAWARP_RETURN_IF_ERROR(InitGraphBlas());
  Transposition t;
  const ConstPatternView a = TransposedIfAsked(a_in, options, &t);
  const auto one = [](int64_t, int64_t, bool* x) { *x = true; };
  const bool empty = b.rows == 0 || b.columns == 0;
  GrbMatrix grb_b;
  Stop stop(ctx);
  if (!empty) INTRAWARP_RETURN_IF_ERROR(Import<bool>(stop, b, 0, b.rows, GrB_BOOL, true, one, &grb_b));

  CsrPattern c = {a.rows, b.columns, 0, {}, {}};
  INTRAWARP_ASSIGN_OR_RETURN(c.row_offsets,
                             ctx.device().Allocate((c.rows + size_t{1}) * sizeof(int64_t), ctx.stream()));
  int64_t* offsets = c.row_offsets.as<int64_t>();
  const std::vector<int32_t> cuts = CutRows(a, b);
  std::vector<std::vector<int32_t>> columns(cuts.size() - 1);
  INTRAWARP_RETURN_IF_ERROR(ForBlocks<bool>(
      stop, cuts,
      [&](Block<bool>* block, int32_t first, int32_t last) {
        if (empty) return EmptyBlock(first, last, block);
        return MultiplyBlock<bool>(stop, a, first, last, grb_b, b.columns, options, GrB_BOOL, true, GxB_ANY_PAIR_BOOL,
                                   one, block);
      },
      [&](const Block<bool>& block, int64_t i, int32_t first, int32_t last) {
        std::vector<int32_t>& of_block = columns[i];
        of_block.reserve(block.Begin(last - first));
        for (int32_t r = first; r < last; ++r) {
          const size_t before = of_block.size();
          MergeRow(block, first, r, options.addend,
                   [&](int32_t column, int64_t, int64_t) { of_block.push_back(column); });
          offsets[r + 1] = of_block.size() - before;
        }
        return absl::OkStatus();
      }));
  offsets[0] = 0;
  for (int32_t r = 0; r < c.rows; ++r) offsets[r + 1] += offsets[r];
  c.entries = offsets[c.rows];
  INTRAWARP_ASSIGN_OR_RETURN(c.column_indices, AllocateForEntries(ctx, "columns", c.entries, sizeof(int32_t)));
  int32_t* indices = c.column_indices.as<int32_t>();
  for (const std::vector<int32_t>& of_block : columns) indices = std::copy(of_block.begin(), of_block.end(), indices);
  return PlannedProduct{std::move(c), std::make_unique<Plan>(options)};
}

}  // namespace intrawarp::cpu
