// SPDX-License-Identifier: Apache-2.0
#include "engine/device/host_loop.h"

#include "engine/device/parallel.h"

namespace intrawarp {

void HostLoop(int64_t count, absl::FunctionRef<void(int64_t)> body) { ParallelFor(count, body); }

}  // namespace intrawarp
