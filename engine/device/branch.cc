// SPDX-License-Identifier: Apache-2.0
#include "engine/device/branch.h"

#include <utility>

#include "engine/base/status_macros.h"
#if INTRAWARP_WITH_CUDA
#include "engine/device/cuda_device.h"
#endif

namespace intrawarp {

#if INTRAWARP_WITH_CUDA
namespace {

absl::StatusOr<std::shared_ptr<void>> MakeEvent() {
  cudaEvent_t event = nullptr;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return std::shared_ptr<void>(event, [](void* p) { cudaEventDestroy(static_cast<cudaEvent_t>(p)); });
}

// `second` goes on after what is on `first` now.
absl::Status Follow(const std::shared_ptr<void>& by, cudaStream_t first, cudaStream_t second) {
  const auto event = static_cast<cudaEvent_t>(by.get());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventRecord(event, first));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(second, event, 0));
  return absl::OkStatus();
}

absl::StatusOr<bool> IsRecorded(const ExecContext& ctx) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaStreamIsCapturing(CudaStream(ctx), &status));
  return status == cudaStreamCaptureStatusActive;
}

}  // namespace
#endif

absl::StatusOr<Branch> Branch::Create([[maybe_unused]] const ExecContext& ctx) {
  Branch branch;
#if INTRAWARP_WITH_CUDA
  if (ctx.is_cuda()) {
    INTRAWARP_ASSIGN_OR_RETURN(Stream stream, ctx.device().CreateStreamLike(ctx.stream()));
    branch.stream_.emplace(std::move(stream));
    INTRAWARP_ASSIGN_OR_RETURN(branch.forked_, MakeEvent());
    INTRAWARP_ASSIGN_OR_RETURN(branch.joined_, MakeEvent());
  }
#endif
  return branch;
}

absl::StatusOr<ExecContext> Branch::Fork(const ExecContext& ctx) const {
#if INTRAWARP_WITH_CUDA
  if (stream_.has_value()) {
    INTRAWARP_ASSIGN_OR_RETURN(const bool is_recorded, IsRecorded(ctx));
    const ExecContext beside(ctx.device(), stream_->view(), ctx.arena());
    if (is_recorded) {
      INTRAWARP_RETURN_IF_ERROR(Follow(forked_, CudaStream(ctx), CudaStream(beside)));
      return beside;
    }
  }
#endif
  return ctx;
}

absl::Status Branch::Join([[maybe_unused]] const ExecContext& ctx) const {
#if INTRAWARP_WITH_CUDA
  if (stream_.has_value()) {
    INTRAWARP_ASSIGN_OR_RETURN(const bool is_recorded, IsRecorded(ctx));
    const ExecContext beside(ctx.device(), stream_->view(), ctx.arena());
    if (is_recorded) return Follow(joined_, CudaStream(beside), CudaStream(ctx));
  }
#endif
  return absl::OkStatus();
}

}  // namespace intrawarp
