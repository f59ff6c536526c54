// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/job_runner.h"

#include <future>
#include <thread>
#include <vector>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

class JobRunnerTest : public DeviceTest {};
INTRAWARP_INSTANTIATE_DEVICE_TEST(JobRunnerTest);

// A job that counts itself as started, waits for `go`, and notes its status and what it finds.
struct Gate {
  std::promise<void> started;
  std::promise<void> go;
  Job job() {
    return {0, nullptr, [this](const absl::StatusOr<const ExecContext*>&) {
              started.set_value();
              go.get_future().wait();
            }};
  }
};

TEST_P(JobRunnerTest, RunsInOrderWithTheWorkspaceAskedFor) {
  std::unique_ptr<JobRunner> runner = *JobRunner::Create(device(), 8);
  std::vector<size_t> capacities;
  for (int64_t bytes : {0, 256, 5000}) {
    ASSERT_OK(runner->Submit({bytes, nullptr, [&](const absl::StatusOr<const ExecContext*>& ctx) {
                                ASSERT_OK(ctx) << ctx.status();
                                capacities.push_back((*ctx)->arena().capacity());
                                EXPECT_EQ((*ctx)->Checkpoint({}), Decision::kContinue);
                              }}));
  }
  std::promise<absl::Status> refused;
  ASSERT_OK(runner->Submit({int64_t{1} << 50, nullptr,
                            [&](const absl::StatusOr<const ExecContext*>& ctx) { refused.set_value(ctx.status()); }}));
  EXPECT_EQ(refused.get_future().get().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(capacities, (std::vector<size_t>{0, 256, 5120}));
}

TEST_P(JobRunnerTest, RefusesBeyondItsQueueAndAfterShutdown) {
  std::unique_ptr<JobRunner> runner = *JobRunner::Create(device(), 1);
  Gate gate;
  absl::Status waiting;
  ASSERT_OK(runner->Submit(gate.job()));
  gate.started.get_future().wait();
  ASSERT_OK(
      runner->Submit({0, nullptr, [&](const absl::StatusOr<const ExecContext*>& ctx) { waiting = ctx.status(); }}));
  EXPECT_EQ(runner->Submit({}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(runner->pending(), 2);
  // From two threads at once: both wait, neither twice.
  std::thread one([&] { runner->Shutdown(); }), two([&] { runner->Shutdown(); });
  while (runner->Submit({}).code() != absl::StatusCode::kUnavailable) std::this_thread::yield();
  gate.go.set_value();
  one.join();
  two.join();
  EXPECT_EQ(waiting.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(runner->pending(), 0);
}

}  // namespace
}  // namespace intrawarp
