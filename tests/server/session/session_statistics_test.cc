// SPDX-License-Identifier: Apache-2.0
#include "server/session/session_statistics.h"

#include <gtest/gtest.h>

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;

LatencyBreakdown Latency(milliseconds total, milliseconds optimise = milliseconds(0)) {
  LatencyBreakdown latency;
  latency.Add(Phase::kOptimise, optimise);
  latency.Add(Phase::kQueue, milliseconds(1000));
  latency.set_total(total);
  return latency;
}

TEST(LatencyWindowTest, PercentilesAreNearestRanks) {
  LatencyWindow window;
  EXPECT_FALSE(window.Percentile(50).has_value());
  for (int i = 200; i >= 1; --i) window.Add(milliseconds(i));
  EXPECT_EQ(*window.Percentile(50), milliseconds(100));
  EXPECT_EQ(*window.Percentile(90), milliseconds(180));
  EXPECT_EQ(*window.Percentile(99), milliseconds(198));
  EXPECT_EQ(*window.Percentile(100), milliseconds(200));
  EXPECT_EQ(*window.Percentile(0), milliseconds(1));
}

TEST(LatencyWindowTest, ForgetsTheOldestDurations) {
  LatencyWindow window;
  for (int i = 0; i < 10; ++i) window.Add(milliseconds(1000000));
  for (size_t i = 0; i < LatencyWindow::kSize; ++i) window.Add(milliseconds(7));
  EXPECT_EQ(*window.Percentile(100), milliseconds(7));
}

TEST(SessionStatisticsTest, CountsEachFateOnce) {
  SessionStatistics statistics;
  for (int i = 0; i < kFrameFates; ++i) statistics.Began();
  EXPECT_EQ(statistics.in_flight(), kFrameFates);
  for (int i = 0; i < kFrameFates; ++i)
    statistics.Ended(static_cast<FrameFate>(i), Latency(milliseconds(10 * (i + 1))));
  const v1::SessionStatistics proto = statistics.ToProto();
  for (const int64_t count : {proto.frames_ok(), proto.frames_late(), proto.frames_missed(), proto.frames_superseded(),
                              proto.frames_refused(), proto.frames_failed(), proto.frames_dropped()}) {
    EXPECT_EQ(count, 1);
  }
  EXPECT_EQ(proto.frames_in_flight(), 0);
  EXPECT_EQ(proto.coarse_fields(), 0);
  statistics.CoarseFieldSent();
  EXPECT_EQ(statistics.ToProto().coarse_fields(), 1);
  EXPECT_EQ(proto.peak_frames_in_flight(), kFrameFates);
  // The latencies of answers with a result alone.
  EXPECT_EQ(proto.latency_p50_ms(), 10);
  EXPECT_EQ(proto.latency_p99_ms(), 20);
}

TEST(SessionStatisticsTest, DeviceTimeLeavesQueueingOut) {
  SessionStatistics statistics;
  EXPECT_FALSE(statistics.MeanDeviceTime().has_value());
  EXPECT_FALSE(statistics.ToProto().has_latency_p50_ms());
  for (const int ms : {10, 30}) {
    statistics.Began();
    statistics.Ended(FrameFate::kOk, Latency(milliseconds(5000), milliseconds(ms)));
  }
  EXPECT_EQ(*statistics.MeanDeviceTime(), milliseconds(20));
}

}  // namespace
}  // namespace intrawarp::server
