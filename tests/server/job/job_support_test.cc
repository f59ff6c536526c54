// SPDX-License-Identifier: Apache-2.0
#include "server/job/job_support.h"

#include <memory>

#include "server/rpc/job_stream.h"
#include "tests/server/service_fixture.h"

namespace intrawarp::server {
namespace {

class JobSupportTest : public ServiceTest {};
INTRAWARP_INSTANTIATE_DEVICE_TEST(JobSupportTest);

TEST_P(JobSupportTest, ACallThatWasCancelledBeforeSubmitsNothing) {
  const grpc::CallbackServerContext rpc;
  const std::shared_ptr<JobStream> stream = JobStream::Create(context(), rpc);
  ASSERT_FALSE(stream->closed());
  stream->OnCancel();
  {
    JobBlocker blocker(context().jobs);
    auto held = std::make_shared<int>(0);
    Job job;
    job.run = [held](const absl::StatusOr<const ExecContext*>&) {};
    EXPECT_EQ(SubmitJob(context(), *stream, std::move(job)).code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(held.use_count(), 1);
    EXPECT_EQ(context().jobs.pending(), 1);
  }
  stream->OnDone();
}

}  // namespace
}  // namespace intrawarp::server
