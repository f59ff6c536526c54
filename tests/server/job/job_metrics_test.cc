// SPDX-License-Identifier: Apache-2.0
#include "server/job/job_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

TEST(JobMetrics, JobsTellTheirQueueTimeWhateverBecomesOfThem) {
  Registry registry;
  const JobMetrics metrics(registry, {"cpu"});
  metrics.JobDone({JobClass::kFrame, JobOutcome::kDone, milliseconds(4), milliseconds(30), milliseconds(1),
                   milliseconds(20), milliseconds(-5)},
                  0);
  metrics.JobDone(
      {JobClass::kFrame, JobOutcome::kExpired, milliseconds(60), {}, {}, milliseconds(20), milliseconds(-1)}, 0);
  metrics.JobDone({JobClass::kBatch, JobOutcome::kRefused, {}, {}, {}, std::nullopt, std::nullopt}, 0);
  const std::string text = registry.Scrape();
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

TEST(JobMetrics, QueuesAreThoseOfTheLastSample) {
  Registry registry;
  const JobMetrics metrics(registry, {"cpu"});
  std::array<QueueSample, kJobClasses> queues;
  queues[2] = {3, 64, 1, std::chrono::seconds(40)};
  metrics.Set(0, queues);
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_queue_depth{class=\"batch\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_queue_capacity{class=\"batch\"} 64\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_jobs_running{class=\"batch\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_since_checkpoint_seconds{class=\"batch\"} 40\n"));
}

TEST(JobMetrics, SeveralDevicesHaveSeriesOfTheirOwn) {
  Registry registry;
  const JobMetrics metrics(registry, {"cuda:0", "cuda:1"});
  JobRecord job;
  job.busy = milliseconds(250);
  metrics.JobDone(job, 1);
  std::array<QueueSample, kJobClasses> queues;
  queues[0].depth = 3;
  metrics.Set(1, queues);
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_queue_depth{class=\"frame\",device=\"cuda:0\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_queue_depth{class=\"frame\",device=\"cuda:1\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_job_busy_seconds_total{class=\"interactive\",device=\"cuda:0\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_job_busy_seconds_total{class=\"interactive\",device=\"cuda:1\"} 0.25\n"));
}

}  // namespace
}  // namespace intrawarp::server
