// SPDX-License-Identifier: Apache-2.0
// cuSPARSE's product of two resident matrices, timed beside ours. The library is looked for when the program runs, so
// that the program starts without it.
#ifndef INTRAWARP_TESTS_BENCH_SPARSE_BENCH_CUSPARSE_H_
#define INTRAWARP_TESTS_BENCH_SPARSE_BENCH_CUSPARSE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/sparse/csr.h"

namespace intrawarp {

struct CusparseResult {
  double product_seconds = 0;  // median of warm full products (default algorithm), every buffer allocated before
  double reuse_seconds = 0;    // median of the values of a product whose pattern is known; 0 when it cannot
  int64_t entries = 0;
  int64_t product_bytes = 0;  // buffers and C
  int64_t reuse_bytes = 0;
};

// For the current CUDA device; matrices in its memory with fewer than 2^31 entries. NOT_FOUND without the library;
// INTERNAL, naming the call, for what it refuses.
absl::StatusOr<CusparseResult> TimeCusparse(const ConstCsrView& a, const ConstCsrView& b, int repeats);

// Peak of the device's pool, to measure ours with.
void ResetPoolPeak();
int64_t PoolPeakBytes();
int64_t PoolUsedBytes();

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_BENCH_SPARSE_BENCH_CUSPARSE_H_
