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
// Products and sums are then in float32. NaN and infinity propagate as in a scalar product; an absent entry adds no
// term, rather than 0 times the other factor. With k terms and u the unit roundoff of the format, u_acc that of the
// sums,
//   |c - exact| <= (2u + u^2 + k u_acc / (1 - k u_acc)) (|A| |B|)_ij  (Higham 2002, 3.1; u = 0 in fp32 and fp64),
// underflow apart.
// Results are bit-identical from run to run on one device.
//
// On the CPU SuiteSparse:GraphBLAS multiplies block of rows by block of rows; a checkpoint between the blocks may end
// the call as CANCELLED. On CUDA a product is one sequence of kernels, which nothing interrupts. Under a mask CUDA
// looks only for the entries of the mask, and takes no memory for the whole of op(A) B, or it makes the whole and
// selects (MaskRoute); a complement mask is applied after the whole is computed.
//
// Memory. The size of C is known only after its pattern. Plans and results are therefore allocated on the device, from
// its stream-ordered pool; the arena gives the workspace of MultiplyEstimate.
#ifndef INTRAWARP_ENGINE_SPARSE_MULTIPLY_H_
#define INTRAWARP_ENGINE_SPARSE_MULTIPLY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/csr.h"

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

// Which kernels compute the rows on CUDA; the CPU ignores it. A product by MaskRoute::kMasked has kernels of its own,
// whatever the path.
enum class MultiplyPath {
  // Per group of eight rows: tensor-core tiles where each product of two tiles does at least 32 multiplications
  // (cuda/tiles.h: kTileMultiplications), otherwise scalar kernels. Beside that, reuse plans as many_executions says.
  kAuto,
  kScalar,     // scalar kernels for all rows
  kTiles,      // tiles for all rows whose tiles fit; for tests and comparisons, as it can take much memory
  kReusePlan,  // a reuse plan (see many_executions) for up to 2^29 multiplications of less than 2^32 entries
  // Scalar kernels for all rows, each with one choice made for all of them; for tests and comparisons.
  kShortRows,  // the kernels of short rows make every row that is short (cuda/short_rows.h)
  kLongRows,   // no row goes by the kernels of short rows
  kBitmaps,    // as kLongRows; bitmaps lead to the sums of all rows, also where columns are few and far apart
  kTables,     // as kLongRows; hash tables lead to the sums of each row that fits a table, heavy rows apart
};
// Whether no row goes by tiles.
constexpr bool IsScalar(MultiplyPath path) {
  return path != MultiplyPath::kAuto && path != MultiplyPath::kTiles && path != MultiplyPath::kReusePlan;
}

// How CUDA makes a product under a mask that is not a complement; the CPU ignores it. Sums have another order each way.
// kMasked serves where memory is short, the others beside kAuto tests and comparisons.
enum class MaskRoute {
  kAuto,    // the way that a model of their work says is faster, if its memory is not out of proportion
            // (cuda/mask_route.h)
  kMasked,  // looks for the entries of the mask only; takes no memory for the whole product (cuda/masked.h)
  kWhole,   // makes the whole product, then selects (cuda/mask_selection.h)
};

struct MultiplyOptions {
  MultiplyPrecision precision = MultiplyPrecision::kFp32;
  Semiring semiring = Semiring::kPlusTimes;
  MultiplyPath path = MultiplyPath::kAuto;
  // Lets planning take longer and the plan take more memory, for faster executions. On CUDA the plan then becomes a
  // reuse plan, which stores the operands of every multiplication (8 bytes each, three times that while it is made),
  // if entries of C need few multiplications each; not by MaskRoute::kMasked.
  bool many_executions = false;
  bool transpose_a = false;  // op(A) is A^T
  // The mask leaves out the entries of op(A) B that are not entries of the mask; with complement_mask, the entries that
  // are. The values of the mask don't matter. The mask does not apply to D.
  std::optional<ConstPatternView> mask;
  bool complement_mask = false;
  MaskRoute mask_route = MaskRoute::kAuto;
  // Semirings other than plus-times require alpha = 1 and no addend.
  double alpha = 1;
  double beta = 1;
  std::optional<ConstCsrView> addend;  // D; its memory must live as long as the plan
};

// The resources that a product needs, known before it starts. Counts above kMostCounted, which no device holds, are
// given as kMostCounted, so that neither a sum of bytes overflows nor the sum of the counts of 2^12 blocks of a kernel.
struct MultiplyEstimate {
  static constexpr int64_t kMostCounted = int64_t{1} << 51;
  int64_t multiplications = 0;  // of values: the sum over entries a_ik of the number of entries in row k of B
  // Upper bound on the entries of C: each row has min(multiplications, columns) at most, or the number of entries of
  // the mask's row, unless complement_mask is set.
  int64_t max_entries = 0;
  // Arena bytes for the plan and for each execution. On the CPU, GraphBLAS takes this memory beside the arena, and some
  // ten MB a core for the blocks of rows under way, which are not counted.
  int64_t workspace_bytes = 0;
  int64_t plan_bytes = 0;   // upper bound on MultiplyPlan::bytes(), also while the plan is made
  int64_t value_bytes = 0;  // upper bound on the bytes of the values of C
};

// The part of a plan that belongs to one kind of device: whatever its executions need beside the pattern of C.
// Read-only after it is made.
class DevicePlan {
 public:
  virtual ~DevicePlan() = default;
  // Device memory held.
  virtual int64_t bytes() const = 0;
  // Fills `values` of the pattern `c`; see ExecuteMultiply, which checks the operands first.
  virtual absl::Status Execute(const ExecContext& ctx, const ConstPatternView& c, const ConstCsrView& a,
                               const ConstCsrView& b, void* values) const = 0;
};

// A product whose pattern is known; PlanMultiply makes it. Belongs to one device. Read-only, so executions on several
// threads may share it.
class MultiplyPlan {
 public:
  MultiplyPlan() = default;  // empty, to be assigned to
  MultiplyPlan(const ConstPatternView& a, const ConstPatternView& b, const MultiplyOptions& options, CsrPattern c,
               std::unique_ptr<DevicePlan> device_plan);

  const MultiplyOptions& options() const { return options_; }
  // C without values. Not of an empty plan.
  ConstPatternView pattern() const { return c_->view(); }
  ValueType value_type() const { return ValueTypeOf(options_.precision); }
  // Device memory held: the pattern of C and the device's part.
  int64_t bytes() const { return (c_ ? c_->bytes() : 0) + (device_plan_ ? device_plan_->bytes() : 0); }
  // Whether the operands have the shapes and numbers of entries that were planned.
  bool Conforms(const ConstPatternView& a, const ConstPatternView& b) const;
  // Not of an empty plan.
  const DevicePlan& device_plan() const { return *device_plan_; }
  // C with the values that ExecuteMultiply filled. All results of a plan share its pattern, which outlives the plan.
  CsrMatrix ResultWith(Buffer values) const { return CsrMatrix(c_, value_type(), std::move(values)); }

 private:
  struct Shape {
    int32_t rows = 0, columns = 0;
    int64_t entries = 0;
    friend bool operator==(const Shape&, const Shape&) = default;
  };
  static Shape ShapeOf(const ConstPatternView& m) { return {m.rows, m.columns, m.entries}; }

  MultiplyOptions options_;
  Shape a_, b_;
  std::shared_ptr<const CsrPattern> c_;
  std::unique_ptr<DevicePlan> device_plan_;
};

// Reads the patterns alone. INVALID_ARGUMENT, beginning with the operand at fault ("b: ...", "mask: ...",
// "addend: ...", "alpha: ..."), for shapes and types that don't conform. Waits for the device.
absl::StatusOr<MultiplyEstimate> EstimateMultiply(const ExecContext& ctx, const ConstPatternView& a,
                                                  const ConstPatternView& b, const MultiplyOptions& options);

// The pattern of C. Workspace: MultiplyEstimate::workspace_bytes. RESOURCE_EXHAUSTED when the device has no room for
// the pattern. Waits for the device once (on CUDA two to four times with a mask or an addend). UNIMPLEMENTED for
// transpose_a of 2^31 entries and more on CUDA, OUT_OF_RANGE for operands with more entries than a grid of CUDA takes
// (cuda/limits.h); both with the numbers, before memory is taken.
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
