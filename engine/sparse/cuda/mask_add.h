// SPDX-License-Identifier: Apache-2.0
// The epilogue of a product: a complement mask takes entries away, an addend brings entries. Other masks come in before
// (masked.h, mask_selection.h). Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_MASK_ADD_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_MASK_ADD_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/device.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/csr.h"
#include "engine/sparse/multiply.h"

namespace intrawarp::cuda::spgemm {

inline bool NeedsMaskAdd(const MultiplyOptions& options) { return options.complement_mask || options.addend; }

// The arrays of MaskAdd, for kernels: where each entry goes. The index in C of each entry of the product, -1 when it is
// masked out; the index in C of each entry of the addend, as -2 - index where the product has no entry.
struct MaskAddView {
  int64_t* of_product;
  int64_t* of_addend;
};

// The part of a plan that holds the pattern of the product before complement mask and addend, and where its entries go;
// empty without either.
struct MaskAdd {
  CsrPattern product;
  Buffer places;

  static int64_t PlacesBytes(int64_t product_entries, const MultiplyOptions& options);
  // Arena bytes of PlanMaskAdd.
  static absl::StatusOr<int64_t> WorkspaceBytes(int64_t rows);
  MaskAddView view() const;
  int64_t bytes() const { return product.bytes() + static_cast<int64_t>(places.bytes()); }
};

// Takes over the pattern of the product and returns the pattern of C. Waits for the device once.
absl::StatusOr<CsrPattern> PlanMaskAdd(const ExecContext& ctx, CsrPattern product, const MultiplyOptions& options,
                                       MaskAdd* part);

// The values of C from the values of the product. Does not wait.
absl::Status ExecuteMaskAdd(const ExecContext& ctx, const MaskAdd& part, const void* product_values,
                            const MultiplyOptions& options, void* values);

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_MASK_ADD_H_
