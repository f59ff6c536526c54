// SPDX-License-Identifier: Apache-2.0
#include "server/volume_download.h"

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "intrawarp/v1/volume.pb.h"
#include "server/chunk_codec.h"
#include "server/volume_messages.h"

namespace intrawarp {
namespace {

constexpr int64_t kSlabBytes = int64_t{8} << 20;
constexpr size_t kSlabsAhead = 2;

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* VolumeDownload::Start(ServerContext& context,
                                                                  const grpc::ByteBuffer& request) {
  std::shared_ptr<VolumeDownload> download(new VolumeDownload(context));
  download->self_ = download;
  std::lock_guard<std::mutex> lock(download->mutex_);
  const absl::Status status = download->Begin(request);
  if (!status.ok()) download->FinishOnce(status);
  return download.get();
}

absl::Status VolumeDownload::Begin(const grpc::ByteBuffer& request) {
  INTRAWARP_ASSIGN_OR_RETURN(count_, StreamCount::Acquire(context_.streams, context_.limits.max_streams));
  INTRAWARP_ASSIGN_OR_RETURN(const v1::DownloadVolumeRequest message, ParseMessage<v1::DownloadVolumeRequest>(request));
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, ParseVolumeName(message.name(), "name"));
  INTRAWARP_ASSIGN_OR_RETURN(volume_, context_.volumes.Find(id));
  total_bytes_ = volume_->image.geometry().voxels() * static_cast<int64_t>(sizeof(float));
  INTRAWARP_RETURN_IF_ERROR(FetchNext());
  v1::DownloadVolumeResponse header;
  *header.mutable_header()->mutable_volume() = VolumeToProto(*volume_);
  header.mutable_header()->set_total_bytes(total_bytes_);
  message_ = SerializeMessage(header);
  writing_ = true;
  StartWrite(&message_);
  return absl::OkStatus();
}

absl::Status VolumeDownload::FetchNext() {
  if (fetching_ || fetch_begin_ == total_bytes_ || slabs_.size() >= kSlabsAhead) return absl::OkStatus();
  Slab slab;
  slab.begin = fetch_begin_;
  slab.bytes = std::min(kSlabBytes, total_bytes_ - fetch_begin_);
  absl::StatusOr<std::shared_ptr<PinnedBuffer>> memory = context_.pinned.Lease(slab.bytes);
  if (!memory.ok()) return WithReason(memory.status(), "PINNED_MEMORY");
  slab.memory = *std::move(memory);
  fetch_begin_ += slab.bytes;
  Job job;
  job.run = [self = self_, slab = std::move(slab)](const absl::StatusOr<const ExecContext*>& ctx) {
    self->Fetched(ctx, slab);
  };
  const absl::Status submitted = context_.jobs.Submit(std::move(job));
  if (absl::IsResourceExhausted(submitted)) return WithReason(submitted, "QUEUE_FULL");
  fetching_ = submitted.ok();
  return submitted;
}

void VolumeDownload::Fetched(const absl::StatusOr<const ExecContext*>& ctx, Slab slab) {
  const auto fetch = [&]() -> absl::Status {
    INTRAWARP_RETURN_IF_ERROR(ctx.status());
    const char* from = reinterpret_cast<const char*>(volume_->image.volume().data) + slab.begin;
    INTRAWARP_RETURN_IF_ERROR((*ctx)->device().Copy(slab.memory->as<void>(), from, slab.bytes, (*ctx)->stream()));
    return (*ctx)->device().Synchronize((*ctx)->stream());
  };
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) return;
  }
  absl::Status status = fetch();
  std::lock_guard<std::mutex> lock(mutex_);
  fetching_ = false;
  if (finished_) return;
  if (status.ok()) {
    slabs_.push_back(std::move(slab));
    status = FetchNext();
  }
  if (!status.ok()) return FinishOnce(status);
  WriteNext();
}

void VolumeDownload::WriteNext() {
  if (writing_ || finished_) return;
  if (sent_bytes_ == total_bytes_) return FinishOnce(absl::OkStatus());
  if (slabs_.empty()) return;
  const Slab& slab = slabs_.front();
  const int64_t offset = sent_bytes_ - slab.begin;
  const int64_t bytes = std::min(context_.limits.max_chunk_bytes, slab.bytes - offset);
  message_ = EncodeChunk(v1::DownloadVolumeResponse::kChunkFieldNumber, sent_bytes_, slab.memory->as<char>() + offset,
                         bytes, slab.memory);
  sent_bytes_ += bytes;
  if (offset + bytes == slab.bytes) slabs_.pop_front();
  writing_ = true;
  StartWrite(&message_);
}

void VolumeDownload::OnWriteDone(bool ok) {
  std::lock_guard<std::mutex> lock(mutex_);
  writing_ = false;
  message_.Clear();
  if (finished_) return;
  if (!ok) return FinishOnce(absl::CancelledError("the client is gone"));
  const absl::Status status = FetchNext();
  if (!status.ok()) return FinishOnce(status);
  WriteNext();
}

void VolumeDownload::FinishOnce(const absl::Status& status) {
  if (std::exchange(finished_, true)) return;
  slabs_.clear();
  context_.metrics.CountRejection(Reason(status));
  Finish(ToGrpcStatus(status));
}

void VolumeDownload::OnCancel() {
  std::lock_guard<std::mutex> lock(mutex_);
  FinishOnce(absl::CancelledError("the call was cancelled"));
}

void VolumeDownload::OnDone() {
  count_ = StreamCount();
  self_.reset();
}

}  // namespace intrawarp
