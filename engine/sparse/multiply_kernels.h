// SPDX-License-Identifier: Apache-2.0
// The two versions of the product. Arguments are checked; see multiply.h.
#ifndef INTRAWARP_ENGINE_SPARSE_MULTIPLY_KERNELS_H_
#define INTRAWARP_ENGINE_SPARSE_MULTIPLY_KERNELS_H_

#include <utility>

#include "engine/sparse/multiply.h"

namespace intrawarp {

// The versions of the product fill a plan through this.
struct MultiplyPlanAccess {
  static constexpr int kLengths = MultiplyPlan::kLengths;
  explicit MultiplyPlanAccess(MultiplyPlan& plan)
      : once(plan.once_),
        rows(plan.rows_),
        columns(plan.columns_),
        entries(plan.entries_),
        offsets(plan.offsets_),
        indices(plan.indices_),
        route(plan.route_),
        segments(plan.segments_),
        tiles(plan.tiles_),
        product_tiles(plan.product_tiles_),
        transposed(plan.transposed_),
        finish(plan.finish_),
        product_offsets(plan.product_offsets_),
        product_indices(plan.product_indices_),
        product_entries(plan.product_entries_),
        listed(plan.listed_),
        lengths(plan.lengths_) {}
  static MultiplyPlan Create(const ConstPatternView& a, const ConstPatternView& b, const MultiplyOptions& options) {
    MultiplyPlan plan;
    plan.options_ = options;
    plan.a_rows_ = a.rows;
    plan.a_columns_ = a.columns;
    plan.b_columns_ = b.columns;
    plan.a_entries_ = a.entries;
    plan.b_entries_ = b.entries;
    plan.rows_ = options.transpose_a ? a.columns : a.rows;
    plan.columns_ = b.columns;
    return plan;
  }
  static const Buffer& Route(const MultiplyPlan& plan) { return plan.route_; }
  static const Buffer& Segments(const MultiplyPlan& plan) { return plan.segments_; }
  static const Buffer& Tiles(const MultiplyPlan& plan) { return plan.tiles_; }
  static const Buffer& Transposed(const MultiplyPlan& plan) { return plan.transposed_; }
  static const Buffer& Finish(const MultiplyPlan& plan) { return plan.finish_; }
  // The product alone, before a mask and an addend.
  static ConstPatternView ProductPattern(const MultiplyPlan& plan) {
    if (plan.product_offsets_.empty()) return plan.pattern();
    return {plan.rows_, plan.columns_, plan.product_entries_, plan.product_offsets_.as<int64_t>(),
            plan.product_indices_.as<int32_t>()};
  }
  // The pattern as it is becomes that of the product.
  void KeepProduct() {
    product_offsets = std::move(offsets);
    product_indices = std::move(indices);
    product_entries = entries;
  }
  static const Buffer& ProductTiles(const MultiplyPlan& plan) { return plan.product_tiles_; }
  static const ProductList& Listed(const MultiplyPlan& plan) { return plan.listed_; }
  static bool Once(const MultiplyPlan& plan) { return plan.once_; }
  static const auto& Lengths(const MultiplyPlan& plan) { return plan.lengths_; }
  static bool Conform(const MultiplyPlan& plan, const ConstPatternView& a, const ConstPatternView& b) {
    const int32_t inner = plan.options_.transpose_a ? plan.a_rows_ : plan.a_columns_;
    return a.rows == plan.a_rows_ && a.columns == plan.a_columns_ && a.entries == plan.a_entries_ && b.rows == inner &&
           b.columns == plan.b_columns_ && b.entries == plan.b_entries_;
  }

  bool& once;
  const int32_t& rows;
  const int32_t& columns;
  int64_t& entries;
  Buffer& offsets;
  Buffer& indices;
  Buffer& route;
  Buffer& segments;
  Buffer& tiles;
  Buffer& product_tiles;
  Buffer& transposed;
  Buffer& finish;
  Buffer& product_offsets;
  Buffer& product_indices;
  int64_t& product_entries;
  ProductList& listed;
  std::array<int64_t, kLengths>& lengths;
};

namespace cpu {
absl::StatusOr<MultiplyEstimate> EstimateMultiply(const ExecContext& ctx, const ConstPatternView& a,
                                                  const ConstPatternView& b, const MultiplyOptions& options);
absl::Status PlanMultiply(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                          MultiplyPlan& plan);
absl::Status ExecuteMultiply(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a,
                             const ConstCsrView& b, void* values);
}  // namespace cpu

namespace cuda {
absl::StatusOr<MultiplyEstimate> EstimateMultiply(const ExecContext& ctx, const ConstPatternView& a,
                                                  const ConstPatternView& b, const MultiplyOptions& options);
absl::Status PlanMultiply(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                          MultiplyPlan& plan);
absl::Status ExecuteMultiply(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a,
                             const ConstCsrView& b, void* values);
}  // namespace cuda

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SPARSE_MULTIPLY_KERNELS_H_
