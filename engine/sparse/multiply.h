// SPDX-License-Identifier: Apache-2.0
// C = alpha op(A) B + beta D for sparse matrices, over a semiring and under a mask. Plan once, execute many times.
//
// The pattern of C is structural: c_ij is an entry when there is a k with entries a_ik and b_kj (or an entry d_ij),
// also when the values cancel or are 0, as in GraphBLAS. It depends on the patterns of the operands alone, so that a
// plan serves every set of values. Columns come out sorted.
//
// Values. fp64 takes and gives float64; the others take and give float32. fp32 multiplies and sums in float32. fp16 and
// tf32 round the values of A and B to 11 bits of significand, bf16 to 8 (to nearest, ties to even), with the exponents
// of float32: values out of a format's range are scaled by powers of two or take a wider path, they are never clipped.
// Products and sums are then in float32. NaN and infinity propagate as in a scalar product; an absent entry is no 0
// times anything. With k terms and u the unit roundoff of the format, u_acc that of the sums,
//   |c - exact| <= (2u + u^2 + k u_acc / (1 - k u_acc)) (|A| |B|)_ij  (Higham 2002, 3.1; u = 0 in fp32 and fp64),
// underflow apart.
// Results are bit-identical from run to run on one device.
//
// On the CPU SuiteSparse:GraphBLAS multiplies, and a checkpoint is passed between blocks of rows (CANCELLED when that
// says so). On CUDA a product is one sequence of kernels, which nothing interrupts, and a masked one is made whole first.
//
// Memory. The size of C is known only after its pattern, so that plans and results are allocated on the device (from
// the stream-ordered pool), not in the arena; the arena gives the workspace of MultiplyEstimate.
#ifndef INTRAWARP_ENGINE_SPARSE_MULTIPLY_H_
#define INTRAWARP_ENGINE_SPARSE_MULTIPLY_H_

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/csr.h"
#include "engine/sparse/product_list.h"

namespace intrawarp {

enum class MultiplyPrecision { kFp16, kBf16, kTf32, kFp32, kFp64 };
constexpr ValueType ValueTypeOf(MultiplyPrecision precision) {
  return precision == MultiplyPrecision::kFp64 ? ValueType::kFloat64 : ValueType::kFloat32;
}

enum class Semiring {
  kPlusTimes,
  kOrAnd,    // a value counts as true unless it is 0; results are 1 and 0
  kMinPlus,  // shortest paths; absent means infinity
};

// How rows are made on CUDA; other devices take no notice.
enum class MultiplyPath {
  kAuto,  // eight rows by tiles and tensor cores where their products are many a product of tiles, the rest by scalars
  kScalar,  // all rows by scalar products
  kTiles,   // all rows whose tiles fit by tiles: for tests and comparisons, as it can take much memory
  kListed,  // all values from lists of their products, up to 2^29 of them: see many_executions
};

struct MultiplyOptions {
  MultiplyPrecision precision = MultiplyPrecision::kFp32;
  Semiring semiring = Semiring::kPlusTimes;
  MultiplyPath path = MultiplyPath::kAuto;
  // A plan that is executed often may take longer to make, and more memory: on CUDA it lists the products of each entry
  // (8 bytes each, three times that while it is made) where that makes values faster, which is where an entry has few.
  bool many_executions = false;
  bool transpose_a = false;  // op(A) is A^T
  // Entries of op(A) B that are not entries of the mask are left out; with complement_mask, those that are. Values of
  // the mask don't matter. The mask does not touch D.
  std::optional<ConstPatternView> mask;
  bool complement_mask = false;
  // Not 1, or present, with plus-times alone.
  double alpha = 1;
  double beta = 1;
  std::optional<ConstCsrView> addend;  // D; its memory must live as long as the plan
};

// What a product takes, before it starts. Counts above kMostCounted, which no device holds, are given as that, so that
// no sum of bytes overflows.
struct MultiplyEstimate {
  static constexpr int64_t kMostCounted = int64_t{1} << 55;
  int64_t products = 0;         // multiplications: the sum over entries a_ik of the entries of row k of B
  int64_t max_entries = 0;      // no more entries than this in C: the sum over rows of min(products, columns of B)
  // From the arena, for the plan and for each execution. On the CPU what GraphBLAS takes beside the arena, but for the
  // blocks of rows under way, some ten MB a core.
  int64_t workspace_bytes = 0;
  int64_t plan_bytes = 0;       // at most, on the device, row offsets and column indices of C included
  int64_t value_bytes = 0;      // at most, the values of C
};

// A product whose pattern is known. Belongs to one device; not thread-safe while it is made, read-only afterwards.
class MultiplyPlan {
 public:
  const MultiplyOptions& options() const { return options_; }
  // C without values.
  ConstPatternView pattern() const {
    return {rows_, columns_, entries_, offsets_.as<int64_t>(), indices_.as<int32_t>()};
  }
  ValueType value_type() const { return ValueTypeOf(options_.precision); }
  int64_t bytes() const {
    return offsets_.bytes() + indices_.bytes() + route_.bytes() + segments_.bytes() + tiles_.bytes() +
           product_tiles_.bytes() + transposed_.bytes() + finish_.bytes() + product_offsets_.bytes() +
           product_indices_.bytes() + listed_.bytes();
  }
  // C, of the values that ExecuteMultiply filled; uses the plan up.
  CsrMatrix TakeResult(Buffer values) && {
    return CsrMatrix(pattern(), value_type(), std::move(offsets_), std::move(indices_), std::move(values));
  }

 private:
  friend struct MultiplyPlanAccess;
  static constexpr int kLengths = 32;
  MultiplyOptions options_;
  bool once_ = false;  // made to be executed once, by Multiply: a part of the columns may be written then
  // Shapes of the operands, as they must come to every execution.
  int32_t a_rows_ = 0, a_columns_ = 0, b_columns_ = 0;
  int64_t a_entries_ = 0, b_entries_ = 0;
  int32_t rows_ = 0, columns_ = 0;
  int64_t entries_ = 0;
  Buffer offsets_, indices_;
  // CUDA: which warps make which entries, tiles, op(A)'s pattern, and the lengths of lists.
  Buffer route_, segments_, tiles_, product_tiles_, transposed_, finish_;
  // CUDA: the product before a mask and an addend, where there is one.
  Buffer product_offsets_, product_indices_;
  int64_t product_entries_ = 0;
  // CUDA: the products of each entry, where they are listed.
  ProductList listed_;
  std::array<int64_t, kLengths> lengths_ = {};
};

// Patterns alone are looked at. INVALID_ARGUMENT, beginning with the operand at fault ("b: ...", "mask: ...",
// "addend: ...", "alpha: ..."), for shapes and types that don't conform. Waits for the device.
absl::StatusOr<MultiplyEstimate> EstimateMultiply(const ExecContext& ctx, const ConstPatternView& a,
                                                  const ConstPatternView& b, const MultiplyOptions& options);

// The pattern of C. Workspace: MultiplyEstimate::workspace_bytes. RESOURCE_EXHAUSTED when the device has no room for
// the pattern. Waits for the device once (on CUDA twice with a mask or an addend). UNIMPLEMENTED for transpose_a of
// 2^31 entries and more on CUDA.
absl::StatusOr<MultiplyPlan> PlanMultiply(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                                          const MultiplyOptions& options);

// Fills `values`, plan.pattern().entries values of plan.value_type(). `a` and `b` have the patterns that were planned
// (sizes are checked, INVALID_ARGUMENT). Workspace: MultiplyEstimate::workspace_bytes. Stream-ordered; on CUDA it
// allocates nothing and does not wait.
absl::Status ExecuteMultiply(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a,
                             const ConstCsrView& b, void* values);

// Plans and executes.
absl::StatusOr<CsrMatrix> Multiply(const ExecContext& ctx, const ConstCsrView& a, const ConstCsrView& b,
                                   const MultiplyOptions& options);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SPARSE_MULTIPLY_H_
