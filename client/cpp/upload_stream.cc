// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/upload_stream.h"

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "client/cpp/call.h"
#include "client/cpp/rpc_status.h"

namespace intrawarp::client {
namespace {

constexpr char kUploadMethod[] = "/intrawarp.v1.BulkService/Upload";

}  // namespace

// Lives until done(). The hold of gRPC's reactor keeps the call from ending while the owner may still start a write.
class UploadStream::State final : public grpc::ClientWriteReactor<grpc::ByteBuffer> {
 public:
  State(std::shared_ptr<grpc::Channel> channel, const CallOptions& options)
      : channel_(std::move(channel)), call_(std::make_unique<Call>(options)), context_(call_->shared_context()) {}

  void Start() {
    const grpc::internal::RpcMethod rpc(kUploadMethod, grpc::internal::RpcMethod::CLIENT_STREAMING);
    grpc::internal::ClientCallbackWriterFactory<grpc::ByteBuffer>::Create(channel_.get(), rpc, context_.get(),
                                                                          &response_, this);
    AddHold();
    StartCall();
  }

  bool Write(grpc::ByteBuffer message) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (abandoned_) return false;
      writing_ = true;
    }
    message_ = std::move(message);
    StartWrite(&message_);
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !writing_ || abandoned_; });
    return !writing_ && writable_;
  }

  // The owner starts nothing after it. Once.
  void EndWriting() {
    bool may_write = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (std::exchange(ended_, true)) return;
      may_write = writable_ && !writing_;
    }
    if (may_write) StartWritesDone();
    RemoveHold();
  }

  absl::StatusOr<v1::UploadResponse> WaitForAnswer() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return done_ || abandoned_; });
    if (done_ && status_.ok()) return response_;
    if (abandoned_) return absl::UnavailableError("the connection has gone silent");
    return FromGrpcStatus(status_);
  }

  void Abandon() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      abandoned_ = true;
      changed_.notify_all();
    }
    context_->TryCancel();
  }

  // The call has ended, and gRPC does not refer to this any more.
  bool done() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }

  // The caller's Cancellation, which may go once the owner has gone, forgets the call.
  void Unregister() { call_.reset(); }

  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    writable_ = writable_ && ok;
    changed_.notify_all();
  }

  void OnDone(const grpc::Status& status) override {
    std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    status_ = status;
    changed_.notify_all();
  }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Call> call_;
  const std::shared_ptr<grpc::ClientContext> context_;
  v1::UploadResponse response_;
  grpc::ByteBuffer message_;  // of the write under way
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool writing_ = false;
  bool writable_ = true;
  bool ended_ = false;
  bool abandoned_ = false;
  bool done_ = false;
  grpc::Status status_;
};

void UploadStream::KeepUntilDone(std::unique_ptr<State> state) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::unique_ptr<State>>;
  std::vector<std::unique_ptr<State>> ended;  // destroyed after the lock
  std::lock_guard<std::mutex> lock(mutex);
  kept.push_back(std::move(state));
  const auto first_ended = std::partition(kept.begin(), kept.end(), [](const auto& one) { return !one->done(); });
  std::move(first_ended, kept.end(), std::back_inserter(ended));
  kept.erase(first_ended, kept.end());
}

UploadStream::UploadStream(const std::shared_ptr<grpc::Channel>& channel, const CallOptions& options)
    : state_(std::make_unique<State>(channel, options)) {
  state_->Start();
}

UploadStream::~UploadStream() {
  state_->Abandon();
  state_->EndWriting();
  state_->Unregister();
  if (!state_->done()) KeepUntilDone(std::move(state_));
}

bool UploadStream::Write(grpc::ByteBuffer message) { return state_->Write(std::move(message)); }

absl::StatusOr<v1::UploadResponse> UploadStream::Finish() {
  state_->EndWriting();
  return state_->WaitForAnswer();
}

void UploadStream::Abandon() { state_->Abandon(); }

}  // namespace intrawarp::client
