// SPDX-License-Identifier: Apache-2.0
// intrawarpd as a process whose device does not come back. Nothing from outside can make a device hang, so a job that
// does not check in for longer than the watchdog allows stands for it: for any job, a microsecond is too long. And a
// process that seldom has a processor, whose device is well.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

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

// The address of a server that has two volumes; empty: it does not start.
std::string ServeVolumes(client::Process& process) {
  const std::string address = client::Word(process.WaitForLine("ready "), "grpc=");
  if (address.empty()) return "";
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  const Geometry grid = BoxGeometry(96, 96, 96);
  for (const uint32_t seed : {1, 2}) {
    const std::string id = seed == 1 ? "fixed" : "moving";
    const UploadData volume = MakeVolume(grid, RandomVoxels<float>(grid, seed), "put-" + id, id);
    const grpc::Status put = Upload(*v1::BulkService::NewStub(channel), volume, nullptr, size_t{1} << 20);
    EXPECT_TRUE(put.ok()) << put.error_message();
  }
  return address;
}

TEST(HungProcess, ExitsWithStatus3) {
  client::Process process({INTRAWARPD_PATH, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cpu",
                           "--resident_bytes=256MiB", "--watchdog_timeout=1us", "--watchdog_exit=1us"});
  const std::string address = ServeVolumes(process);
  ASSERT_NE(address, "");
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
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

// Stopped for seconds, then let run for a twentieth of the time only.
TEST(HungProcess, AStarvedProcessIsNotHung) {
  client::Process process({INTRAWARPD_PATH, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cpu",
                           "--resident_bytes=256MiB", "--watchdog_timeout=500ms", "--watchdog_exit=500ms"});
  const std::string address = ServeVolumes(process);
  ASSERT_NE(address, "");
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(240));
  const auto reader = v1::RegistrationService::NewStub(channel)->Register(&context, LongRegistration());
  v1::RegisterResponse response;
  ASSERT_TRUE(reader->Read(&response)) << "it computes";
  process.Signal(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(3));
  for (int i = 0; i < 12; ++i) {
    process.Signal(SIGCONT);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    process.Signal(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
  }
  process.Signal(SIGCONT);
  EXPECT_TRUE(reader->Read(&response)) << "it goes on";
  context.TryCancel();
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  process.Signal(SIGTERM);
  const client::ProcessResult result = process.Wait();
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_THAT(result.err, testing::Not(HasSubstr("event=device_hung")));
}

}  // namespace
}  // namespace intrawarp::server
