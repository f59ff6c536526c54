// SPDX-License-Identifier: Apache-2.0
#include "server/registration/report_provenance.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "server/base/version.h"

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::system_clock;

std::shared_ptr<const StoredVolume> Volume(const std::string& id) {
  auto volume = std::make_shared<StoredVolume>();
  volume->id = id;
  volume->digest = "identity of " + id;
  volume->content_digest = "content of " + id;
  return volume;
}

Seams At(system_clock::time_point now) {
  Seams seams = SystemSeams();
  seams.system_now = [now] { return now; };
  return seams;
}

TEST(MakeProvenance, NamesTheImagesByWhatClientsBrought) {
  const auto fixed = Volume("ct"), moving = Volume("mr");
  RegistrationPlan plan;
  plan.fixed_mask = Volume("mask");
  plan.moving_weight = Volume("weight");
  const v1::ReportProvenance provenance =
      MakeProvenance({fixed.get(), moving.get()}, plan, At(system_clock::time_point(seconds(100))), milliseconds(2500));
  EXPECT_EQ(provenance.fixed(), "volumes/ct");
  EXPECT_EQ(provenance.fixed_digest(), "content of ct") << "which clients can compare";
  EXPECT_EQ(provenance.moving(), "volumes/mr");
  EXPECT_EQ(provenance.moving_digest(), "content of mr");
  EXPECT_EQ(provenance.fixed_mask_digest(), "content of mask");
  EXPECT_EQ(provenance.moving_mask_digest(), "");
  EXPECT_EQ(provenance.fixed_weight_digest(), "");
  EXPECT_EQ(provenance.moving_weight_digest(), "content of weight");
  EXPECT_EQ(provenance.server_version(), ThisBuild().version);
  EXPECT_EQ(provenance.server_revision(), ThisBuild().revision);
  EXPECT_EQ(provenance.report_time().seconds(), 100);
  EXPECT_EQ(provenance.receive_time().seconds(), 97);
  EXPECT_EQ(provenance.receive_time().nanos(), 500'000'000);
}

TEST(MakeProvenance, AFrameIsNotAResource) {
  const auto fixed = Volume("ct");
  RegistrationPlan plan;
  plan.moving_mask = Volume("mask");
  plan.fixed_weight = Volume("weight");
  v1::ReportProvenance provenance =
      MakeProvenance({fixed.get(), nullptr}, plan, At(system_clock::time_point(seconds(5))), seconds(0));
  EXPECT_EQ(provenance.fixed(), "volumes/ct");
  EXPECT_EQ(provenance.moving() + provenance.moving_digest(), "");
  EXPECT_EQ(provenance.moving_mask_digest(), "content of mask");
  EXPECT_EQ(provenance.fixed_weight_digest(), "content of weight");
  EXPECT_EQ(provenance.receive_time().seconds(), provenance.report_time().seconds());
  provenance = MakeProvenance({nullptr, fixed.get()}, RegistrationPlan(), SystemSeams(), seconds(0));
  EXPECT_EQ(provenance.fixed() + provenance.fixed_digest() + provenance.moving_mask_digest(), "");
  EXPECT_EQ(provenance.moving(), "volumes/ct");
}

}  // namespace
}  // namespace intrawarp::server
