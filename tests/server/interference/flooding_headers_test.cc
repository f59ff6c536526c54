// SPDX-License-Identifier: Apache-2.0
// Another client sends headers of frames without pause, and no pixels.
#include <atomic>
#include <thread>

#include "tests/server/interference/interference_fixture.h"
#include "tests/support/eventually.h"

namespace intrawarp::server {
namespace {

// A session that floods until it goes.
class HeaderFlood {
 public:
  HeaderFlood(const std::string& address, const v1::NavigateConfig& config, bool reads)
      : stub_(v1::RegistrationService::NewStub(NavigationClient::OwnChannel(address))) {
    stream_ = stub_->Navigate(&context_);
    v1::NavigateRequest request;
    *request.mutable_config() = config;
    EXPECT_TRUE(stream_->Write(request));
    v1::NavigateResponse opened;
    EXPECT_TRUE(stream_->Read(&opened) && opened.has_opened());
    if (reads) reader_ = std::thread([this] { Read(); });
    writer_ = std::thread([this] { Flood(); });
  }
  ~HeaderFlood() {
    stop_ = true;
    context_.TryCancel();
    writer_.join();
    if (reader_.joinable()) reader_.join();
    (void)stream_->Finish();
  }

  int64_t sent() const { return sent_; }
  int64_t answered() const { return answered_; }
  // Waits until the flood is under way.
  void AwaitFlood(bool reads) const {
    const auto under_way = [&] { return reads ? answered_ >= 200 : sent_ >= 200; };
    EXPECT_TRUE(Eventually(under_way));
  }

 private:
  void Flood() {
    const int64_t bytes = 4 * PatientGrid().voxels();
    v1::NavigateRequest request;
    v1::FrameHeader& header = *request.mutable_frame();
    *header.mutable_geometry() = GeometryToProto(PatientGrid());
    header.set_pixel_type(v1::PIXEL_TYPE_FLOAT32);
    header.set_total_bytes(bytes);
    for (int64_t number = 1; !stop_; ++number) {
      header.set_frame_number(number);
      if (!stream_->Write(request)) return;
      ++sent_;
    }
  }
  void Read() {
    v1::NavigateResponse response;
    while (stream_->Read(&response)) answered_ += response.has_result() ? 1 : 0;
  }

  std::unique_ptr<v1::RegistrationService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::NavigateRequest, v1::NavigateResponse>> stream_;
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> sent_ = 0, answered_ = 0;
  std::thread writer_, reader_;
};

class FloodingHeadersTest : public InterferenceTest {
 protected:
  static v1::NavigateConfig Config(v1::OverloadPolicy policy) {
    v1::NavigateConfig config = PatientSession().config;
    config.set_overload_policy(policy);
    return config;
  }
  // The other session's end gives its memory back a moment later.
  void AwaitPinned(int64_t most, const std::string& when) {
    EXPECT_TRUE(Eventually([&] { return Pinned() <= most; })) << when;
  }
  int64_t Pinned() { return test_.Info().resources().pinned_memory().in_use(); }
};

TEST_F(FloodingHeadersTest, LeaveOthersTheirFrames) {
  NavigationClient client(address(), PatientSession());
  ExpectFrames("before", client, 2);
  for (const auto policy : {v1::OVERLOAD_POLICY_KEEP_ALL, v1::OVERLOAD_POLICY_LATEST_WINS}) {
    for (const bool reads : {true, false}) {
      const std::string who =
          absl::StrCat("beside headers, ", v1::OverloadPolicy_Name(policy), reads ? ", read" : ", unread");
      HeaderFlood flood(address(), Config(policy), reads);
      const int64_t pinned = Pinned();
      flood.AwaitFlood(reads);
      ExpectFrames(who, client);
      ExpectNewSession(who + ", in a new session");
      // The flood takes no memory beyond what its session took when it opened.
      AwaitPinned(pinned, who);
      std::cout << "[ FLOOD    ] " << flood.sent() << " headers, " << flood.answered() << " answered\n";
    }
    // The session that flooded goes with its stream.
    AwaitUsage("one stream is left", [](const v1::Usage& usage) { return usage.streams() == 1; });
  }
  ExpectFrames("after", client, 2);
}

}  // namespace
}  // namespace intrawarp::server
