// SPDX-License-Identifier: Apache-2.0
#include "server/device/served_device.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/engine/device/faulty_device.h"
#include "tests/server/partial_context.h"

namespace intrawarp::server {
namespace {

using std::chrono::seconds;

class ServedDeviceTest : public testing::Test {
 protected:
  void Start(Watchdog::RunningJobs running_jobs = nullptr) {
    served_ = std::make_unique<ServedDevice>(std::unique_ptr<Device>(device_), DeviceMemory{1000, 400},
                                             WatchdogOptions{.timeout = seconds(30)}, std::move(running_jobs));
    ASSERT_TRUE(served_->Start(DefaultScheduling(*device_)).ok());
  }
  // Checks about once a second, as the housekeeping does, until it finds this state. The limit guards against a hang of
  // the test.
  Watchdog::Finding Await(WatchdogState state) {
    Watchdog::Finding finding;
    for (int i = 0; i < 10000; ++i) {
      now_ += seconds(2);
      finding = served_->Check(now_);
      if (finding.state == state) return finding;
      // A probe that has begun comes back on another thread.
      std::this_thread::yield();
    }
    ADD_FAILURE() << "the state did not come";
    return finding;
  }

  FaultyDevice* const device_ = new FaultyDevice(*OpenDevice("cpu"));  // which served_ owns
  std::unique_ptr<ServedDevice> served_;
  Watchdog::Time now_{seconds(1000)};
};

TEST_F(ServedDeviceTest, ItsContextHasItsParts) {
  Start();
  PartialContext parts;
  const DeviceContext context = served_->ContextIn(parts.Make(), 3);
  EXPECT_EQ(context.index, 3);
  EXPECT_EQ(&context.device, device_);
  EXPECT_EQ(&served_->device(), device_);
  EXPECT_EQ(&context.probe, &served_->probe());
  EXPECT_EQ(&context.watchdog, &served_->watchdog());
  EXPECT_EQ(&context.jobs, &served_->jobs());
  EXPECT_EQ(served_->memory().total_bytes, 1000);
  EXPECT_EQ(served_->probe().memory().free_bytes, 400) << "until the device says more";
  // The lane copies.
  std::promise<absl::Status> copied;
  ASSERT_TRUE(
      context.copies.Submit([&](const absl::StatusOr<const ExecContext*>& ctx) { copied.set_value(ctx.status()); })
          .ok());
  EXPECT_TRUE(copied.get_future().get().ok());
}

TEST_F(ServedDeviceTest, JobsThatRunAreWatched) {
  Start();
  EXPECT_TRUE(served_->RunningJobs().empty());
  std::promise<void> begun, go_on, ended;
  Job job;
  job.job_class = JobClass::kBatch;
  job.run = [&](const absl::StatusOr<const ExecContext*>&) {
    begun.set_value();
    go_on.get_future().wait();
    ended.set_value();
  };
  ASSERT_TRUE(served_->jobs().Submit(std::move(job)).ok());
  begun.get_future().wait();
  const std::vector<WatchedJob> running = served_->RunningJobs();
  ASSERT_EQ(running.size(), 1);
  EXPECT_EQ(running[0].job_class, JobClass::kBatch);
  EXPECT_EQ(served_->Check(now_).state, WatchdogState::kWell) << "by its own clock it has just begun";
  go_on.set_value();
  ended.get_future().wait();
  served_->Shutdown();
  EXPECT_TRUE(served_->RunningJobs().empty());
}

TEST_F(ServedDeviceTest, AJobThatDoesNotCheckInHangsTheDevice) {
  std::vector<WatchedJob> jobs = {{JobClass::kFrame, seconds(40), seconds(31)}};
  Start([&] { return jobs; });
  EXPECT_EQ(served_->RunningJobs().size(), 1) << "in place of the scheduler's";
  EXPECT_EQ(served_->Check(now_).state, WatchdogState::kWell) << "a hang is believed when two checks see it";
  const Watchdog::Finding finding = served_->Check(now_ + seconds(1));
  EXPECT_EQ(finding.state, WatchdogState::kHung);
  EXPECT_EQ(finding.hung, "frame");
  EXPECT_EQ(served_->watchdog().state(), WatchdogState::kHung);
  jobs.clear();
  EXPECT_EQ(served_->Check(now_ + seconds(2)).state, WatchdogState::kWell);
}

TEST_F(ServedDeviceTest, AProbeThatDoesNotComeBackHangsTheDevice) {
  Start();
  device_->BlockAt(1, DeviceCall::kFill);
  EXPECT_EQ(served_->Check(now_).state, WatchdogState::kWell);
  device_->AwaitBlocked();
  EXPECT_TRUE(served_->probe().probing_since());
  const Watchdog::Finding finding = Await(WatchdogState::kHung);
  EXPECT_EQ(finding.hung, "probe");
  EXPECT_GE(now_ - Watchdog::Time(seconds(1000)), seconds(30));
  device_->Release();
  Await(WatchdogState::kWell);
}

TEST_F(ServedDeviceTest, ADeviceThatAnswersIsWellHoweverLongItServes) {
  Start();
  for (int i = 0; i < 50; ++i) {
    now_ += seconds(1);
    EXPECT_EQ(served_->Check(now_).state, WatchdogState::kWell) << i;
    while (served_->probe().probing_since()) std::this_thread::yield();
  }
  EXPECT_NE(served_->probe().memory().total_bytes, 1000) << "as the device says now";
}

TEST_F(ServedDeviceTest, ADeviceThatIsLostStaysSo) {
  Start();
  device_->FailAt(1, absl::UnavailableError("fell off the bus"), DeviceCall::kFill);
  Watchdog::Finding finding = Await(WatchdogState::kLost);
  EXPECT_TRUE(finding.changed);
  finding = served_->Check(now_ + seconds(1));
  EXPECT_EQ(finding.state, WatchdogState::kLost);
  EXPECT_FALSE(finding.changed);
}

TEST_F(ServedDeviceTest, AfterItsEndNothingStarts) {
  Start();
  PartialContext parts;
  const DeviceContext context = served_->ContextIn(parts.Make(), 0);
  served_->Shutdown();
  served_->Shutdown();
  const auto never = [](const absl::StatusOr<const ExecContext*>&) { ADD_FAILURE() << "it was shut down"; };
  EXPECT_FALSE(context.copies.Submit(never).ok());
  Job job;
  job.run = never;
  EXPECT_FALSE(context.jobs.Submit(std::move(job)).ok());
}

TEST_F(ServedDeviceTest, WhatCannotStartIsAnError) {
  served_ =
      std::make_unique<ServedDevice>(std::unique_ptr<Device>(device_), DeviceMemory(), WatchdogOptions(), nullptr);
  device_->FailAt(1, absl::ResourceExhaustedError("no stream"), DeviceCall::kCreateStream);
  EXPECT_TRUE(absl::IsResourceExhausted(served_->Start(DefaultScheduling(*device_))));
  served_->Shutdown();  // of nothing
}

}  // namespace
}  // namespace intrawarp::server
