// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/raw_call.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "client/cpp/call.h"
#include "client/cpp/rpc_status.h"

namespace intrawarp::client {
namespace {

// Received and not yet taken.
constexpr size_t kReadAhead = 4;

}  // namespace

// Lives until done(). The hold of gRPC's reactor keeps the call from ending while an operation may still begin.
class RawCall::State final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  State(std::shared_ptr<grpc::Channel> channel, const CallOptions& options)
      : stub_(std::move(channel)), call_(std::make_unique<Call>(options)), context_(call_->shared_context()) {}

  void Start(const std::string& method) {
    stub_.PrepareBidiStreamingCall(context_.get(), method, grpc::StubOptions(), this);
    AddHold();
    reading_ = true;
    StartRead(&arriving_);
    StartCall();
  }

  bool Write(grpc::ByteBuffer message) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!WaitForWrite(lock)) return false;
    message_ = std::move(message);
    writing_ = true;
    StartWrite(&message_);
    return true;
  }

  bool Flush() {
    std::unique_lock<std::mutex> lock(mutex_);
    return WaitForWrite(lock);
  }

  bool WritesDone() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!WaitForWrite(lock)) return false;
    StartWritesDone();
    return true;
  }

  bool Read(grpc::ByteBuffer* message) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !arrived_.empty() || !readable_ || abandoned_; });
    if (arrived_.empty() || abandoned_) return false;
    *message = std::move(arrived_.front());
    arrived_.pop_front();
    ReadOn();
    return true;
  }

  // Nothing begins after it.
  void Close() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (std::exchange(closed_, true)) return;
    }
    RemoveHold();
  }

  absl::Status WaitUntilDone() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return done_ || abandoned_ || (cancelled_ && writing_); });
    if (done_ && status_.ok()) return absl::OkStatus();
    // Its end, when that has come, is the cancellation of Abandon.
    if (abandoned_) return absl::UnavailableError("the connection has gone silent");
    return done_ ? FromGrpcStatus(status_) : absl::CancelledError("the call was cancelled");
  }

  void Cancel() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      cancelled_ = true;
      changed_.notify_all();
    }
    context_->TryCancel();
  }

  void Abandon() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      abandoned_ = true;
      changed_.notify_all();
    }
    context_->TryCancel();
  }

  bool is_ending() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return !readable_ || cancelled_ || abandoned_ || closed_;
  }

  // The call has ended, and gRPC does not refer to this any more.
  bool done() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }

  // The caller's Cancellation, which may go once the owner has gone, forgets the call.
  void Unregister() { call_.reset(); }

  void OnReadDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    reading_ = false;
    readable_ = ok;
    if (ok) arrived_.push_back(std::move(arriving_));
    arriving_ = grpc::ByteBuffer();
    ReadOn();
    changed_.notify_all();
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    message_.Clear();
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
  // All with the mutex held.

  bool WaitForWrite(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [this] { return !writing_ || abandoned_; });
    return writable_ && !writing_ && !closed_ && !abandoned_;
  }

  void ReadOn() {
    if (reading_ || !readable_ || closed_ || arrived_.size() >= kReadAhead) return;
    reading_ = true;
    StartRead(&arriving_);
  }

  grpc::GenericStub stub_;
  std::unique_ptr<Call> call_;
  const std::shared_ptr<grpc::ClientContext> context_;
  grpc::ByteBuffer message_;   // of the write under way
  grpc::ByteBuffer arriving_;  // of the read under way
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<grpc::ByteBuffer> arrived_;
  bool reading_ = false;
  bool readable_ = true;
  bool writing_ = false;
  bool writable_ = true;
  bool closed_ = false;
  bool cancelled_ = false;
  bool abandoned_ = false;
  bool done_ = false;
  grpc::Status status_;
};

void RawCall::KeepUntilDone(std::unique_ptr<State> state) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::unique_ptr<State>>;
  std::vector<std::unique_ptr<State>> ended;  // destroyed after the lock
  std::lock_guard<std::mutex> lock(mutex);
  kept.push_back(std::move(state));
  const auto first_ended = std::partition(kept.begin(), kept.end(), [](const auto& one) { return !one->done(); });
  std::move(first_ended, kept.end(), std::back_inserter(ended));
  kept.erase(first_ended, kept.end());
}

RawCall::RawCall(std::shared_ptr<grpc::Channel> channel, const std::string& method, const CallOptions& options)
    : state_(std::make_unique<State>(std::move(channel), options)) {
  state_->Start(method);
}

RawCall::~RawCall() {
  state_->Abandon();
  state_->Close();
  state_->Unregister();
  if (!state_->done()) KeepUntilDone(std::move(state_));
}

bool RawCall::Write(grpc::ByteBuffer message) { return state_->Write(std::move(message)); }

bool RawCall::Flush() { return state_->Flush(); }

bool RawCall::WritesDone() { return state_->WritesDone(); }

bool RawCall::Read(grpc::ByteBuffer* message) { return state_->Read(message); }

absl::Status RawCall::Finish() {
  state_->Close();
  return state_->WaitUntilDone();
}

bool RawCall::is_ending() const { return state_->is_ending(); }

void RawCall::Cancel() { state_->Cancel(); }

void RawCall::Abandon() { state_->Abandon(); }

}  // namespace intrawarp::client
