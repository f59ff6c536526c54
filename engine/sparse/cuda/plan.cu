// SPDX-License-Identifier: Apache-2.0
#include "engine/base/status_macros.h"
#include "engine/sparse/cuda/plan.h"
#include "engine/sparse/cuda/rounding.h"
#include "engine/sparse/cuda/values.h"

namespace intrawarp::cuda::spgemm {
namespace {

// The operands as the kernels take them: transposed and rounded, in the arena.
struct Operands {
  ConstCsrView a, b;
};

absl::StatusOr<Operands> PrepareOperands(const ExecContext& ctx, const Plan& plan, const ConstCsrView& a,
                                         const ConstCsrView& b) {
  Operands o = {a, b};
  if (plan.options.transpose_a) {
    INTRAWARP_ASSIGN_OR_RETURN(void* const values, ctx.arena().AllocateBytes(a.entries * BytesPerValue(a.type)));
    INTRAWARP_RETURN_IF_ERROR(TransposeValues(ctx, plan.transpose, a, values));
    o.a = {plan.transpose.pattern(), a.type, values};
  }
  const int dropped = DroppedBits(plan.options.precision);
  if (dropped == 0) return o;
  const bool same_values = o.a.values == o.b.values;
  INTRAWARP_ASSIGN_OR_RETURN(o.a, RoundValues(ctx, o.a, dropped));
  if (same_values) {
    o.b.values = o.a.values;
  } else {
    INTRAWARP_ASSIGN_OR_RETURN(o.b, RoundValues(ctx, o.b, dropped));
  }
  return o;
}

// The values of the whole product.
absl::Status ExecuteWhole(const ExecContext& ctx, const Plan& plan, const ConstPatternView& product, const Operands& o,
                          void* values) {
  const MultiplyOptions& options = plan.options;
  if (!plan.reuse.empty()) {
    return ExecuteReusePlan(ctx, plan.reuse, product.entries, o.a, o.b, options.semiring, options.alpha, values);
  }
  if (plan.tiles.product_tiles > 0) {
    INTRAWARP_RETURN_IF_ERROR(ExecuteTiles(ctx, plan.tiles, o.a, o.b, DroppedBits(options.precision) > 0, options.alpha,
                                           product.row_offsets, values));
  }
  const ScalarRows rows = {plan.row_bins, plan.row_pieces, product, plan.DefersColumns()};
  return ExecuteRows(ctx, rows, options, o.a, o.b, values);
}

// The values of the product, before complement mask and addend.
absl::Status ExecuteProduct(const ExecContext& ctx, const Plan& plan, const ConstPatternView& product,
                            const ConstCsrView& a, const ConstCsrView& b, void* values) {
  INTRAWARP_ASSIGN_OR_RETURN(const Operands o, PrepareOperands(ctx, plan, a, b));
  if (!IsMasked(plan.options)) return ExecuteWhole(ctx, plan, product, o, values);
  if (plan.selection.empty()) return ExecuteMasked(ctx, plan.masked, product, plan.options, o.a, o.b, values);
  const ConstPatternView whole = plan.selection.whole.view();
  INTRAWARP_ASSIGN_OR_RETURN(void* const whole_values,
                             ctx.arena().AllocateBytes(whole.entries * BytesPerValue(a.type)));
  INTRAWARP_RETURN_IF_ERROR(ExecuteWhole(ctx, plan, whole, o, whole_values));
  return SelectValues(ctx, plan.selection, product.entries, a.type, whole_values, values);
}

}  // namespace

absl::Status Plan::Execute(const ExecContext& ctx, const ConstPatternView& c, const ConstCsrView& a,
                           const ConstCsrView& b, void* values) const {
  ArenaScope scope(ctx.arena());
  if (!NeedsMaskAdd(options)) {
    return c.entries == 0 ? absl::OkStatus() : ExecuteProduct(ctx, *this, c, a, b, values);
  }
  const ConstPatternView product = mask_add.product.view();
  INTRAWARP_ASSIGN_OR_RETURN(void* const product_values,
                             ctx.arena().AllocateBytes(product.entries * BytesPerValue(a.type)));
  if (product.entries > 0) INTRAWARP_RETURN_IF_ERROR(ExecuteProduct(ctx, *this, product, a, b, product_values));
  return ExecuteMaskAdd(ctx, mask_add, product_values, options, values);
}

}  // namespace intrawarp::cuda::spgemm
