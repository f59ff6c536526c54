// SPDX-License-Identifier: Apache-2.0
// Sizes beyond which kernels of products would count with too few bits. A larger size is refused with its numbers
// before memory is taken for it. Every other count of these kernels fits its type for all sizes of csr.h: a row has
// less than 2^31 entries, a pattern has less than 2^62, and the multiplications of a row are less than 2^62. Internal
// to engine/sparse/cuda. The functions are pure.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_LIMITS_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_LIMITS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/sparse/csr.h"
#include "engine/sparse/cuda/row_classes.h"
#include "engine/sparse/multiply.h"

namespace intrawarp::cuda::spgemm {

// Blocks of a grid, at most (gridDim.x), and so entries of a pattern that has a thread an entry in blocks of kThreads.
inline constexpr int64_t kMostBlocks = INT32_MAX;
inline constexpr int64_t kMostEntries = kMostBlocks * kThreads;
// Tasks of a list that kernels number with `unsigned`: a number and the step to the next one do not wrap.
inline constexpr int64_t kMostTasks = INT32_MAX;

// OUT_OF_RANGE, beginning with `operand`, for a pattern with more than kMostEntries entries.
inline absl::Status CheckEntries(absl::string_view operand, int64_t entries) {
  if (entries <= kMostEntries) return absl::OkStatus();
  return FieldError(absl::StatusCode::kOutOfRange, operand,
                    absl::StrCat("has ", entries, " entries; a product on CUDA takes ", kMostEntries, " at most"));
}

// CheckEntries for all operands of a product.
inline absl::Status CheckOperands(const ConstPatternView& a, const ConstPatternView& b,
                                  const MultiplyOptions& options) {
  INTRAWARP_RETURN_IF_ERROR(CheckEntries("a", a.entries));
  INTRAWARP_RETURN_IF_ERROR(CheckEntries("b", b.entries));
  if (options.mask) INTRAWARP_RETURN_IF_ERROR(CheckEntries("mask", options.mask->entries));
  return options.addend ? CheckEntries("addend", options.addend->entries) : absl::OkStatus();
}

// RESOURCE_EXHAUSTED for a product with more than kMostEntries entries.
inline absl::Status CheckProduct(int64_t entries) {
  if (entries <= kMostEntries) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the product has ", entries, " entries; on CUDA it has ", kMostEntries, " at most"));
}

// RESOURCE_EXHAUSTED for a list of more than kMostTasks `what`.
inline absl::Status CheckTasks(absl::string_view what, int64_t tasks) {
  if (tasks <= kMostTasks) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the product may have ", tasks, " ", what, "; a list on CUDA has room for ", kMostTasks));
}

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_LIMITS_H_
