// SPDX-License-Identifier: Apache-2.0
// A plan for many executions: the operands of every multiplication, entry of C by entry of C, so that no search for the
// output position is needed. A value is the sum of a[first] * b[second] over the pairs of its entry. Internal to
// engine/sparse/cuda.
//
// An execution reads 8 bytes a multiplication and 8 bytes an entry, and gathers the values of A and B, from the L2
// cache where they fit. A block multiplies piece by piece the pairs of neighbouring entries, in the order of their rows
// of B, and sums the products from shared memory. The order of a sum is fixed: by pieces; within a piece by ascending
// k, or by a few threads, whose sums are joined pairwise, where an entry has many pairs.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_REUSE_PLAN_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_REUSE_PLAN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/device.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/csr.h"
#include "engine/sparse/multiply.h"

namespace intrawarp::cuda::spgemm {

// No reuse plan has more multiplications, or operands with more entries: a pair is two indices of 32 bits.
inline constexpr int64_t kMaxReuseMultiplications = int64_t{1} << 29, kMaxReuseEntries = UINT32_MAX;
inline bool ReusePlanFits(int64_t a_entries, int64_t b_entries, int64_t multiplications) {
  return a_entries <= kMaxReuseEntries && b_entries <= kMaxReuseEntries && multiplications <= kMaxReuseMultiplications;
}

// The part of a plan that replaces all others in executions; empty when the plan has none.
struct ReusePlan {
  Buffer pairs;   // 8 bytes a multiplication, by entries of C; reordered within pieces
  Buffer starts;  // uint32: the first pair of each entry of C, and the end of the last
  Buffer bases;   // uint32: the least index in A of each block of entries

  // Upper bound on bytes() and what is allocated beside that while the plan is made.
  static int64_t MostBytes(int64_t multiplications, int64_t a_entries, int64_t entries);
  bool empty() const { return pairs.empty(); }
  int64_t multiplications() const { return static_cast<int64_t>(pairs.bytes() / 8); }
  int64_t bytes() const { return static_cast<int64_t>(pairs.bytes() + starts.bytes() + bases.bytes()); }
};

// The reuse plan of a product with the pattern `c`, whose columns are known and cover every product. Allocates up to
// MostBytes, most of which it frees on return. The plan is empty if neighbouring entries have products too far apart in
// A. RESOURCE_EXHAUSTED; INVALID_ARGUMENT unless ReusePlanFits. Waits.
absl::StatusOr<ReusePlan> MakeReusePlan(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                                        const ConstPatternView& c, int64_t multiplications);

// The values of all `entries` of C, times alpha. Does not wait.
absl::Status ExecuteReusePlan(const ExecContext& ctx, const ReusePlan& plan, int64_t entries, const ConstCsrView& a,
                              const ConstCsrView& b, Semiring semiring, double alpha, void* values);

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_REUSE_PLAN_H_
