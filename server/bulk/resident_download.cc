// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/resident_download.h"

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "server/bulk/chunk_codec.h"

namespace intrawarp::server {
namespace {

constexpr int64_t kSlabBytes = int64_t{8} << 20;
constexpr size_t kSlabsAhead = 2;

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* ResidentDownload::Start(
    ServerContext& context, const std::function<absl::StatusOr<DownloadSource>()>& resolve) {
  std::shared_ptr<ResidentDownload> download(new ResidentDownload(context));
  download->self_ = download;
  std::lock_guard<std::mutex> lock(download->mutex_);
  const absl::Status status = download->Begin(resolve);
  if (!status.ok()) download->FinishOnce(status);
  return download.get();
}

absl::Status ResidentDownload::Begin(const std::function<absl::StatusOr<DownloadSource>()>& resolve) {
  INTRAWARP_ASSIGN_OR_RETURN(count_, StreamCount::Acquire(context_.streams, context_.limits.max_streams));
  INTRAWARP_ASSIGN_OR_RETURN(source_, resolve());
  total_bytes_ = TotalBytes(source_.bytes);
  INTRAWARP_RETURN_IF_ERROR(FetchNext());
  message_ = std::move(source_.header);
  writing_ = true;
  StartWrite(&message_);
  return absl::OkStatus();
}

absl::Status ResidentDownload::FetchNext() {
  if (fetching_ || fetch_begin_ == total_bytes_ || slabs_.size() >= kSlabsAhead) return absl::OkStatus();
  Slab slab;
  slab.begin = fetch_begin_;
  slab.bytes = std::min(kSlabBytes, total_bytes_ - fetch_begin_);
  absl::StatusOr<std::shared_ptr<PinnedBuffer>> memory = context_.pinned.Lease(slab.bytes);
  if (!memory.ok()) return WithReason(memory.status(), v1::PINNED_MEMORY);
  slab.memory = *std::move(memory);
  fetch_begin_ += slab.bytes;
  Job job;
  job.run = [self = self_, slab = std::move(slab)](const absl::StatusOr<const ExecContext*>& ctx) {
    self->Fetched(ctx, slab);
  };
  const absl::Status submitted = context_.jobs.Submit(std::move(job));
  if (absl::IsResourceExhausted(submitted)) return WithReason(submitted, v1::QUEUE_FULL);
  fetching_ = submitted.ok();
  return submitted;
}

void ResidentDownload::Fetched(const absl::StatusOr<const ExecContext*>& ctx, Slab slab) {
  const auto fetch = [&]() -> absl::Status {
    INTRAWARP_RETURN_IF_ERROR(ctx.status());
    INTRAWARP_RETURN_IF_ERROR(CopyRange(**ctx, source_.bytes, slab.begin, slab.bytes, slab.memory->as<void>()));
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

void ResidentDownload::WriteNext() {
  if (writing_ || finished_) return;
  if (sent_bytes_ == total_bytes_) return FinishOnce(absl::OkStatus());
  if (slabs_.empty()) return;
  const Slab& slab = slabs_.front();
  const int64_t offset = sent_bytes_ - slab.begin;
  const int64_t bytes = std::min(context_.limits.max_chunk_bytes, slab.bytes - offset);
  message_ = EncodeChunk(source_.chunk_field, sent_bytes_, slab.memory->as<char>() + offset, bytes, slab.memory);
  sent_bytes_ += bytes;
  if (offset + bytes == slab.bytes) slabs_.pop_front();
  writing_ = true;
  StartWrite(&message_);
}

void ResidentDownload::OnWriteDone(bool ok) {
  std::lock_guard<std::mutex> lock(mutex_);
  writing_ = false;
  message_.Clear();
  if (finished_) return;
  if (!ok) return FinishOnce(absl::CancelledError("the client is gone"));
  const absl::Status status = FetchNext();
  if (!status.ok()) return FinishOnce(status);
  WriteNext();
}

void ResidentDownload::FinishOnce(const absl::Status& status) {
  if (std::exchange(finished_, true)) return;
  slabs_.clear();
  context_.metrics.CountRejection(ReasonOf(status));
  Finish(ToGrpcStatus(status));
}

void ResidentDownload::OnCancel() {
  std::lock_guard<std::mutex> lock(mutex_);
  FinishOnce(absl::CancelledError("the call was cancelled"));
}

void ResidentDownload::OnDone() {
  count_ = StreamCount();
  self_.reset();
}

}  // namespace intrawarp::server
