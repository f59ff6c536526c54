// SPDX-License-Identifier: Apache-2.0
#include "tests/server/job_blocker.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "engine/schedule/scheduler.h"

namespace intrawarp::server {

JobBlocker::JobBlocker(JobQueue& jobs) {
  Block([&](Run run) {
    Job job;
    job.run = std::move(run);
    return jobs.Submit(std::move(job)).ok();
  });
}

JobBlocker::JobBlocker(CopyLane& copies) {
  Block([&](Run run) { return copies.Submit(std::move(run)).ok(); });
}

void JobBlocker::Release() {
  if (!std::exchange(released_, true)) release_.set_value();
}

void JobBlocker::Block(const std::function<bool(Run)>& submit) {
  auto gate = std::make_shared<std::shared_future<void>>(release_.get_future().share());
  auto started = std::make_shared<std::promise<void>>();
  std::future<void> running = started->get_future();
  EXPECT_TRUE(submit([gate, started](const absl::StatusOr<const ExecContext*>&) {
    started->set_value();
    gate->wait();
  }));
  running.wait();
}

}  // namespace intrawarp::server
