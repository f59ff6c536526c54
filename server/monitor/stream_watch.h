// SPDX-License-Identifier: Apache-2.0
// StreamWatch: knows the streams under way, and ends those whose client makes no progress: it does not read what it is
// sent, or does not send the rest of an upload or a frame. Such a stream holds pinned memory and a place that others
// need. Keepalive does not find it: the transport of a client that hangs still answers pings.
//
// A stream that waits for its job, and a stream of frames between two frames, owe nothing and are left alone.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_MONITOR_STREAM_WATCH_H_
#define INTRAWARP_SERVER_MONITOR_STREAM_WATCH_H_

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace intrawarp::server {

class MonitorMetrics;

// Values of the label waits_for of streams_stalled: bytes that the client owes, bytes that it does not take.
enum class Stall { kRead, kWrite };

// What a stream waits for, and since when.
struct ClientWait {
  Stall stall = Stall::kRead;
  std::chrono::steady_clock::time_point since;
};

class WatchedStream {
 public:
  virtual ~WatchedStream() = default;
  // Unset: the client owes nothing.
  virtual std::optional<ClientWait> client_wait() const = 0;
  // Ends the stream with ABORTED (reason STREAM_STALLED), if it still waits since then, and tells whether it did.
  virtual bool EndStalled(std::chrono::steady_clock::time_point since, std::chrono::nanoseconds waited) = 0;
};

class StreamWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // A stream that waits longer for its client is ended. 0: never.
  explicit StreamWatch(std::chrono::nanoseconds timeout) : timeout_(timeout) {}

  void Add(const std::shared_ptr<WatchedStream>& stream);
  void Remove(const WatchedStream* stream);

  // Ends what has stalled, counts it, and remembers the longest wait of the rest.
  void Check(Time now, const MonitorMetrics& metrics);
  // The longest wait as of the last check.
  std::chrono::nanoseconds longest_wait() const;

 private:
  const std::chrono::nanoseconds timeout_;
  mutable std::mutex mutex_;
  std::map<const WatchedStream*, std::weak_ptr<WatchedStream>> streams_;
  std::chrono::nanoseconds longest_wait_{0};
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_MONITOR_STREAM_WATCH_H_
