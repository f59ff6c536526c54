// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/device/device_set.h"
#include "tests/server/promtool.h"

namespace intrawarp::server {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kMethod[] = "intrawarp.v1.VolumeService/GetVolume";
constexpr char kLabels[] = "grpc_method=\"GetVolume\",grpc_service=\"intrawarp.v1.VolumeService\",grpc_type=\"unary\"";

Metrics MakeMetrics() {
  return Metrics({"1.2.3", "abc", "none", "1.51"}, {"cpu"}, {{"intrawarp.v1.VolumeService", "GetVolume", "unary"}},
                 std::chrono::system_clock::time_point(std::chrono::seconds(1000)));
}

TEST(Metrics, SeriesExistBeforeAnythingHappens) {
  const Metrics metrics = MakeMetrics();
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text,
              HasSubstr("intrawarp_build_info{cuda=\"none\",grpc=\"1.51\",revision=\"abc\",version=\"1.2.3\"} 1"));
  EXPECT_THAT(text, HasSubstr("\nprocess_start_time_seconds 1000\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registrations_total{class=\"frame\",outcome=\"deadline_missed\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_phase_seconds_count{class=\"frame\",phase=\"optimise\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_seconds_bucket{class=\"register\",le=\"3600\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_admission_rejections_total{reason=\"queue_full\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_products_total{outcome=\"deadline_missed\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_product_seconds_bucket{le=\"3600\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_nonconverged_total{reason=\"budget\"} 0\n"));
  EXPECT_THAT(text,
              HasSubstr(absl::StrCat("grpc_server_handled_total{grpc_code=\"Unauthenticated\",", kLabels, "} 0\n")));
  EXPECT_THAT(text, HasSubstr("intrawarp_device_errors_total{device=\"cpu\",error=\"lost\"} 0\n"));
}

TEST(Metrics, CountsRpcsPerMethodAndUnknownOnesTogether) {
  Metrics metrics = MakeMetrics();
  metrics.RpcStarted(kMethod);
  metrics.RpcStarted(kMethod);
  metrics.RpcHandled(kMethod, 5, std::chrono::milliseconds(20));
  metrics.RpcMessageReceived(kMethod);
  metrics.RpcReceivedBytes(kMethod, 7);
  metrics.RpcSent(kMethod, 9);
  metrics.RpcStarted("somebody/Else");
  const std::string text = metrics.Scrape();
  const std::string label = absl::StrCat("{", kLabels, "}");
  EXPECT_THAT(text, HasSubstr("\ngrpc_server_started_total" + label + " 2\n"));
  EXPECT_THAT(text, HasSubstr("\ngrpc_server_in_flight" + label + " 1\n"));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("handled_total{grpc_code=\"NotFound\",", kLabels, "} 1\n")));
  EXPECT_THAT(text, HasSubstr("\ngrpc_server_handling_seconds_sum" + label + " 0.02\n"));
  EXPECT_THAT(text, HasSubstr("\ngrpc_server_msg_received_total" + label + " 1\n"));
  EXPECT_THAT(text, HasSubstr("\ngrpc_server_msg_sent_total" + label + " 1\n"));
  EXPECT_THAT(text, HasSubstr("\ngrpc_server_msg_received_bytes_total" + label + " 7\n"));
  EXPECT_THAT(text, HasSubstr("\ngrpc_server_msg_sent_bytes_total" + label + " 9\n"));
  EXPECT_THAT(text, HasSubstr("\ngrpc_server_started_total{grpc_method=\"other\",grpc_service=\"other\","));
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
  metrics.CountRefusedConnection();
  metrics.CountDeviceError(DeviceError::kLost);
  metrics.CountStall(Stall::kWrite);
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_registrations_total{class=\"frame\",outcome=\"ok\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registrations_total{class=\"frame\",outcome=\"failed\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_seconds_bucket{class=\"frame\",le=\"0.05\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_phase_seconds_sum{class=\"frame\",phase=\"optimise\"} 0.04\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_similarity_bucket{le=\"0.98\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_similarity_bucket{le=\"0.95\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_nonconverged_total{reason=\"no_progress\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_admission_rejections_total{reason=\"pinned_memory\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_admission_rejections_total{reason=\"too_many_connections\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_device_errors_total{device=\"cpu\",error=\"lost\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_streams_stalled_total{waits_for=\"write\"} 1\n"));
}

TEST(Metrics, ProductsCountTheirWorkWhenTheyEndWell) {
  Metrics metrics = MakeMetrics();
  metrics.ProductDone(ProductOutcome::kOk, std::chrono::milliseconds(40), 600, 70);
  metrics.ProductDone(ProductOutcome::kRejected, std::chrono::milliseconds(40), 600, 70);
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_products_total{outcome=\"ok\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_products_total{outcome=\"rejected\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_product_seconds_sum 0.04\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_product_flops_total 600\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_product_nonzeros_total 70\n"));
}

TEST(Metrics, JobsTellTheirQueueTimeWhateverBecomesOfThem) {
  Metrics metrics = MakeMetrics();
  using std::chrono::milliseconds;
  metrics.JobDone({JobClass::kFrame, JobOutcome::kDone, milliseconds(4), milliseconds(30), milliseconds(1),
                   milliseconds(20), milliseconds(-5)});
  metrics.JobDone(
      {JobClass::kFrame, JobOutcome::kExpired, milliseconds(60), {}, {}, milliseconds(20), milliseconds(-1)});
  metrics.JobDone({JobClass::kBatch, JobOutcome::kRefused, {}, {}, {}, std::nullopt, std::nullopt});
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_job_queue_seconds_sum{class=\"frame\",outcome=\"done\"} 0.004\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_job_queue_seconds_sum{class=\"frame\",outcome=\"expired\"} 0.06\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_job_queue_seconds_count{class=\"batch\",outcome=\"refused\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_job_busy_seconds_total{class=\"frame\",device=\"cpu\"} 0.03\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_job_held_seconds_total{class=\"frame\",device=\"cpu\"} 0.001\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_jobs_late_total{class=\"frame\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_deadline_slack_seconds_bucket{class=\"frame\",le=\"-0.01\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_deadline_slack_seconds_bucket{class=\"frame\",le=\"0\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_prediction_error_ratio_sum{class=\"frame\"} 1.5\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_prediction_error_ratio_count{class=\"frame\"} 1\n"));
}

TEST(Metrics, TellsOfTheProcess) {
  const Metrics metrics = MakeMetrics();
  const std::string text = metrics.Scrape();
  for (const char* name : {"process_resident_memory_bytes", "process_virtual_memory_bytes", "process_open_fds",
                           "process_max_fds", "process_threads", "process_cpu_seconds_total"}) {
    EXPECT_THAT(text, ContainsRegex(absl::StrCat("\n", name, " [0-9]"))) << name;
  }
  EXPECT_THAT(text, Not(HasSubstr("process_resident_memory_bytes 0\n")));
  EXPECT_THAT(text, Not(HasSubstr("process_open_fds 0\n")));
}

TEST(Metrics, SeveralDevicesHaveSeriesOfTheirOwn) {
  Metrics metrics({"1.2.3", "abc", "none", "1.51"}, {"cuda:0", "cuda:1"}, {}, std::chrono::system_clock::now());
  JobRecord job;
  job.busy = std::chrono::milliseconds(250);
  metrics.JobDone(job, 1);
  metrics.CountDeviceError(DeviceError::kLost, 1);
  metrics.set_sampler([] {
    MetricsSample sample;
    sample.devices.resize(2);
    sample.devices[0].memory = {{"resident", 1, 10}};
    sample.devices[1].memory = {{"resident", 2, 20, 1}};
    sample.devices[1].queues[0].depth = 3;
    sample.devices[1].healthy = false;
    return sample;
  });
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_used_bytes{device=\"cuda:0\",kind=\"resident\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_capacity_bytes{device=\"cuda:1\",kind=\"resident\"} 20\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_evictable_bytes{device=\"cuda:0\",kind=\"resident\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_evictable_bytes{device=\"cuda:1\",kind=\"resident\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_queue_depth{class=\"frame\",device=\"cuda:0\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_queue_depth{class=\"frame\",device=\"cuda:1\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_job_busy_seconds_total{class=\"interactive\",device=\"cuda:0\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_job_busy_seconds_total{class=\"interactive\",device=\"cuda:1\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_device_healthy{device=\"cuda:0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_device_healthy{device=\"cuda:1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_device_errors_total{device=\"cuda:1\",error=\"lost\"} 1\n"));
}

TEST(Metrics, GaugesAreSampledAtScrape) {
  Metrics metrics = MakeMetrics();
  int samples = 0;
  metrics.set_sampler([&samples] {
    MetricsSample sample;
    sample.volumes = ++samples;
    DeviceSample device;
    device.healthy = false;
    device.memory = {{"resident", 6, 60, 4}};
    device.device_memory = DeviceMemory{100, 40};
    device.watchdog = WatchdogState::kHung;
    device.queues[2].since_checkpoint = std::chrono::seconds(40);
    sample.devices = {device};
    sample.pinned_kept_bytes = 4096;
    sample.memory = {{"pinned", 5, 50}};
    sample.tables = {{"streams", 3, 64}};
    sample.longest_stall = std::chrono::seconds(7);
    sample.state_disk = {8, 9};
    return sample;
  });
  EXPECT_THAT(metrics.Scrape(), HasSubstr("intrawarp_resident_objects{kind=\"volume\"} 1\n"));
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_resident_objects{kind=\"volume\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_device_healthy{device=\"cpu\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_pinned_kept_bytes 4096\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_used_bytes{kind=\"pinned\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_capacity_bytes{kind=\"pinned\"} 50\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_used_bytes{kind=\"resident\"} 6\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_evictable_bytes{kind=\"resident\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_evictable_bytes{kind=\"pinned\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_table_used{table=\"streams\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_table_capacity{table=\"streams\"} 64\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_device_memory_bytes{device=\"cpu\",state=\"used\"} 60\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_watchdog_state{device=\"cpu\",state=\"hung\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_watchdog_state{device=\"cpu\",state=\"well\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_since_checkpoint_seconds{class=\"batch\"} 40\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_longest_stall_seconds 7\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_state_disk_free_bytes 8\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_state_disk_size_bytes 9\n"));
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
