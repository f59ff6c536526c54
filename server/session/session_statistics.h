// SPDX-License-Identifier: Apache-2.0
// SessionStatistics: how the frames of a session fared. Memory is bounded: percentiles are those of the last frames.
//
// Thread-compatible.
#ifndef INTRAWARP_SERVER_SESSION_SESSION_STATISTICS_H_
#define INTRAWARP_SERVER_SESSION_SESSION_STATISTICS_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/schedule/latency.h"
#include "intrawarp/v1/registration.pb.h"

namespace intrawarp::server {

// The last durations, as many as the window holds.
class LatencyWindow {
 public:
  static constexpr size_t kSize = 1024;
  void Add(std::chrono::nanoseconds latency);
  // The smallest duration that `percent` of a hundred do not exceed (nearest rank); nullopt without any.
  std::optional<std::chrono::nanoseconds> Percentile(int percent) const;

 private:
  std::vector<std::chrono::nanoseconds> window_;
  size_t next_ = 0;
};

// The fates that SessionStatistics of the wire counts.
enum class FrameFate { kOk, kLate, kMissed, kSuperseded, kRefused, kFailed, kDropped };
inline constexpr int kFrameFates = 7;

class SessionStatistics {
 public:
  // The header of a frame was received.
  void Began();
  // Its fate is known. `latency` counts for kOk and kLate.
  void Ended(FrameFate fate, const LatencyBreakdown& latency = {});
  // A coarse field of a frame is on its way.
  void CoarseFieldSent() { ++coarse_fields_; }

  // The counts of a session that goes on after a restart; its frames in flight are dropped. Latencies begin anew.
  // Before the first frame.
  void Restore(const v1::SessionStatistics& from);

  int64_t in_flight() const { return in_flight_; }
  // The mean time that a good frame held the device; nullopt before the first one.
  std::optional<std::chrono::nanoseconds> MeanDeviceTime() const;
  v1::SessionStatistics ToProto() const;

 private:
  int64_t& count(FrameFate fate) { return counts_[static_cast<int>(fate)]; }
  int64_t count(FrameFate fate) const { return counts_[static_cast<int>(fate)]; }

  std::array<int64_t, kFrameFates> counts_{};
  int64_t in_flight_ = 0;
  int64_t peak_in_flight_ = 0;
  int64_t coarse_fields_ = 0;
  std::chrono::nanoseconds device_time_{0};
  int64_t timed_frames_ = 0;
  LatencyWindow latencies_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_SESSION_STATISTICS_H_
