// SPDX-License-Identifier: Apache-2.0
// The selection of a mask's entries from the whole product, for masks where the whole product is faster than
// masked.h (mask_route.h). Internal to engine/sparse/cuda.
//
// A thread takes an entry of the mask, finds its row, and searches its column in that row of the whole product. The
// entries that are found make C, and an execution copies their values from the whole product's values. Bytes held: the
// pattern of the whole product, and 8 for each entry of C. Planning takes 8 and 3/8 bytes for each entry of the mask.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_MASK_SELECTION_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_MASK_SELECTION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/device.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/csr.h"

namespace intrawarp::cuda::spgemm {

// The part of a plan that holds the pattern of the whole product and the selection; empty where none is made.
struct MaskSelection {
  CsrPattern whole;
  Buffer places;  // int64: the entry of the whole product that each entry of C is

  static int64_t PlacesBytes(int64_t entries) { return entries * static_cast<int64_t>(sizeof(int64_t)); }
  // Arena bytes of PlanSelection.
  static absl::StatusOr<int64_t> WorkspaceBytes(const ConstPatternView& mask);
  bool empty() const { return whole.row_offsets.empty(); }
  int64_t bytes() const { return whole.bytes() + static_cast<int64_t>(places.bytes()); }
};

// Takes over the pattern of the whole product and returns the pattern of C. RESOURCE_EXHAUSTED. Waits for the device
// once, unless the product or the mask has no entries.
absl::StatusOr<CsrPattern> PlanSelection(const ExecContext& ctx, CsrPattern whole, const ConstPatternView& mask,
                                         MaskSelection* part);

// The values of the `entries` entries of C from the values of the whole product. Does not wait.
absl::Status SelectValues(const ExecContext& ctx, const MaskSelection& part, int64_t entries, ValueType type,
                          const void* whole_values, void* values);

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_MASK_SELECTION_H_
