// SPDX-License-Identifier: Apache-2.0
#include "engine/device/recording.h"

#include <utility>

#include "engine/base/status_macros.h"
#if INTRAWARP_WITH_CUDA
#include "engine/device/cuda_device.h"
#include "engine/device/graph_pool.h"
#endif

namespace intrawarp {

#if INTRAWARP_WITH_CUDA
namespace {

// Null where the driver has no resources for one more graph.
absl::StatusOr<std::shared_ptr<void>> Capture(const ExecContext& ctx, const Recording::WorkFn& work) {
  // A kernel of a graph runs in the green context of the stream that it was captured on.
  INTRAWARP_ASSIGN_OR_RETURN(const Stream stream, ctx.device().CreateStreamLike(ctx.stream()));
  const ExecContext recorded(ctx.device(), stream.view(), ctx.arena());
  // Relaxed: other threads go on allocating, and kernels of this one may be loaded, which allocates, too.
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaStreamBeginCapture(CudaStream(recorded), cudaStreamCaptureModeRelaxed));
  const absl::Status enqueued = work(recorded);
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(CudaStream(recorded), &graph);
  const std::unique_ptr<CUgraph_st, decltype(&cudaGraphDestroy)> owned(graph, &cudaGraphDestroy);
  INTRAWARP_RETURN_IF_ERROR(enqueued);
  INTRAWARP_CUDA_RETURN_IF_ERROR(ended);
  return MakeExecutable(ctx.device(), graph);
}

}  // namespace
#endif

absl::StatusOr<Recording> Recording::Make([[maybe_unused]] const ExecContext& ctx, WorkFn work) {
  Recording recording;
#if INTRAWARP_WITH_CUDA
  if (ctx.is_cuda()) {
    INTRAWARP_ASSIGN_OR_RETURN(recording.graph_, Capture(ctx, work));
    if (recording.graph_ != nullptr) return recording;
  }
#endif
  recording.work_ = std::move(work);
  return recording;
}

absl::Status Recording::Enqueue(const ExecContext& ctx) const {
#if INTRAWARP_WITH_CUDA
  if (graph_ != nullptr) {
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_.get()), CudaStream(ctx)));
    return absl::OkStatus();
  }
#endif
  return work_(ctx);
}

}  // namespace intrawarp
