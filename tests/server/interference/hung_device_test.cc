// SPDX-License-Identifier: Apache-2.0
// The device does not come back from any call.
#include <atomic>
#include <thread>

#include "tests/server/http_client.h"
#include "tests/server/interference/faulty_server.h"
#include "tests/server/interference/interference_fixture.h"
#include "tests/server/raw_call.h"

namespace intrawarp::server {
namespace {

class HungDeviceTest : public testing::Test {
 protected:
  HungDeviceTest() : test_(OnFaultyDevice(Options(), &device_)) {
    const UploadData volume =
        MakeVolume(PatientGrid(), RandomVoxels<float>(PatientGrid(), kPatientSeed), "put", "patient");
    EXPECT_TRUE(Upload(*test_.Stub<v1::BulkService>(), volume, nullptr, size_t{1} << 20).ok());
  }
  static ServerOptions Options() {
    ServerOptions options = TestServer::DefaultOptions();
    options.watchdog = WatchdogOptions();
    return options;
  }
  // The answer of grpc.health.v1.Health/Check for the server as a whole, a message of one field.
  std::string Health() {
    RawCall call(test_.channel, "/grpc.health.v1.Health/Check");
    call.Write(std::string());
    call.WritesDone();
    return call.Read().value_or("no answer");
  }

  FaultyDevice* device_ = nullptr;
  TestServer test_;
};

TEST_F(HungDeviceTest, TurnsHealthOffAndLeavesTheMetrics) {
  const std::string serving("\x08\x01", 2), not_serving("\x08\x02", 2);
  EXPECT_EQ(Health(), serving);
  EXPECT_EQ(HttpGet(test_.server->http_address(), "/healthz").status, 200);
  for (int call = 3; call < 100; ++call) device_->BlockAt(call);
  FrameSeen frame;
  std::atomic<bool> answered = false;
  std::thread hung([&] {
    frame = NavigationClient(test_.server->grpc_address(), PatientSession()).Next();
    answered = true;
  });
  device_->AwaitBlocked();
  // Hours pass, in which the server looks after itself; whoever asks the device for a sign of life has a thread.
  for (int hour = 0; hour < 500 && Health() == serving; ++hour) {
    test_.clock.Advance(std::chrono::hours(1));
    test_.server->Housekeep();
    std::this_thread::yield();
  }
  EXPECT_EQ(HttpGet(test_.server->http_address(), "/healthz").status, 503);
  EXPECT_EQ(Health(), not_serving);
  EXPECT_EQ(HttpGet(test_.server->http_address(), "/metrics").status, 200);
  device_->Disarm();
  while (!answered) device_->Release();  // a call may block after the first one
  hung.join();
  std::cout << "[ FRAMES   ] the frame under way: " << frame.Name() << "\n";
}

}  // namespace
}  // namespace intrawarp::server
