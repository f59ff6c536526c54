// SPDX-License-Identifier: Apache-2.0
// The multiprocessors that a stream's kernels run on, seen from within a kernel. Only in builds with CUDA.
#ifndef INTRAWARP_TESTS_ENGINE_DEVICE_MULTIPROCESSOR_IDS_H_
#define INTRAWARP_TESTS_ENGINE_DEVICE_MULTIPROCESSOR_IDS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"

namespace intrawarp {

// Above every identifier of a multiprocessor.
inline constexpr int kMostMultiprocessors = 1024;

// Sets seen[i], of kMostMultiprocessors bytes, to 1 for each multiprocessor i that runs a block of a kernel with many
// more blocks than fit on the GPU at once. Stream-ordered; may be recorded.
absl::Status MarkMultiprocessors(const ExecContext& ctx, uint8_t* seen);

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_ENGINE_DEVICE_MULTIPROCESSOR_IDS_H_
