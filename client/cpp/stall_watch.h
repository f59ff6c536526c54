// SPDX-License-Identifier: Apache-2.0
// StallWatch: notices that the connection of a call has gone silent. Where nothing of the call has moved for a while,
// the watch puts a small question (grpc.health.v1) to the server over the same connection; any answer proves that the
// connection lives, however slow the call is. Internal to the client library.
//
// Thread safety: Moved and stalled may be called on any thread.
#ifndef INTRAWARP_CLIENT_CPP_STALL_WATCH_H_
#define INTRAWARP_CLIENT_CPP_STALL_WATCH_H_

#include <grpcpp/channel.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace intrawarp::client {

class StallWatch {
 public:
  // Watches a call on `channel`. `on_stall` ends the call; it is called at most once, on the watch's thread, before the
  // watch is destroyed. `timeout`: ClientOptions.stall_timeout; 0: no watch.
  StallWatch(std::shared_ptr<grpc::Channel> channel, std::chrono::milliseconds timeout, std::function<void()> on_stall);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  // A message of the call has come or was taken.
  void Moved() { last_move_ = std::chrono::steady_clock::now(); }
  // The watch has called on_stall.
  bool stalled() const { return stalled_; }

 private:
  using Clock = std::chrono::steady_clock;

  void Loop();
  // False when the watch ends meanwhile.
  bool WaitUntil(Clock::time_point time);
  // Asks; whether the server answers before the timeout.
  bool Answers();

  const std::shared_ptr<grpc::Channel> channel_;
  const std::chrono::milliseconds timeout_;
  const std::function<void()> on_stall_;
  std::atomic<Clock::time_point> last_move_{Clock::now()};
  std::atomic<bool> stalled_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::optional<bool> answered_;  // of the question under way, once it is over
  std::thread thread_;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_STALL_WATCH_H_
