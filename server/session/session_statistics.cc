// SPDX-License-Identifier: Apache-2.0
#include "server/session/session_statistics.h"

#include <algorithm>

namespace intrawarp::server {
namespace {

constexpr Phase kDevicePhases[] = {Phase::kUpload, Phase::kPrepare, Phase::kOptimise,
                                   Phase::kAssess, Phase::kEncode,  Phase::kDownload};

double Milliseconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

void LatencyWindow::Add(std::chrono::nanoseconds latency) {
  if (window_.size() < kSize) {
    window_.push_back(latency);
    return;
  }
  window_[next_] = latency;
  next_ = (next_ + 1) % kSize;
}

std::optional<std::chrono::nanoseconds> LatencyWindow::Percentile(int percent) const {
  if (window_.empty()) return std::nullopt;
  std::vector<std::chrono::nanoseconds> sorted = window_;
  const size_t rank = (sorted.size() * percent + 99) / 100;
  const auto nth = sorted.begin() + static_cast<std::ptrdiff_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(sorted.begin(), nth, sorted.end());
  return *nth;
}

void SessionStatistics::Began() { peak_in_flight_ = std::max(peak_in_flight_, ++in_flight_); }

void SessionStatistics::Ended(FrameFate fate, const LatencyBreakdown& latency) {
  --in_flight_;
  ++counts_[static_cast<int>(fate)];
  if (fate != FrameFate::kOk && fate != FrameFate::kLate) return;
  latencies_.Add(latency.total());
  ++timed_frames_;
  for (const Phase phase : kDevicePhases) device_time_ += latency.phase(phase);
}

std::optional<std::chrono::nanoseconds> SessionStatistics::MeanDeviceTime() const {
  if (timed_frames_ == 0) return std::nullopt;
  return device_time_ / timed_frames_;
}

void SessionStatistics::Restore(const v1::SessionStatistics& from) {
  count(FrameFate::kOk) = from.frames_ok();
  count(FrameFate::kLate) = from.frames_late();
  count(FrameFate::kMissed) = from.frames_missed();
  count(FrameFate::kSuperseded) = from.frames_superseded();
  count(FrameFate::kRefused) = from.frames_refused();
  count(FrameFate::kFailed) = from.frames_failed();
  count(FrameFate::kDropped) = from.frames_dropped() + from.frames_in_flight();
  peak_in_flight_ = from.peak_frames_in_flight();
  coarse_fields_ = from.coarse_fields();
}

v1::SessionStatistics SessionStatistics::ToProto() const {
  v1::SessionStatistics to;
  to.set_frames_ok(count(FrameFate::kOk));
  to.set_frames_late(count(FrameFate::kLate));
  to.set_frames_missed(count(FrameFate::kMissed));
  to.set_frames_superseded(count(FrameFate::kSuperseded));
  to.set_frames_refused(count(FrameFate::kRefused));
  to.set_frames_failed(count(FrameFate::kFailed));
  to.set_frames_dropped(count(FrameFate::kDropped));
  to.set_frames_in_flight(in_flight_);
  to.set_peak_frames_in_flight(peak_in_flight_);
  to.set_coarse_fields(coarse_fields_);
  if (const auto p50 = latencies_.Percentile(50)) to.set_latency_p50_ms(Milliseconds(*p50));
  if (const auto p90 = latencies_.Percentile(90)) to.set_latency_p90_ms(Milliseconds(*p90));
  if (const auto p99 = latencies_.Percentile(99)) to.set_latency_p99_ms(Milliseconds(*p99));
  return to;
}

}  // namespace intrawarp::server
