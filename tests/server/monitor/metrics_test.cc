// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/server/promtool.h"

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;

constexpr char kMethod[] = "intrawarp.v1.VolumeService/GetVolume";

Metrics MakeMetrics() {
  return Metrics({"1.2.3", "abc", "none", "1.51"}, "cpu", {kMethod},
                 std::chrono::system_clock::time_point(std::chrono::seconds(1000)));
}

TEST(Metrics, SeriesExistBeforeAnythingHappens) {
  const Metrics metrics = MakeMetrics();
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text,
              HasSubstr("intrawarp_build_info{cuda=\"none\",grpc=\"1.51\",revision=\"abc\",version=\"1.2.3\"} 1"));
  EXPECT_THAT(text, HasSubstr("intrawarp_start_time_seconds 1000\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_frames_total{class=\"frame\",outcome=\"deadline_missed\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_frame_phase_seconds_count{phase=\"optimise\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_frame_latency_seconds_bucket{class=\"register\",le=\"0.05\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_admission_rejections_total{reason=\"queue_full\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_spgemm_jobs_total{outcome=\"deadline_missed\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_spgemm_job_seconds_bucket{le=\"0.05\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_nonconverged_total{reason=\"budget\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("code=\"UNAUTHENTICATED\",method=\"intrawarp.v1.VolumeService/GetVolume\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_device_errors_total{device=\"cpu\",error=\"lost\"} 0\n"));
}

TEST(Metrics, CountsRpcsPerMethodAndUnknownOnesTogether) {
  Metrics metrics = MakeMetrics();
  metrics.RpcStarted(kMethod);
  metrics.RpcStarted(kMethod);
  metrics.RpcHandled(kMethod, 5, std::chrono::milliseconds(20));
  metrics.RpcReceivedBytes(kMethod, 7);
  metrics.RpcSentBytes(kMethod, 9);
  metrics.RpcStarted("somebody/Else");
  const std::string text = metrics.Scrape();
  const std::string label = "{method=\"intrawarp.v1.VolumeService/GetVolume\"}";
  EXPECT_THAT(text, HasSubstr("intrawarp_grpc_server_started_total" + label + " 2\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_streams_active" + label + " 1\n"));
  EXPECT_THAT(text, HasSubstr("handled_total{code=\"NOT_FOUND\",method=\"intrawarp.v1.VolumeService/GetVolume\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_grpc_server_handling_seconds_sum" + label + " 0.02\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_grpc_server_msg_received_bytes_total" + label + " 7\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_grpc_server_msg_sent_bytes_total" + label + " 9\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_grpc_server_started_total{method=\"other\"} 1\n"));
  EXPECT_EQ(text.find("somebody"), std::string::npos);
}

TEST(Metrics, FramesRecordTheirPhasesWhenTheyEndWell) {
  Metrics metrics = MakeMetrics();
  LatencyBreakdown latency;
  latency.Add(Phase::kOptimise, std::chrono::milliseconds(40));
  latency.set_total(std::chrono::milliseconds(50));
  metrics.FrameDone(WorkClass::kFrame, FrameOutcome::kOk, latency);
  metrics.FrameDone(WorkClass::kFrame, FrameOutcome::kFailed, latency);
  metrics.ObserveSimilarity(0.97);
  metrics.CountNonconverged(Nonconvergence::kNoProgress);
  metrics.CountRejection(v1::PINNED_MEMORY);
  metrics.CountDeviceError(DeviceError::kLost);
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_frames_total{class=\"frame\",outcome=\"ok\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_frames_total{class=\"frame\",outcome=\"failed\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_frame_latency_seconds_bucket{class=\"frame\",le=\"0.05\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_frame_phase_seconds_sum{phase=\"optimise\"} 0.04\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_similarity_bucket{le=\"0.98\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_similarity_bucket{le=\"0.95\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_nonconverged_total{reason=\"no_progress\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_admission_rejections_total{reason=\"pinned_memory\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_device_errors_total{device=\"cpu\",error=\"lost\"} 1\n"));
}

TEST(Metrics, ProductsCountTheirWorkWhenTheyEndWell) {
  Metrics metrics = MakeMetrics();
  metrics.ProductDone(ProductOutcome::kOk, std::chrono::milliseconds(40), 600, 70);
  metrics.ProductDone(ProductOutcome::kRejected, std::chrono::milliseconds(40), 600, 70);
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_spgemm_jobs_total{outcome=\"ok\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_spgemm_jobs_total{outcome=\"rejected\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_spgemm_job_seconds_sum 0.04\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_spgemm_flops_total 600\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_spgemm_output_nonzeros_total 70\n"));
}

TEST(Metrics, GaugesAreSampledAtScrape) {
  Metrics metrics = MakeMetrics();
  int samples = 0;
  metrics.set_sampler([&samples] {
    MetricsSample sample;
    sample.volumes = ++samples;
    sample.device_healthy = false;
    sample.pinned_kept_bytes = 4096;
    return sample;
  });
  EXPECT_THAT(metrics.Scrape(), HasSubstr("intrawarp_volumes_resident{kind=\"volume\"} 1\n"));
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_volumes_resident{kind=\"volume\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_device_healthy{device=\"cpu\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_pinned_memory_bytes{state=\"kept\"} 4096\n"));
  metrics.set_sampler(nullptr);
  metrics.Scrape();
  EXPECT_EQ(samples, 2);
}

TEST(Metrics, PromtoolFindsNothingWrong) {
  const Metrics metrics = MakeMetrics();
  const PromtoolResult result = PromtoolCheck(metrics.Scrape());
  if (!result.available) GTEST_SKIP() << "promtool is not installed";
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.output, "");
}

}  // namespace
}  // namespace intrawarp::server
