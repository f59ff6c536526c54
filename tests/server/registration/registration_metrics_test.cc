// SPDX-License-Identifier: Apache-2.0
#include "server/registration/registration_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;

TEST(RegistrationMetrics, SeriesExistBeforeAnythingHappens) {
  Registry registry;
  const RegistrationMetrics metrics(registry);
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_registrations_total{class=\"frame\",outcome=\"deadline_missed\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_phase_seconds_count{class=\"frame\",phase=\"optimise\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_seconds_bucket{class=\"register\",le=\"3600\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_nonconverged_total{reason=\"budget\"} 0\n"));
}

TEST(RegistrationMetrics, FramesRecordTheirPhasesWhenTheyEndWell) {
  Registry registry;
  const RegistrationMetrics metrics(registry);
  LatencyBreakdown latency;
  latency.Add(Phase::kOptimise, std::chrono::milliseconds(40));
  latency.set_total(std::chrono::milliseconds(50));
  metrics.FrameDone(WorkClass::kFrame, FrameOutcome::kOk, latency);
  metrics.FrameDone(WorkClass::kFrame, FrameOutcome::kFailed, latency);
  metrics.ObserveSimilarity(0.97);
  metrics.CountNonconverged(Nonconvergence::kNoProgress);
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_registrations_total{class=\"frame\",outcome=\"ok\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registrations_total{class=\"frame\",outcome=\"failed\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_seconds_bucket{class=\"frame\",le=\"0.05\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_phase_seconds_sum{class=\"frame\",phase=\"optimise\"} 0.04\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_similarity_bucket{le=\"0.98\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_similarity_bucket{le=\"0.95\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_registration_nonconverged_total{reason=\"no_progress\"} 1\n"));
}

}  // namespace
}  // namespace intrawarp::server
