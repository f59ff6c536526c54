// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/stream_watch.h"

#include <algorithm>
#include <vector>

#include "server/monitor/monitor_metrics.h"

namespace intrawarp::server {

void StreamWatch::Add(const std::shared_ptr<WatchedStream>& stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  streams_.emplace(stream.get(), stream);
}

void StreamWatch::Remove(const WatchedStream* stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  streams_.erase(stream);
}

void StreamWatch::Check(Time now, const MonitorMetrics& metrics) {
  // Let go of after the lock: the last reference to a stream may be one of these.
  std::vector<std::shared_ptr<WatchedStream>> streams;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, weak] : streams_) {
      if (std::shared_ptr<WatchedStream> stream = weak.lock()) streams.push_back(std::move(stream));
    }
  }
  std::chrono::nanoseconds longest{0};
  for (const std::shared_ptr<WatchedStream>& stream : streams) {
    const std::optional<ClientWait> wait = stream->client_wait();
    if (!wait) continue;
    const std::chrono::nanoseconds waited = now - wait->since;
    if (timeout_ > std::chrono::nanoseconds(0) && waited >= timeout_) {
      if (stream->EndStalled(wait->since, waited)) metrics.CountStall(wait->stall);
    } else {
      longest = std::max(longest, waited);
    }
  }
  std::lock_guard<std::mutex> lock(mutex_);
  longest_wait_ = longest;
}

std::chrono::nanoseconds StreamWatch::longest_wait() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return longest_wait_;
}

}  // namespace intrawarp::server
