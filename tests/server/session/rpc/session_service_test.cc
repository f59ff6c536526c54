// SPDX-License-Identifier: Apache-2.0
#include "server/session/rpc/session_service.h"

#include "tests/server/session/session_fixture.h"

namespace intrawarp::server {
namespace {

class SessionServiceTest : public SessionTest {
 protected:
  static v1::NavigateConfig Named(const std::string& id) {
    v1::NavigateConfig config = RigidConfig();
    config.set_session_id(id);
    return config;
  }
  grpc::Status Get(const std::string& name, v1::Session* session) {
    grpc::ClientContext rpc;
    v1::GetSessionRequest request;
    v1::GetSessionResponse response;
    request.set_name(name);
    const grpc::Status status = stub_->GetSession(&rpc, request, &response);
    *session = response.session();
    return status;
  }
  grpc::Status Close(const std::string& name, v1::Session* session) {
    grpc::ClientContext rpc;
    v1::CloseSessionRequest request;
    v1::CloseSessionResponse response;
    request.set_name(name);
    const grpc::Status status = stub_->CloseSession(&rpc, request, &response);
    *session = response.session();
    return status;
  }
  grpc::Status List(int size, const std::string& token, v1::ListSessionsResponse* response) {
    grpc::ClientContext rpc;
    v1::ListSessionsRequest request;
    request.set_page_size(size);
    request.set_page_token(token);
    return stub_->ListSessions(&rpc, request, response);
  }

  std::unique_ptr<v1::SessionService::Stub> stub_ = v1::SessionService::NewStub(channel_);
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(SessionServiceTest);

TEST_P(SessionServiceTest, GetsAndClosesASession) {
  auto carrier = Open(Named("s"));
  ASSERT_OK(carrier->Send(GoodFrame(3)));
  Answers(*carrier, 1);
  v1::Session session;
  ASSERT_TRUE(Get("sessions/s", &session).ok());
  EXPECT_EQ(session.name(), "sessions/s");
  EXPECT_EQ(session.state(), v1::SESSION_STATE_ACTIVE);
  EXPECT_EQ(session.last_frame_number(), 3);
  EXPECT_EQ(session.statistics().frames_ok(), 1);
  EXPECT_EQ(session.config().fixed(), "volumes/resident");

  ASSERT_TRUE(Close("sessions/s", &session).ok());
  EXPECT_EQ(session.state(), v1::SESSION_STATE_CLOSED);
  EXPECT_EQ(session.statistics().frames_ok(), 1);
  EXPECT_EQ(carrier->ended().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(context().transforms.size(), 0);
  EXPECT_EQ(Get("sessions/s", &session).error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(Close("sessions/s", &session).error_code(), grpc::NOT_FOUND);
}

TEST_P(SessionServiceTest, NamesWhatIsWrong) {
  v1::Session session;
  v1::ListSessionsResponse page;
  for (const grpc::Status& status : {Get("s", &session), Close("volumes/s", &session)}) {
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    EXPECT_EQ(FieldOf(status), "name");
  }
  EXPECT_EQ(FieldOf(List(-1, "", &page)), "page_size");
  EXPECT_EQ(FieldOf(List(1, "token", &page)), "page_token");
}

TEST_P(SessionServiceTest, ListsByPages) {
  std::vector<std::unique_ptr<Carrier>> carriers;
  for (const char* id : {"b", "a", "c"}) carriers.push_back(Open(Named(id)));
  carriers[0]->Break();
  v1::ListSessionsResponse first, second;
  ASSERT_TRUE(List(2, "", &first).ok());
  ASSERT_EQ(first.sessions_size(), 2);
  EXPECT_EQ(first.sessions(0).name(), "sessions/a");
  EXPECT_EQ(first.sessions(1).name(), "sessions/b");
  EXPECT_EQ(first.sessions(1).state(), v1::SESSION_STATE_DETACHED);
  ASSERT_TRUE(List(2, first.next_page_token(), &second).ok());
  ASSERT_EQ(second.sessions_size(), 1);
  EXPECT_EQ(second.sessions(0).name(), "sessions/c");
  EXPECT_EQ(second.next_page_token(), "");
}

}  // namespace
}  // namespace intrawarp::server
