// SPDX-License-Identifier: Apache-2.0
// What comes after a product on CUDA: a mask takes entries away, an addend brings some. Internal to multiply_cuda.cu.
#ifndef INTRAWARP_ENGINE_SPARSE_MULTIPLY_FINISH_H_
#define INTRAWARP_ENGINE_SPARSE_MULTIPLY_FINISH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/csr.h"
#include "engine/sparse/multiply.h"

namespace intrawarp::cuda {

inline bool NeedsFinish(const MultiplyOptions& options) { return options.mask || options.addend; }

// Where entries go, by the index of the product's and of the addend's: an index in C; -1 for a product's entry that is
// masked out; -2 - index for an addend's entry where the product has none.
struct FinishPlan {
  int64_t* of_product;
  int64_t* of_addend;
};
int64_t FinishBytes(int64_t product_entries, const MultiplyOptions& options);
FinishPlan FinishIn(char* memory, int64_t product_entries);
// Arena bytes of PlanFinish.
absl::StatusOr<int64_t> FinishWorkspaceBytes(int64_t rows);

// The pattern of C from that of the product: `offsets` of rows + 1, then `indices`, which it allocates. Waits for the
// device once.
absl::Status PlanFinish(const ExecContext& ctx, const ConstPatternView& product, const MultiplyOptions& options,
                        const FinishPlan& finish, int64_t* offsets, Buffer* indices, int64_t* entries);

// The values of C from those of the product.
absl::Status ExecuteFinish(const ExecContext& ctx, const FinishPlan& finish, int64_t product_entries,
                           const void* product_values, const MultiplyOptions& options, void* values);

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_SPARSE_MULTIPLY_FINISH_H_
