// SPDX-License-Identifier: Apache-2.0
// parallel.h's loop for rooms that do not see oneTBB: pieces of a host's memory.
#ifndef INTRAWARP_ENGINE_DEVICE_HOST_LOOP_H_
#define INTRAWARP_ENGINE_DEVICE_HOST_LOOP_H_

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace intrawarp {

// body(i) for i in [0, count), in any order, on all cores; back when all are done. `body` writes only what belongs to
// its i. Thread-safe.
void HostLoop(int64_t count, absl::FunctionRef<void(int64_t)> body);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_DEVICE_HOST_LOOP_H_
