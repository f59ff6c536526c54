// SPDX-License-Identifier: Apache-2.0
// Operations as the client library and the command line have them, against a server whose device the test holds busy:
// so that an operation is queued for as long as the test wants.
#include <gmock/gmock.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "client/cpp/rpc_status.h"
#include "tests/client/process.h"
#include "tests/server/deformed_pair.h"
#include "tests/tcp_relay.h"

namespace intrawarp::server {
namespace {

using client::ProcessResult;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

constexpr char kTime[] = "[-0-9]+T[:0-9]+(Z|\\+00:00)";

class OperationClientTest : public DeformedPairTest {
 protected:
  void SetUp() override {
    DeformedPairTest::SetUp();
    PutPair();
    client_ = *client::Client::Connect(server_->grpc_address());
    blocker_ = std::make_unique<JobBlocker>(context().jobs);
  }
  void TearDown() override {
    blocker_.reset();
    DeformedPairTest::TearDown();
  }

  static v1::RegisterRequest Request(const std::string& id) {
    v1::RegisterRequest request = AffineThen(StageKind::kFfd);
    for (v1::Stage& stage : *request.mutable_options()->mutable_stages()) SetIterations(stage, 2);
    request.set_request_id(id);
    return request;
  }
  ProcessResult Run(const std::vector<std::string>& arguments) const {
    std::vector<std::string> all = {INTRAWARP_CLI, "--server=" + server_->grpc_address()};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return client::RunProcess(all);
  }
  // Runs what has to succeed; its stdout.
  std::string Succeed(const std::vector<std::string>& arguments) const {
    const ProcessResult result = Run(arguments);
    EXPECT_EQ(result.exit_status, 0) << arguments[0] << ": " << result.err;
    EXPECT_EQ(result.err, "");
    return result.out;
  }
  // Runs what has to fail with one line that begins with the code and names the cause.
  void Fail(const std::vector<std::string>& arguments, const std::string& code, const std::string& cause) const {
    const ProcessResult result = Run(arguments);
    EXPECT_EQ(result.exit_status, 1) << result.out;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, StartsWith("intrawarp: " + code + ": "));
    EXPECT_THAT(result.err, HasSubstr(cause));
  }
  void Wrong(const std::vector<std::string>& arguments, const std::string& cause) const {
    const ProcessResult result = Run(arguments);
    EXPECT_EQ(result.exit_status, 2) << result.out;
    EXPECT_THAT(result.err, HasSubstr(cause));
  }
  std::vector<std::string> DetachedRegister(const std::string& id) const {
    return {"register",
            "--fixed=volumes/fixed",
            "--moving=volumes/moving",
            "--method=affine,ffd",
            "--iterations=2",
            "--levels=2",
            "--detach",
            "--request_id=" + id};
  }

  std::unique_ptr<client::Client> client_;
  std::unique_ptr<JobBlocker> blocker_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(OperationClientTest);

TEST_P(OperationClientTest, TheLibraryBeginsFindsAndWaitsForARegistration) {
  const auto begun = client_->StartRegister(Request("r1"));
  ASSERT_OK(begun.status());
  EXPECT_EQ(begun->name(), "operations/r1");
  EXPECT_EQ(begun->kind(), v1::OPERATION_KIND_REGISTER);
  EXPECT_EQ(begun->state(), v1::OPERATION_STATE_QUEUED);
  // The same request again, with a client of its own.
  const auto other = *client::Client::Connect(server_->grpc_address());
  const auto again = other->StartRegister(Request("r1"));
  ASSERT_OK(again.status());
  EXPECT_EQ(again->SerializeAsString(), begun->SerializeAsString());
  // Without an id it gets one.
  const auto unnamed = client_->StartRegister(Request(""));
  ASSERT_OK(unnamed.status());
  EXPECT_THAT(unnamed->name(), MatchesRegex("operations/[-0-9a-f]{36}"));

  const auto listed = client_->ListOperations();
  ASSERT_OK(listed.status());
  EXPECT_EQ(listed->size(), 2);
  EXPECT_EQ(client_->GetOperation("operations/r1")->SerializeAsString(), begun->SerializeAsString());
  EXPECT_TRUE(absl::IsNotFound(client_->GetOperation("operations/r2").status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      client_->WaitOperation("operations/r1", client::CallOptions{.timeout = std::chrono::milliseconds(30)}).status()));
  const auto still = client_->WaitOperation("operations/r1", std::chrono::milliseconds(1), {});
  ASSERT_OK(still.status());
  EXPECT_EQ(still->state(), v1::OPERATION_STATE_QUEUED);

  blocker_->Release();
  const auto done = client_->WaitOperation("operations/r1");
  ASSERT_OK(done.status());
  ASSERT_EQ(done->state(), v1::OPERATION_STATE_DONE) << done->ShortDebugString();
  ASSERT_EQ(done->results_size(), 1);
  EXPECT_OK(client_->GetTransform(done->results(0)).status());
  const auto second = client_->WaitOperation(unnamed->name());
  ASSERT_OK(second.status());
  EXPECT_EQ(second->state(), v1::OPERATION_STATE_DONE) << second->ShortDebugString();
  EXPECT_EQ(client_->CancelOperation("operations/r1")->SerializeAsString(), done->SerializeAsString())
      << "a cancel has no effect on what has ended";
}

TEST_P(OperationClientTest, AWaitOutlivesItsConnections) {
  constexpr int kCuts = 2;
  ASSERT_OK(client_->StartRegister(Request("r1")).status());
  TcpRelay relay(server_->grpc_address(), {kCuts, [] { return 300; }});
  const auto over_relay = *client::Client::Connect(relay.address());
  absl::StatusOr<v1::Operation> done = absl::UnknownError("");
  std::thread waiting([&] { done = over_relay->WaitOperation("operations/r1"); });
  EXPECT_TRUE(Eventually([&] { return relay.cuts() == kCuts; })) << relay.cuts();
  blocker_->Release();
  waiting.join();
  ASSERT_OK(done.status());
  EXPECT_EQ(done->state(), v1::OPERATION_STATE_DONE) << done->ShortDebugString();
}

TEST_P(OperationClientTest, ACancelledOperationHasFailed) {
  ASSERT_OK(client_->StartRegister(Request("r1")).status());
  ASSERT_OK(client_->CancelOperation("operations/r1").status());
  const auto ended = client_->WaitOperation("operations/r1");
  ASSERT_OK(ended.status()) << "the wait did not fail, the operation did";
  EXPECT_EQ(ended->state(), v1::OPERATION_STATE_FAILED);
  EXPECT_TRUE(absl::IsCancelled(client::FromRpcStatus(ended->error())));
  EXPECT_EQ(ended->results_size(), 0);
  EXPECT_TRUE(absl::IsNotFound(client_->CancelOperation("operations/r2").status()));
}

TEST_P(OperationClientTest, TheCommandLineGoesFromDetachToResult) {
  EXPECT_EQ(Succeed({"operation", "list"}), "");
  EXPECT_EQ(Succeed(DetachedRegister("r1")), "operations/r1\n");
  EXPECT_EQ(Succeed(DetachedRegister("r1")), "operations/r1\n") << "a repetition finds it";
  EXPECT_EQ(Succeed(DetachedRegister("r2")), "operations/r2\n");
  const std::string queued = absl::StrCat("operations/r1\tregister\tqueued\t", kTime, "\t-\t.*\n");
  EXPECT_THAT(Succeed({"operation", "get", "r1"}), MatchesRegex(queued));
  EXPECT_THAT(Succeed({"operation", "get", "operations/r1"}), MatchesRegex(queued));
  EXPECT_THAT(Succeed({"operation", "list"}),
              MatchesRegex(absl::StrCat(queued, "operations/r2\tregister\tqueued\t", kTime, "\t-\t.*\n")));
  Fail({"operation", "wait", "r1", "--timeout_s=0.05"}, "DEADLINE_EXCEEDED", "");

  EXPECT_THAT(Succeed({"operation", "cancel", "r2"}), StartsWith("operations/r2\tregister\t"));
  Fail({"operation", "wait", "r2"}, "CANCELLED", "");
  EXPECT_THAT(Succeed({"operation", "get", "r2"}),
              MatchesRegex(absl::StrCat("operations/r2\tregister\tfailed\t", kTime, "\t", kTime, "\tCANCELLED: .*\n")));

  blocker_->Release();
  const std::string transform = Succeed({"operation", "wait", "r1"});
  EXPECT_THAT(transform, MatchesRegex("transforms/[-0-9a-zA-Z]+\n"));
  EXPECT_EQ(Succeed({"operation", "wait", "operations/r1"}), transform) << "what has ended is told again";
  EXPECT_THAT(Succeed({"operation", "get", "r1"}),
              MatchesRegex(absl::StrCat("operations/r1\tregister\tdone\t", kTime, "\t", kTime, "\t",
                                        transform.substr(0, transform.size() - 1), "\n")));
  EXPECT_THAT(Succeed({"transform", "list"}), HasSubstr(transform.substr(0, transform.size() - 1)));
}

TEST_P(OperationClientTest, TheCommandLineDetachesProductsAndVolumesOfFiles) {
  const client::TemporaryFolder folder;
  std::ofstream(folder / "a.mtx") << "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 2\n2 2 3\n";
  EXPECT_EQ(Succeed({"multiply", "--a=" + (folder / "a.mtx"), "--keep=c", "--detach", "--request_id=p1"}),
            "operations/p1\n");
  EXPECT_THAT(Succeed({"operation", "get", "p1"}), StartsWith("operations/p1\tmultiply\tqueued\t"));
  EXPECT_EQ(Succeed({"matrix", "list"}), "") << "what the command uploaded is gone for others";
  blocker_->Release();
  EXPECT_EQ(Succeed({"operation", "wait", "p1"}), "matrices/c\n");
  Succeed({"matrix", "get", "matrices/c", "--out=" + (folder / "c.mtx")});
  EXPECT_THAT(client::FileContents(folder / "c.mtx"), HasSubstr("\n1 1 4\n2 2 9\n"));
}

TEST_P(OperationClientTest, WrongCommandsHaveTheirCause) {
  Fail({"operation", "get", "nobody"}, "NOT_FOUND", "operations/nobody");
  Fail({"operation", "wait", "nobody"}, "NOT_FOUND", "operations/nobody");
  Fail({"operation", "cancel", "nobody"}, "NOT_FOUND", "operations/nobody");
  Fail({"register", "--fixed=volumes/nobody", "--moving=volumes/moving", "--method=affine", "--detach"}, "NOT_FOUND",
       "volumes/nobody");
  EXPECT_EQ(Succeed({"operation", "list"}), "") << "what was refused is not an operation";
  const std::vector<std::string> registration = {"register", "--fixed=volumes/fixed", "--moving=volumes/moving",
                                                 "--method=affine"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = registration;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  Wrong(with({"--request_id=r1"}), "--request_id");
  Wrong(with({"--detach", "--field=f.nii.gz"}), "--field");
  Wrong(with({"--detach", "--report=r.json"}), "--report");
  Wrong(with({"--detach", "--field_stride=2"}), "--field_stride");
  Wrong(with({"--detach", "--montage_at=0,0,0"}), "--montage_at");
  Wrong(with({"--detach", "--error_at=p.csv"}), "--error_at");
  Wrong({"multiply", "--a=matrices/a", "--out=c.mtx", "--detach"}, "--detach");
  Wrong({"multiply", "--a=matrices/a", "--keep=c", "--request_id=p1"}, "--request_id");
  Wrong({"operation", "wait", "r1", "--timeout_s=0"}, "--timeout_s");
  Wrong({"operation", "get"}, "ID");
  EXPECT_EQ(Succeed(DetachedRegister("r1")), "operations/r1\n");
  Fail(
      {"register", "--fixed=volumes/fixed", "--moving=volumes/moving", "--method=rigid", "--detach", "--request_id=r1"},
      "ALREADY_EXISTS", "REQUEST_ID_REUSED");
}

}  // namespace
}  // namespace intrawarp::server
