// SPDX-License-Identifier: Apache-2.0
// Floods of partition_bench: kernels that are long for a GPU.
#ifndef INTRAWARP_TESTS_BENCH_PARTITION_BENCH_H_
#define INTRAWARP_TESTS_BENCH_PARTITION_BENCH_H_

#include <cstddef>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"

namespace intrawarp {

// A kernel of arithmetic alone, `blocks` blocks of 256 threads; `out` is one float. Stream-ordered.
absl::Status EnqueueArithmetic(const ExecContext& ctx, int blocks, float* out);
// A kernel that copies `bytes`, a multiple of 16, on `blocks` blocks of 512 threads. Stream-ordered.
absl::Status EnqueueCopy(const ExecContext& ctx, int blocks, const void* from, void* to, size_t bytes);

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_BENCH_PARTITION_BENCH_H_
