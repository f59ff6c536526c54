// SPDX-License-Identifier: Apache-2.0
// Executable CUDA graphs that no recording uses any more, kept for the next recordings of the same shape. To destroy
// one, the driver waits until no stream of the GPU computes, and all other threads wait for the driver: a frame waited
// for the product beside it. To change one's parameters is also quicker than to make one.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_ENGINE_DEVICE_GRAPH_POOL_H_
#define INTRAWARP_ENGINE_DEVICE_GRAPH_POOL_H_

#include <cuda_runtime.h>

#include <memory>

#include "absl/status/statusor.h"
#include "engine/device/device.h"

namespace intrawarp {

// The executable form (a cudaGraphExec_t) of `graph`, of work of `device`. It is kept when the last copy of the pointer
// is gone, which must be before the device is destroyed. Null where the driver has no resources for one more.
absl::StatusOr<std::shared_ptr<void>> MakeExecutable(const Device& device, cudaGraph_t graph);

// Destroys what is kept for the device; before its green contexts are destroyed.
void DropExecutables(const Device& device);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_DEVICE_GRAPH_POOL_H_
