// SPDX-License-Identifier: Apache-2.0
// intrawarpd as a process whose device does not come back. Nothing from outside can make a device hang, so a job that
// does not check in for longer than the watchdog allows stands for it: for any job, a microsecond is too long.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <string>

#include "intrawarp/v1/bulk.grpc.pb.h"
#include "intrawarp/v1/registration.grpc.pb.h"
#include "tests/client/process.h"
#include "tests/server/bulk_client.h"
#include "tests/server/volume_client.h"

namespace intrawarp::server {
namespace {

using testing::HasSubstr;

// A registration that goes on for minutes.
v1::RegisterRequest LongRegistration() {
  v1::RegisterRequest request;
  request.set_fixed("volumes/fixed");
  request.set_moving("volumes/moving");
  for (int i = 0; i < 4; ++i) {
    v1::LogDemonsStage& stage = *request.mutable_options()->add_stages()->mutable_log_demons();
    stage.set_levels(1);
    stage.set_iterations(1000);
  }
  return request;
}

TEST(HungProcess, ExitsWithStatus3) {
  client::Process process({INTRAWARPD_PATH, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cpu",
                           "--resident_bytes=256MiB", "--watchdog_timeout=1us", "--watchdog_exit=1us"});
  const std::string ready = process.WaitForLine("ready ");
  const size_t begin = ready.find("grpc=") + 5;
  ASSERT_NE(ready, "");
  const auto channel =
      grpc::CreateChannel(ready.substr(begin, ready.find(' ', begin) - begin), grpc::InsecureChannelCredentials());
  const Geometry grid = BoxGeometry(96, 96, 96);
  for (const uint32_t seed : {1, 2}) {
    const std::string id = seed == 1 ? "fixed" : "moving";
    const UploadData volume = MakeVolume(grid, RandomVoxels<float>(grid, seed), "put-" + id, id);
    const grpc::Status put = Upload(*v1::BulkService::NewStub(channel), volume, nullptr, size_t{1} << 20);
    ASSERT_TRUE(put.ok()) << put.error_message();
  }
  grpc::ClientContext context;
  // A guard against a hang of the test.
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(240));
  const auto reader = v1::RegistrationService::NewStub(channel)->Register(&context, LongRegistration());
  v1::RegisterResponse response;
  while (reader->Read(&response)) {
  }
  const grpc::Status end = reader->Finish();
  ASSERT_EQ(end.error_code(), grpc::UNAVAILABLE) << end.error_message();
  const client::ProcessResult result = process.Wait();
  EXPECT_EQ(result.exit_status, 3);
  EXPECT_THAT(result.err, HasSubstr("event=device_hung"));
  EXPECT_THAT(result.err, HasSubstr("event=gave_up"));
}

}  // namespace
}  // namespace intrawarp::server
