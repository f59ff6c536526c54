// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/stall_watch.h"

#include <google/protobuf/wrappers.pb.h>

#include <utility>

#include "client/cpp/health_stub.h"

namespace intrawarp::client {

StallWatch::StallWatch(std::shared_ptr<grpc::Channel> channel, std::chrono::milliseconds timeout,
                       std::function<void()> on_stall)
    : channel_(std::move(channel)), timeout_(timeout), on_stall_(std::move(on_stall)) {
  if (timeout_.count() > 0) thread_ = std::thread([this] { Loop(); });
}

StallWatch::~StallWatch() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StallWatch::Loop() {
  Clock::time_point silent_since = last_move_;
  while (WaitUntil(silent_since + timeout_)) {
    const Clock::time_point seen = last_move_;
    if (Clock::now() < seen + timeout_) {
      silent_since = seen;
      continue;
    }
    const bool lives = Answers();
    if (!lives && last_move_.load() == seen) {
      stalled_ = true;
      on_stall_();
      return;
    }
    // A transport takes messages for a while after the last one has left it, so a move alone proves nothing.
    silent_since = lives ? Clock::now() : last_move_.load();
  }
}

bool StallWatch::WaitUntil(Clock::time_point time) {
  std::unique_lock<std::mutex> lock(mutex_);
  return !changed_.wait_until(lock, time, [this] { return ending_; });
}

bool StallWatch::Answers() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout_);
  const google::protobuf::StringValue question;
  google::protobuf::Int32Value response;
  HealthStub stub(channel_);
  stub.UnaryCall(&context, kHealthCheckMethod, grpc::StubOptions(), &question, &response,
                 [this](const grpc::Status& status) {
                   std::lock_guard<std::mutex> lock(mutex_);
                   answered_ = status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED;
                   changed_.notify_all();
                 });
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return ending_ || answered_.has_value(); });
  if (!answered_.has_value()) context.TryCancel();
  changed_.wait(lock, [this] { return answered_.has_value(); });
  const bool answered = *answered_;
  answered_.reset();
  return answered;
}

}  // namespace intrawarp::client
