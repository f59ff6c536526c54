// SPDX-License-Identifier: Apache-2.0
#include "engine/device/graph_pool.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"

namespace intrawarp {
namespace {

struct Kept {
  const Device* device;
  size_t nodes;
  cudaGraphExec_t executable;
};

// Over all devices, and more than the registrations of a GPU use at once. Beyond, the oldest are destroyed, for which
// the thread waits as the header says.
constexpr size_t kMostKept = 1024;
// Tries to fit a kept one to a graph; one fits where nodes, their order and their kinds are the same.
constexpr int kMostTries = 8;

class Pool {
 public:
  // Takes out one with as many nodes, the `skip`-th latest one; null: there is none.
  cudaGraphExec_t Take(const Device& device, size_t nodes, int skip) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = kept_.rbegin(); it != kept_.rend(); ++it) {
      if (it->device != &device || it->nodes != nodes || skip-- > 0) continue;
      const cudaGraphExec_t executable = it->executable;
      kept_.erase(std::next(it).base());
      return executable;
    }
    return nullptr;
  }
  void Keep(const Kept& kept) {
    std::vector<Kept> excess;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      kept_.push_back(kept);
      if (kept_.size() > kMostKept) {
        excess.push_back(kept_.front());
        kept_.erase(kept_.begin());
      }
    }
    Destroy(excess);
  }
  void Drop(const Device& device) {
    std::vector<Kept> dropped;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto first =
          std::stable_partition(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.device != &device; });
      dropped.assign(first, kept_.end());
      kept_.erase(first, kept_.end());
    }
    Destroy(dropped);
  }

 private:
  static void Destroy(const std::vector<Kept>& dropped) {
    for (const Kept& kept : dropped) (void)cudaGraphExecDestroy(kept.executable);
  }

  std::mutex mutex_;
  std::vector<Kept> kept_;  // the oldest first
};

// Never destroyed: at the end of the process the driver may be gone.
Pool& ThePool() {
  static Pool& pool = *new Pool;
  return pool;
}

// A kept executable with the graph's parameters; null: none fits.
cudaGraphExec_t Fit(const Device& device, cudaGraph_t graph, size_t nodes) {
  for (int skip = 0; skip < kMostTries; ++skip) {
    const cudaGraphExec_t executable = ThePool().Take(device, nodes, skip);
    if (executable == nullptr) return nullptr;
    cudaGraphExecUpdateResultInfo info = {};
    if (cudaGraphExecUpdate(executable, graph, &info) == cudaSuccess) return executable;
    (void)cudaGetLastError();  // not sticky
    ThePool().Keep({&device, nodes, executable});
  }
  return nullptr;
}

// Neither error is sticky; it is forgotten.
bool IsShortOfResources(cudaError_t error) {
  if (error != cudaErrorLaunchOutOfResources && error != cudaErrorMemoryAllocation) return false;
  (void)cudaGetLastError();
  return true;
}

}  // namespace

absl::StatusOr<std::shared_ptr<void>> MakeExecutable(const Device& device, cudaGraph_t graph) {
  size_t nodes = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGraphGetNodes(graph, nullptr, &nodes));
  cudaGraphExec_t executable = Fit(device, graph, nodes);
  if (executable == nullptr) {
    cudaError_t instantiated = cudaGraphInstantiate(&executable, graph, 0);
    if (IsShortOfResources(instantiated)) {
      DropExecutables(device);
      instantiated = cudaGraphInstantiate(&executable, graph, 0);
    }
    if (IsShortOfResources(instantiated)) return std::shared_ptr<void>();
    INTRAWARP_CUDA_RETURN_IF_ERROR(instantiated);
  }
  return std::shared_ptr<void>(executable, [&device, nodes](void* p) {
    ThePool().Keep({&device, nodes, static_cast<cudaGraphExec_t>(p)});
  });
}

void DropExecutables(const Device& device) { ThePool().Drop(device); }

}  // namespace intrawarp
