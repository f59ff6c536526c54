// SPDX-License-Identifier: Apache-2.0
// Work that goes on without its call: over broken connections, for other callers, and across a restart.
#include <gmock/gmock.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "intrawarp/v1/operation.grpc.pb.h"
#include "intrawarp/v1/sparse_matrix.grpc.pb.h"
#include "server/operation/operation_table.h"
#include "server/state/file_layer.h"
#include "tests/server/deformed_pair.h"
#include "tests/server/matrix_client.h"
#include "tests/server/service_fixture.h"
#include "tests/server/stages.h"
#include "tests/server/volume_client.h"
#include "tests/tcp_relay.h"

namespace intrawarp::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

struct Answer {
  grpc::Status status;
  v1::Operation operation;
};

// The answer to a call with `detach`: one operation and the end, or an error.
template <typename Response, typename Reader>
Answer AnswerOf(Reader& reader) {
  Answer answer;
  Response response;
  int messages = 0;
  while (reader.Read(&response)) {
    EXPECT_TRUE(response.has_operation()) << response.DebugString();
    answer.operation = response.operation();
    ++messages;
  }
  answer.status = reader.Finish();
  EXPECT_EQ(messages, answer.status.ok() ? 1 : 0);
  return answer;
}

Answer Detached(v1::RegistrationService::Stub& stub, const v1::RegisterRequest& request) {
  grpc::ClientContext rpc;
  auto reader = stub.Register(&rpc, request);
  return AnswerOf<v1::RegisterResponse>(*reader);
}

Answer Detached(v1::SparseMatrixService::Stub& stub, const v1::MultiplyRequest& request) {
  grpc::ClientContext rpc;
  auto reader = stub.Multiply(&rpc, request);
  return AnswerOf<v1::MultiplyResponse>(*reader);
}

class OperationServiceTest : public DeformedPairTest {
 protected:
  explicit OperationServiceTest(const std::function<void(ServerOptions&)>& change = nullptr)
      : DeformedPairTest(ServerLimits(), change) {
    MakeStubs();
  }

  void MakeStubs() {
    sparse_ = v1::SparseMatrixService::NewStub(channel_);
    operations_ = v1::OperationService::NewStub(channel_);
  }

  static v1::RegisterRequest Request(const std::string& id, int iterations = 8) {
    v1::RegisterRequest request = AffineThen(StageKind::kFfd);
    for (v1::Stage& stage : *request.mutable_options()->mutable_stages()) SetIterations(stage, iterations);
    request.set_request_id(id);
    request.set_detach(true);
    return request;
  }
  static v1::MultiplyRequest ProductRequest(const std::string& id) {
    v1::MultiplyRequest request = ProductOf("a", "b");
    request.mutable_keep();
    request.set_request_id(id);
    request.set_detach(true);
    return request;
  }
  void PutMatrices() {
    ASSERT_TRUE(server::Upload(*bulk_, MakeMatrix(RandomCsr<float>(60, 50, 6, 1), "ua", "a"), nullptr, 1 << 20).ok());
    ASSERT_TRUE(server::Upload(*bulk_, MakeMatrix(RandomCsr<float>(50, 70, 6, 2), "ub", "b"), nullptr, 1 << 20).ok());
  }

  Answer GetOperation(const std::string& id, v1::OperationService::Stub* stub = nullptr) {
    Answer answer;
    grpc::ClientContext rpc;
    v1::GetOperationRequest request;
    v1::GetOperationResponse response;
    request.set_name("operations/" + id);
    answer.status = (stub == nullptr ? *operations_ : *stub).GetOperation(&rpc, request, &response);
    answer.operation = response.operation();
    return answer;
  }
  // Until it has ended; the limit guards against a hang.
  Answer Wait(const std::string& id, int seconds = 120) {
    Answer answer;
    grpc::ClientContext rpc;
    v1::WaitOperationRequest request;
    v1::WaitOperationResponse response;
    request.set_name("operations/" + id);
    request.mutable_timeout()->set_seconds(seconds);
    answer.status = operations_->WaitOperation(&rpc, request, &response);
    answer.operation = response.operation();
    return answer;
  }
  Answer Cancel(const std::string& id) {
    Answer answer;
    grpc::ClientContext rpc;
    v1::CancelOperationRequest request;
    v1::CancelOperationResponse response;
    request.set_name("operations/" + id);
    answer.status = operations_->CancelOperation(&rpc, request, &response);
    answer.operation = response.operation();
    return answer;
  }
  v1::ListOperationsResponse List(int page_size = 0, const std::string& token = "") {
    grpc::ClientContext rpc;
    v1::ListOperationsRequest request;
    v1::ListOperationsResponse response;
    request.set_page_size(page_size);
    request.set_page_token(token);
    EXPECT_TRUE(operations_->ListOperations(&rpc, request, &response).ok());
    return response;
  }
  std::string FieldOf(const std::string& transform) { return GetField(WholeField(Id(transform))).chunks.bytes(); }

  std::unique_ptr<v1::SparseMatrixService::Stub> sparse_;
  std::unique_ptr<v1::OperationService::Stub> operations_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(OperationServiceTest);

TEST_P(OperationServiceTest, ARegistrationGoesOnOverACutConnectionAndIsFoundAgain) {
  PutPair();
  v1::RegisterRequest undisturbed = Request("undisturbed");
  undisturbed.set_detach(false);
  const RegisterAnswer whole = Register(undisturbed);
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();

  JobBlocker blocker(context().jobs);
  {
    TcpRelay relay(server_->grpc_address());
    const auto channel = grpc::CreateChannel(relay.address(), grpc::InsecureChannelCredentials());
    const auto stub = v1::RegistrationService::NewStub(channel);
    const Answer begun = Detached(*stub, Request("r1"));
    ASSERT_TRUE(begun.status.ok()) << begun.status.error_message();
    EXPECT_EQ(begun.operation.name(), "operations/r1");
    EXPECT_EQ(begun.operation.kind(), v1::OPERATION_KIND_REGISTER);
    EXPECT_EQ(begun.operation.state(), v1::OPERATION_STATE_QUEUED);
    // A caller that waits over the connection loses it.
    std::thread waiting([&] {
      grpc::ClientContext rpc;
      v1::WaitOperationRequest request;
      v1::WaitOperationResponse response;
      request.set_name("operations/r1");
      EXPECT_EQ(v1::OperationService::NewStub(channel)->WaitOperation(&rpc, request, &response).error_code(),
                grpc::UNAVAILABLE);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    relay.Cut();
    waiting.join();
  }
  EXPECT_EQ(GetOperation("r1").operation.state(), v1::OPERATION_STATE_QUEUED);
  blocker.Release();

  const Answer done = Wait("r1");
  ASSERT_TRUE(done.status.ok()) << done.status.error_message();
  ASSERT_EQ(done.operation.state(), v1::OPERATION_STATE_DONE) << done.operation.DebugString();
  ASSERT_THAT(done.operation.results(), SizeIs(1));
  EXPECT_TRUE(done.operation.has_start_time() && done.operation.has_end_time() && done.operation.has_expire_time());
  EXPECT_EQ(done.operation.progress().unit(), "iterations");
  const std::string& transform = done.operation.results(0);
  const std::string bits = FieldOf(whole.result->transform());
  EXPECT_FALSE(bits.empty());
  EXPECT_EQ(FieldOf(transform), bits);
  EXPECT_EQ(Get(Id(transform)).report().options().SerializeAsString(),
            whole.result->report().options().SerializeAsString());

  // The same request finds it: as an operation, and, without `detach`, as its result.
  const Answer again = Detached(*registration_, Request("r1"));
  EXPECT_EQ(again.operation.SerializeAsString(), done.operation.SerializeAsString());
  v1::RegisterRequest plain = Request("r1");
  plain.set_detach(false);
  EXPECT_EQ(Register(plain).result->transform(), transform);
  EXPECT_EQ(context().transforms.size(), 2);
  v1::RegisterRequest other = Request("r1", 7);
  EXPECT_EQ(ReasonOf(Detached(*registration_, other).status), v1::REQUEST_ID_REUSED);
}

TEST_P(OperationServiceTest, NeitherTheCallsDeadlineNorItsCancelEndsTheWork) {
  PutPair();
  JobBlocker blocker(context().jobs);
  grpc::ClientContext rpc;
  rpc.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  auto reader = registration_->Register(&rpc, Request("r1"));
  v1::RegisterResponse response;
  ASSERT_TRUE(reader->Read(&response));
  rpc.TryCancel();
  reader->Finish();
  AdvanceClock(std::chrono::seconds(60));
  blocker.Release();
  EXPECT_EQ(Wait("r1").operation.state(), v1::OPERATION_STATE_DONE);
}

TEST_P(OperationServiceTest, AProductIsAnOperation) {
  PutMatrices();
  v1::MultiplyRequest undisturbed = ProductRequest("undisturbed");
  undisturbed.set_detach(false);
  const Product whole = Multiply(*sparse_, undisturbed);
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();

  const Answer begun = Detached(*sparse_, ProductRequest("m1"));
  ASSERT_TRUE(begun.status.ok()) << begun.status.error_message();
  EXPECT_EQ(begun.operation.kind(), v1::OPERATION_KIND_MULTIPLY);
  const v1::Operation done = Wait("m1").operation;
  ASSERT_EQ(done.state(), v1::OPERATION_STATE_DONE) << done.DebugString();
  EXPECT_EQ(done.progress().step(), "multiplied");
  EXPECT_EQ(DownloadMatrix(*bulk_, done.results(0)).bytes,
            DownloadMatrix(*bulk_, whole.result->sparse_matrix().name()).bytes);
  // An id is one of all kinds of operation.
  PutPair();
  EXPECT_EQ(ReasonOf(Detached(*registration_, Request("m1")).status), v1::REQUEST_ID_REUSED);
  // One that was made without `detach` is found as an operation, too.
  const Answer found = Detached(*sparse_, ProductRequest("undisturbed"));
  EXPECT_EQ(found.operation.state(), v1::OPERATION_STATE_DONE);
  EXPECT_THAT(found.operation.results(), ElementsAre(whole.result->sparse_matrix().name()));
}

TEST_P(OperationServiceTest, RefusalsNameTheFieldAndLeaveNothing) {
  PutPair();
  PutMatrices();
  const auto expect = [&](const Answer& answer, const std::string& field) {
    EXPECT_EQ(answer.status.error_code(), grpc::INVALID_ARGUMENT) << answer.status.error_message();
    EXPECT_EQ(server::FieldOf(answer.status), field);
  };
  expect(Detached(*registration_, Request("")), "request_id");
  expect(Detached(*registration_, Request("no/id")), "request_id");
  v1::RegisterRequest with_field = Request("r1");
  with_field.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  expect(Detached(*registration_, with_field), "field");
  v1::MultiplyRequest sent = ProductRequest("m1");
  sent.clear_keep();
  expect(Detached(*sparse_, sent), "keep");
  v1::RegisterRequest missing = Request("r1");
  missing.set_moving("volumes/none");
  EXPECT_EQ(Detached(*registration_, missing).status.error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(GetOperation("r1").status.error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(GetOperation("no/id").status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(Wait("r1").status.error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(Cancel("r1").status.error_code(), grpc::NOT_FOUND);
  EXPECT_THAT(List().operations(), SizeIs(0));
  EXPECT_EQ(context().ledger.in_use(Resource::kOperations), 0);
}

TEST_P(OperationServiceTest, AWaitEndsWithItsTime) {
  PutPair();
  JobBlocker blocker(context().jobs);
  ASSERT_TRUE(Detached(*registration_, Request("r1")).status.ok());
  const Answer waited = Wait("r1", 1);
  EXPECT_TRUE(waited.status.ok()) << waited.status.error_message();
  EXPECT_EQ(waited.operation.state(), v1::OPERATION_STATE_QUEUED);
  v1::WaitOperationRequest request;
  v1::WaitOperationResponse response;
  request.set_name("operations/r1");
  request.mutable_timeout()->set_seconds(-1);
  grpc::ClientContext wrong;
  EXPECT_EQ(server::FieldOf(operations_->WaitOperation(&wrong, request, &response)), "timeout");
  blocker.Release();
  EXPECT_EQ(Wait("r1").operation.state(), v1::OPERATION_STATE_DONE);
}

TEST_P(OperationServiceTest, CancellingEndsTheWorkAndARepetitionBeginsAnew) {
  PutPair();
  JobBlocker blocker(context().jobs);
  ASSERT_TRUE(Detached(*registration_, Request("queued")).status.ok());
  EXPECT_TRUE(Cancel("queued").status.ok());
  EXPECT_EQ(Wait("queued").operation.error().code(), grpc::CANCELLED);        // without its turn
  EXPECT_TRUE(Eventually([this] { return context().jobs.pending() == 1; }));  // the blocker's
  blocker.Release();

  ASSERT_TRUE(Detached(*registration_, Request("running", 10000)).status.ok());
  Eventually([&] { return GetOperation("running").operation.state() != v1::OPERATION_STATE_QUEUED; });
  EXPECT_TRUE(Cancel("running").status.ok());
  const v1::Operation cancelled = Wait("running").operation;
  // On a fast device it may have been faster.
  if (cancelled.state() == v1::OPERATION_STATE_FAILED) {
    EXPECT_EQ(cancelled.error().code(), grpc::CANCELLED);
  }
  EXPECT_EQ(context().transforms.size(), cancelled.state() == v1::OPERATION_STATE_DONE ? 1 : 0);

  ASSERT_TRUE(Detached(*registration_, Request("queued")).status.ok());
  EXPECT_EQ(Wait("queued").operation.state(), v1::OPERATION_STATE_DONE);
}

TEST_P(OperationServiceTest, AFailureIsTheOperations) {
  PutPair();
  v1::RegisterRequest request = Request("r1", 10000);
  request.mutable_options()->mutable_budget()->set_nanos(1);
  ASSERT_TRUE(Detached(*registration_, request).status.ok());
  const v1::Operation failed = Wait("r1").operation;
  EXPECT_EQ(failed.state(), v1::OPERATION_STATE_FAILED);
  EXPECT_EQ(ReasonOf(failed.error()), v1::BUDGET_USED_UP);
  EXPECT_THAT(failed.results(), SizeIs(0));
}

TEST_P(OperationServiceTest, ListsByPagesAndForgetsAfterTheTime) {
  PutMatrices();
  for (const char* id : {"c", "a", "b"}) {
    ASSERT_TRUE(Detached(*sparse_, ProductRequest(id)).status.ok());
    Wait(id);
  }
  const v1::ListOperationsResponse first = List(2);
  ASSERT_THAT(first.operations(), SizeIs(2));
  EXPECT_EQ(first.operations(0).name(), "operations/a");
  const v1::ListOperationsResponse second = List(2, first.next_page_token());
  ASSERT_THAT(second.operations(), SizeIs(1));
  EXPECT_EQ(second.operations(0).name(), "operations/c");
  EXPECT_EQ(second.next_page_token(), "");
  AdvanceClock(context().limits.operation_ttl);
  server_->Housekeep();
  EXPECT_THAT(List().operations(), SizeIs(0));
  // Their results have a life of their own.
  EXPECT_EQ(context().matrices.size(), 5);
}

// A server whose clock is so far ahead of its clients' that a call's deadline is near for it and far for them.
class AheadOperationsTest : public OperationServiceTest {
 protected:
  AheadOperationsTest()
      : OperationServiceTest([](ServerOptions& options) {
          options.seams.system_now = [] { return std::chrono::system_clock::now() + kAhead; };
        }) {}
  static constexpr std::chrono::seconds kAhead{59};
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(AheadOperationsTest);

TEST_P(AheadOperationsTest, AWaitWithoutATimeEndsBeforeTheDeadlineOfItsCall) {
  PutPair();
  JobBlocker blocker(context().jobs);
  ASSERT_TRUE(Detached(*registration_, Request("r1")).status.ok());
  grpc::ClientContext rpc;
  rpc.set_deadline(std::chrono::system_clock::now() + kAhead + std::chrono::seconds(1));
  v1::WaitOperationRequest request;
  v1::WaitOperationResponse response;
  request.set_name("operations/r1");
  const grpc::Status status = operations_->WaitOperation(&rpc, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.operation().state(), v1::OPERATION_STATE_QUEUED);
}

class BoundedOperationsTest : public OperationServiceTest {
 protected:
  BoundedOperationsTest() : OperationServiceTest([](ServerOptions& options) { options.limits.max_operations = 2; }) {}
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(BoundedOperationsTest);

TEST_P(BoundedOperationsTest, OneMoreIsRefusedUntilOneHasEnded) {
  PutPair();
  JobBlocker blocker(context().jobs);
  for (const char* id : {"a", "b"}) ASSERT_TRUE(Detached(*registration_, Request(id)).status.ok());
  const Answer refused = Detached(*registration_, Request("c"));
  EXPECT_EQ(ReasonOf(refused.status), v1::TOO_MANY_OPERATIONS);
  EXPECT_EQ(GetOperation("c").status.error_code(), grpc::NOT_FOUND);
  EXPECT_TRUE(Detached(*registration_, Request("a")).status.ok());  // is there
  blocker.Release();
  Wait("a");
  EXPECT_TRUE(Detached(*registration_, Request("c")).status.ok());
  EXPECT_EQ(Wait("c").operation.state(), v1::OPERATION_STATE_DONE);
  Wait("b");
}

// A base of the test, so that it is there before the first server and goes after the last one.
struct StateFolder {
  StateFolder() {
    std::string folder = testing::TempDir() + "/operationXXXXXX";
    folder_ = mkdtemp(folder.data());
  }
  ~StateFolder() { std::filesystem::remove_all(folder_); }

  std::string folder_;
  ServerOptions options_;
};

class DurableOperationsTest : protected StateFolder, public OperationServiceTest {
 protected:
  DurableOperationsTest()
      : OperationServiceTest([this](ServerOptions& options) {
          options.state_dir = folder_;
          options.drain_timeout = std::chrono::milliseconds(100);
          options_ = options;
        }) {}
  void Restart() {
    server_.reset();
    Serve(options_);
    MakeStubs();
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(DurableOperationsTest);

TEST_P(DurableOperationsTest, ARestartFindsWhatEndedAndFailsWhatRan) {
  PutMatrices();
  ASSERT_TRUE(Detached(*sparse_, ProductRequest("done")).status.ok());
  const v1::Operation done = Wait("done").operation;
  ASSERT_EQ(done.state(), v1::OPERATION_STATE_DONE);
  const std::string bits = DownloadMatrix(*bulk_, done.results(0)).bytes;
  std::unique_ptr<JobBlocker> blocker = std::make_unique<JobBlocker>(context().jobs);
  ASSERT_TRUE(Detached(*sparse_, ProductRequest("interrupted")).status.ok());
  // A stop ends what waits, and then waits for the job that runs.
  std::thread releasing([&, &operations = context().operations] {
    EXPECT_TRUE(Eventually([&] { return operations.counts()[1][3] == 1; }));
    blocker->Release();
  });
  Restart();
  releasing.join();

  EXPECT_EQ(GetOperation("done").operation.SerializeAsString(), done.SerializeAsString());
  EXPECT_EQ(DownloadMatrix(*bulk_, done.results(0)).bytes, bits);
  const v1::Operation interrupted = GetOperation("interrupted").operation;
  EXPECT_EQ(interrupted.state(), v1::OPERATION_STATE_FAILED);
  EXPECT_EQ(interrupted.error().code(), grpc::UNAVAILABLE);
  // The same request begins anew.
  ASSERT_TRUE(Detached(*sparse_, ProductRequest("interrupted")).status.ok());
  const v1::Operation anew = Wait("interrupted").operation;
  ASSERT_EQ(anew.state(), v1::OPERATION_STATE_DONE);
  EXPECT_EQ(DownloadMatrix(*bulk_, anew.results(0)).bytes, bits);
}

}  // namespace
}  // namespace intrawarp::server
