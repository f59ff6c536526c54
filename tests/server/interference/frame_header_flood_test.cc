// SPDX-License-Identifier: Apache-2.0
// Another client sends headers of frames without their bytes, as fast as it can, and reads nothing.
#include <atomic>
#include <thread>

#include "tests/server/interference/interference_fixture.h"
#include "tests/server/raw_call.h"

namespace intrawarp::server {
namespace {

class FrameHeaderFloodTest : public InterferenceTest {
 protected:
  // Two megabytes, far more than a transport takes for a server that does not read.
  static constexpr int kHeaders = 20000;
  // A flood that is not over by then waits for the server.
  static constexpr std::chrono::seconds kGuard{20};

  // Runs until the stream ends, or all headers are taken.
  void Flood(RawCall& call) {
    v1::NavigateRequest request;
    *request.mutable_config() = PatientSession().config;
    request.mutable_config()->set_max_pending(1);
    call.Write(request.SerializeAsString());
    v1::FrameHeader& header = *request.mutable_frame();
    *header.mutable_geometry() = GeometryToProto(PatientGrid());
    header.set_pixel_type(v1::PIXEL_TYPE_FLOAT32);
    header.set_total_bytes(PatientGrid().voxels() * 4);
    while (sent_ < kHeaders) {
      header.set_frame_number(sent_ + 1);
      if (!call.Write(request.SerializeAsString())) break;
      ++sent_;
    }
    over_ = true;
  }

  std::atomic<int> sent_{0};
  std::atomic<bool> over_{false};
};

TEST_F(FrameHeaderFloodTest, IsBoundedAndLeavesFramesAlone) {
  NavigationClient client(address(), PatientSession());
  ExpectFrames("before", client, 2);
  RawCall call(NavigationClient::OwnChannel(address()), "/intrawarp.v1.RegistrationService/Navigate");
  std::thread flood([&] { Flood(call); });
  std::map<std::string, int> seen;
  const auto guard = std::chrono::steady_clock::now() + kGuard;
  while (!over_ && std::chrono::steady_clock::now() < guard) ++seen[client.Next().Name()];
  const int sent = sent_;
  ExpectFrames("in an open session", client);
  ExpectNewSession("in a new session");
  for (const auto& [name, count] : seen) {
    std::cout << "[ FRAMES   ] meanwhile: " << count << " " << name << "; headers taken: " << sent << "\n";
  }
  EXPECT_EQ(seen.size(), seen.count("ok"));
  EXPECT_LT(sent, kHeaders) << "every header was taken, so nothing bounds them";
  call.Cancel();  // ends a write that waits
  flood.join();
}

}  // namespace
}  // namespace intrawarp::server
