// SPDX-License-Identifier: Apache-2.0
// Ways to multiply sparse matrices on a GPU that Zachariadis (2020, chapter 3, tSparse) compares, and ours.
#ifndef INTRAWARP_TESTS_BENCH_BASELINES_SPARSE_VARIANTS_H_
#define INTRAWARP_TESTS_BENCH_BASELINES_SPARSE_VARIANTS_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/csr.h"

namespace intrawarp::baselines {

enum class SparseMethod {
  // Algorithm 2: a sorted list of tasks, pairs of 8x8 tiles; a kernel that counts, one that multiplies, two tiles of C
  // on the diagonal of a 16x16x16 fragment, fp16 in and fp32 out; then zeros and empty tiles are taken out.
  kTensorTiles,
  kTiles,               // the same with algorithm 3, fp32, in place of the tensor cores
  kExpandSortCompress,  // single values in fp32, as CUSP
  // cuSPARSE in fp32 by its algorithm.
  kCusparseDefault,
  kCusparse1,
  kCusparse2,
  kCusparse3,
  kCusparseReuse,  // SpGEMMreuse: Prepare is its symbolic phase, Run the values
  // engine/sparse.
  kOurs,        // Multiply, fp32
  kOursValues,  // fp32: Prepare is PlanMultiply, Run ExecuteMultiply
  kOursFp16,    // Multiply, fp16
};
inline constexpr SparseMethod kSparseMethods[] = {
    SparseMethod::kTensorTiles,     SparseMethod::kTiles,         SparseMethod::kExpandSortCompress,
    SparseMethod::kCusparseDefault, SparseMethod::kCusparse1,     SparseMethod::kCusparse2,
    SparseMethod::kCusparse3,       SparseMethod::kCusparseReuse, SparseMethod::kOurs,
    SparseMethod::kOursValues,      SparseMethod::kOursFp16};
// Short, without spaces.
const char* SparseMethodName(SparseMethod method);

inline bool IsTiles(SparseMethod m) { return m == SparseMethod::kTensorTiles || m == SparseMethod::kTiles; }
inline bool IsCusparse(SparseMethod m) {
  return m >= SparseMethod::kCusparseDefault && m <= SparseMethod::kCusparseReuse;
}
// fp16 operands; all others have fp32 ones.
inline bool RoundsToFp16(SparseMethod m) { return m == SparseMethod::kTensorTiles || m == SparseMethod::kOursFp16; }

// Counts of the tile methods; 0 for other methods. Table 3.1's columns nnz(C tiles), without empty ones, and of its
// intermediate.
struct TileCounts {
  int64_t tiles = 0, tasks = 0;
};

// C = A B, again and again, by Prepare, Run and Finish. Works on CUDA, on one stream; not thread-safe. Memory comes
// from the device's pool. Each call may wait. Errors: RESOURCE_EXHAUSTED when there is too little memory or a list is
// too long for 31 bits; OUT_OF_RANGE "values: ..." from the tile methods for operands that are not finite and from
// kTensorTiles where they don't fit fp16 (the thesis takes none of 65520 and more, or that round to 0); NOT_FOUND
// without cuSPARSE.
class SparseProduct {
 public:
  virtual ~SparseProduct() = default;
  // Work done once for the operands, which the thesis leaves out of the product's time: the tile methods'
  // conversion from CSR, the symbolic phase of kCusparseReuse, the plan of kOursValues. The other cuSPARSE methods give
  // their buffers back: the next Run asks for sizes and allocates, and later ones do not. The sizes of kCusparse2 and
  // kCusparse3 depend on one another, so every Run of these asks and allocates.
  virtual absl::Status Prepare() { return absl::OkStatus(); }
  // The product, after Prepare, as often as one likes.
  virtual absl::Status Run() = 0;
  // The conversion of C to CSR where Run leaves it in another form.
  virtual absl::Status Finish() { return absl::OkStatus(); }
  // A copy of C with fp32 values, after Finish. Columns may be in any order.
  virtual absl::StatusOr<CsrMatrix> Result() = 0;
  // The counts of the last Run.
  virtual TileCounts Tiles() const { return {}; }
};

// For fp32 matrices in device memory; they and `ctx` must outlive the product. `chunk_fraction`, in (0, 1], is
// kCusparse3's.
absl::StatusOr<std::unique_ptr<SparseProduct>> MakeSparseProduct(const ExecContext& ctx, SparseMethod method,
                                                                 const ConstCsrView& a, const ConstCsrView& b,
                                                                 float chunk_fraction = 0.2f);

// The bound that a result is held to.
enum class SparseCheck {
  kExact,  // every entry is float64's, rounded to float32
  // |c - exact| <= gamma_2k(2^-24) (|A| |B|)_ij with k terms, and the least normal number a term.
  kFp32,
  // Operands a' with |a' - a| <= max(2^-11 |a|, 2^-25); sums gamma_k(2^-22): tensor cores align terms and truncate.
  kFp16,
};
struct SparseErrors {
  int64_t pattern = 0;  // entries that are missing, that should not be, or that come twice
  int64_t values = 0;   // entries beyond the bound
  double largest = 0;   // |c - exact| / (|A| |B|)_ij, the largest where that is 2^-100 and more
  double of_bound = 0;  // |c - exact| / bound, the largest of the same; 0 for kExact
  bool sorted = true;   // columns came in increasing order
  bool ok() const { return pattern == 0 && values == 0; }
};

// A B by engine/sparse in fp64 on CUDA, with its structural pattern and the magnitudes that bound the errors of others.
class SparseReference {
 public:
  virtual ~SparseReference() = default;
  // `c` has fp32 values. An absent entry counts as 0 where `zeros_may_lack`. INTERNAL when `c` is not a matrix of the
  // right shape. Entries where |A| |B| is not finite have their pattern checked alone.
  virtual absl::StatusOr<SparseErrors> Compare(const CsrMatrix& c, SparseCheck check, bool zeros_may_lack) = 0;
  virtual int64_t entries() const = 0;
  virtual int64_t products() const = 0;
};
// Operands as for MakeSparseProduct; they are not needed afterwards.
absl::StatusOr<std::unique_ptr<SparseReference>> MakeSparseReference(const ExecContext& ctx, const ConstCsrView& a,
                                                                     const ConstCsrView& b);

// The largest amount of the device's pool in use at a time since the last call.
int64_t TakePoolPeakBytes();
int64_t PoolUsedBytes();

namespace cuda {
absl::StatusOr<std::unique_ptr<SparseProduct>> MakeTileProduct(const ExecContext& ctx, bool tensor,
                                                               const ConstCsrView& a, const ConstCsrView& b);
absl::StatusOr<std::unique_ptr<SparseProduct>> MakeEscProduct(const ExecContext& ctx, const ConstCsrView& a,
                                                              const ConstCsrView& b);
absl::StatusOr<std::unique_ptr<SparseProduct>> MakeCusparseProduct(const ExecContext& ctx, SparseMethod method,
                                                                   const ConstCsrView& a, const ConstCsrView& b,
                                                                   float chunk_fraction);
absl::StatusOr<std::unique_ptr<SparseReference>> MakeSparseReference(const ExecContext& ctx, const ConstCsrView& a,
                                                                     const ConstCsrView& b);
int64_t TakePoolPeakBytes();
int64_t PoolUsedBytes();
}  // namespace cuda

}  // namespace intrawarp::baselines

#endif  // INTRAWARP_TESTS_BENCH_BASELINES_SPARSE_VARIANTS_H_
