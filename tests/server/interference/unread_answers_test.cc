// SPDX-License-Identifier: Apache-2.0
// Another client asks for large answers and never reads them.
#include "tests/server/interference/interference_fixture.h"
#include "tests/server/raw_call.h"

namespace intrawarp::server {
namespace {

class UnreadAnswersTest : public InterferenceTest {
 protected:
  // Its field has 10.6 MB, a third of the pinned memory.
  static Geometry LargeGrid() { return BoxGeometry(96, 96, 96); }

  UnreadAnswersTest() {
    Put("large", LargeGrid());
    Put("medium", BoxGeometry(40, 40, 40));
  }

  // A connection that takes little of what nobody reads.
  std::shared_ptr<grpc::Channel> NarrowChannel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 10);
    return grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), arguments);
  }
  static std::string Register(const std::string& volume) {
    v1::RegisterRequest request;
    request.set_fixed("volumes/" + volume);
    request.set_moving("volumes/" + volume);
    v1::RigidStage& stage = *request.mutable_options()->add_stages()->mutable_rigid();
    stage.set_levels(1);
    stage.set_iterations(1);
    request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
    return request.SerializeAsString();
  }
  static std::string Download(const std::string& volume) {
    v1::DownloadRequest request;
    request.set_name("volumes/" + volume);
    return request.SerializeAsString();
  }
  // So many calls, of which the server may refuse some, each past its computation, with an answer that nobody reads.
  void Hang(const std::string& method, const std::string& request, int calls) {
    const auto channel = NarrowChannel();
    for (int n = 0; n < calls; ++n) {
      hung_.push_back(std::make_unique<RawCall>(channel, method));
      ASSERT_TRUE(hung_.back()->Write(request));
      ASSERT_TRUE(hung_.back()->WritesDone());
      hung_.back()->Read();  // the first message, or the end of a call that was refused
    }
    AwaitUsage("the hung calls have computed", [](const v1::Usage& usage) { return usage.jobs() == 0; });
  }

  std::vector<std::unique_ptr<RawCall>> hung_;
};

TEST_F(UnreadAnswersTest, OfRegistrationsDoNotTakeTheFramesMemory) {
  NavigationClient client(address(), PatientSession());
  ExpectFrames("before", client, 2);
  for (const char* volume : {"large", "medium", "patient"}) {
    Hang("/intrawarp.v1.RegistrationService/Register", Register(volume), 8);
  }
  ExpectFrames("in an open session", client);
  ExpectNewSession("in a new session");
}

TEST_F(UnreadAnswersTest, OfDownloadsDoNotTakeTheFramesMemory) {
  NavigationClient client(address(), PatientSession());
  ExpectFrames("before", client, 2);
  for (const char* volume : {"large", "medium", "patient"}) {
    Hang("/intrawarp.v1.BulkService/Download", Download(volume), 16);
  }
  ExpectFrames("in an open session", client);
  ExpectNewSession("in a new session");
}

}  // namespace
}  // namespace intrawarp::server
