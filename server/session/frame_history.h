// SPDX-License-Identifier: Apache-2.0
// FrameHistory: how the last frames of a session ended, for whoever looks on.
//
// Thread-compatible.
#ifndef INTRAWARP_SERVER_SESSION_FRAME_HISTORY_H_
#define INTRAWARP_SERVER_SESSION_FRAME_HISTORY_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "engine/schedule/latency.h"
#include "server/session/session_statistics.h"

namespace intrawarp::server {

struct AnsweredFrame {
  // Counts the answers of a session, from 1.
  int64_t sequence = 0;
  int64_t number = 0;
  std::chrono::steady_clock::time_point answered;
  LatencyBreakdown latency;
  // Its deadline, otherwise its budget; unset: it had neither.
  std::optional<std::chrono::nanoseconds> limit;
  FrameFate fate = FrameFate::kOk;
  // It has a result, and a person should look at it.
  bool needs_review = false;
};

class FrameHistory {
 public:
  static constexpr size_t kSize = 240;

  void Add(AnsweredFrame frame) {
    frame.sequence = ++last_;
    frames_.push_back(frame);
    if (frames_.size() > kSize) frames_.pop_front();
  }
  // The frames after the sequence number, the oldest first.
  std::vector<AnsweredFrame> Since(int64_t sequence) const {
    std::vector<AnsweredFrame> frames;
    for (const AnsweredFrame& frame : frames_) {
      if (frame.sequence > sequence) frames.push_back(frame);
    }
    return frames;
  }

 private:
  int64_t last_ = 0;
  std::deque<AnsweredFrame> frames_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_FRAME_HISTORY_H_
