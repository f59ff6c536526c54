// SPDX-License-Identifier: Apache-2.0
// Requests that a client repeats, ids that it chooses, and results that expire, over the wire.
#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/sparse/csr.h"
#include "intrawarp/v1/sparse_matrix.grpc.pb.h"
#include "server/store/request_table.h"
#include "tests/server/deformed_pair.h"
#include "tests/server/service_fixture.h"
#include "tests/server/stages.h"

namespace intrawarp::server {
namespace {

class RequestIdTest : public DeformedPairTest {
 protected:
  RequestIdTest() : sparse_(v1::SparseMatrixService::NewStub(channel_)) {}

  v1::RegisterRequest Request(const std::string& request_id, bool with_field = true) {
    v1::RegisterRequest request = AffineThen(StageKind::kFfd);
    request.set_request_id(request_id);
    if (with_field) request.mutable_field()->set_encoding(v1::FIELD_ENCODING_INT16);
    return request;
  }

  // Makes "sparseMatrices/m" resident: the identity of two rows.
  void PutMatrix(const std::string& digest = "m") {
    OnDevice(0, [&](const ExecContext& ctx) {
      auto matrix = CsrMatrix::Upload(ctx.device(), ctx.stream(), HostCsr<float>{2, 2, {0, 1, 2}, {0, 1}, {1, 1}});
      ASSERT_TRUE(matrix.ok()) << matrix.status();
      auto stored = std::make_shared<StoredMatrix>();
      stored->id = "m";
      stored->digest = digest;
      stored->matrix = *std::move(matrix);
      EXPECT_TRUE(context().matrices.Insert(std::move(stored)).ok());
    });
  }
  static v1::MultiplyRequest Product(const std::string& request_id) {
    v1::MultiplyRequest request;
    request.set_a("sparseMatrices/m");
    request.set_b("sparseMatrices/m");
    request.mutable_keep();
    request.set_request_id(request_id);
    return request;
  }
  struct ProductAnswer {
    grpc::Status status;
    v1::MultiplyResult result;
  };
  ProductAnswer Multiply(const v1::MultiplyRequest& request) {
    ProductAnswer answer;
    grpc::ClientContext rpc;
    auto reader = sparse_->Multiply(&rpc, request);
    v1::MultiplyResponse response;
    while (reader->Read(&response)) {
      if (response.has_result()) answer.result = response.result();
    }
    answer.status = reader->Finish();
    return answer;
  }

  const std::unique_ptr<v1::SparseMatrixService::Stub> sparse_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(RequestIdTest);

TEST_P(RequestIdTest, ARepeatedRegisterFindsTheFirstResultAndItsField) {
  PutPair();
  const RegisterAnswer first = Register(Request("r"));
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  // Also without the volumes, which the client may have deleted meanwhile.
  ASSERT_TRUE(context().volumes.Erase("fixed").ok());
  const RegisterAnswer again = Register(Request("r"));
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.result->SerializeAsString(), first.result->SerializeAsString());
  EXPECT_EQ(again.field->SerializeAsString(), first.field->SerializeAsString());
  EXPECT_TRUE(again.chunks.bytes() == first.chunks.bytes());
  EXPECT_TRUE(again.progress.empty());
  EXPECT_EQ(context().transforms.size(), 1);
}

TEST_P(RequestIdTest, ARetryAfterTheStreamWasCutFindsTheResult) {
  PutPair();
  const v1::RegisterRequest request = Request("cut", /*with_field=*/false);
  {
    grpc::ClientContext rpc;
    auto reader = registration_->Register(&rpc, request);
    ASSERT_TRUE(Eventually([this] { return context().transforms.size() == 1; }));
    rpc.TryCancel();  // nothing was read
    v1::RegisterResponse response;
    while (reader->Read(&response)) {
    }
    (void)reader->Finish();
  }
  ASSERT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 0; }));
  EXPECT_EQ(context().transforms.size(), 1);
  const RegisterAnswer again = Register(request);
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(context().transforms.size(), 1);
  EXPECT_TRUE(context().transforms.Find(again.result->transform().substr(11)).ok());
}

TEST_P(RequestIdTest, ACallThatWasCutBeforeItsResultBeginsAnew) {
  PutPair();
  JobBlocker blocker(context().jobs);
  {
    grpc::ClientContext rpc;
    auto reader = registration_->Register(&rpc, Request("r"));
    ASSERT_TRUE(Eventually([this] { return context().register_requests.size() == 1; }));
    const RegisterAnswer meanwhile = Register(Request("r"));
    EXPECT_EQ(meanwhile.status.error_code(), grpc::ABORTED);
    EXPECT_EQ(ReasonOf(meanwhile.status), v1::REQUEST_IN_PROGRESS);
    rpc.TryCancel();
    v1::RegisterResponse response;
    while (reader->Read(&response)) {
    }
    (void)reader->Finish();
  }
  blocker.Release();
  ASSERT_TRUE(Eventually([this] { return context().register_requests.size() == 0; }));
  EXPECT_EQ(context().transforms.size(), 0);
  EXPECT_TRUE(Register(Request("r")).status.ok());
}

TEST_P(RequestIdTest, AnIdBelongsToOneContentForAsLongAsTheResultExists) {
  PutPair();
  const RegisterAnswer first = Register(Request("r"));
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  v1::RegisterRequest other = Request("r");
  other.mutable_options()->set_best_effort(true);
  const RegisterAnswer refused = Register(other);
  EXPECT_EQ(refused.status.error_code(), grpc::ALREADY_EXISTS);
  EXPECT_EQ(ReasonOf(refused.status), v1::REQUEST_ID_REUSED);
  ASSERT_TRUE(context().transforms.Erase(first.result->transform().substr(11)).ok());
  EXPECT_TRUE(Register(other).status.ok());
}

// The next patient's volumes under the names of the one before.
TEST_P(RequestIdTest, ARequestIsAnotherOneOnceAnInputWasReplaced) {
  PutPair();
  const auto put = [&](const std::string& id, const Geometry& grid, const std::string& digest) {
    PutVolume(id, grid, std::vector<float>(static_cast<size_t>(grid.voxels()), 1), digest);
  };
  put("mask", FixedGrid(), "mask");
  put("fixed_weight", FixedGrid(), "fixed_weight");
  put("moving_weight", MovingGrid(), "moving_weight");
  Transform start(AffineMap::Identity());
  PutTransform("start", start);
  v1::RegisterRequest request = Request("r", /*with_field=*/false);
  request.mutable_options()->set_fixed_mask("volumes/mask");
  request.mutable_options()->set_fixed_weight("volumes/fixed_weight");
  request.mutable_options()->set_moving_weight("volumes/moving_weight");
  request.mutable_options()->set_initial_transform("transforms/start");
  const RegisterAnswer first = Register(request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();

  const auto expect_reused = [&](const char* what) {
    const RegisterAnswer refused = Register(request);
    EXPECT_EQ(refused.status.error_code(), grpc::ALREADY_EXISTS) << what;
    EXPECT_EQ(ReasonOf(refused.status), v1::REQUEST_ID_REUSED) << what;
  };
  const auto expect_first = [&](const char* what) {
    const RegisterAnswer again = Register(request);
    ASSERT_TRUE(again.status.ok()) << what << ": " << again.status.error_message();
    EXPECT_EQ(again.result->transform(), first.result->transform()) << what;
  };
  for (const auto& [id, grid] : {std::pair{"fixed", FixedGrid()},
                                 {"moving", MovingGrid()},
                                 {"mask", FixedGrid()},
                                 {"fixed_weight", FixedGrid()},
                                 {"moving_weight", MovingGrid()}}) {
    ASSERT_TRUE(context().volumes.Erase(id).ok());
    expect_first("deleted");
    put(id, grid, "of another patient");
    expect_reused(id);
    ASSERT_TRUE(context().volumes.Erase(id).ok());
    put(id, grid, id);
    expect_first("the same bytes");
  }
  ASSERT_TRUE(context().transforms.Erase("start").ok());
  expect_first("deleted");
  PutTransform("start", start);
  expect_reused("computed anew");
}

TEST_P(RequestIdTest, AProductIsAnotherOneOnceAnOperandWasReplaced) {
  PutMatrix();
  const ProductAnswer first = Multiply(Product("p"));
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  ASSERT_TRUE(context().matrices.Erase("m").ok());
  EXPECT_TRUE(Multiply(Product("p")).status.ok()) << "deleted";
  PutMatrix("of another patient");
  EXPECT_EQ(ReasonOf(Multiply(Product("p")).status), v1::REQUEST_ID_REUSED);
  ASSERT_TRUE(context().matrices.Erase("m").ok());
  PutMatrix();
  const ProductAnswer again = Multiply(Product("p"));
  EXPECT_EQ(again.result.SerializeAsString(), first.result.SerializeAsString());
}

TEST_P(RequestIdTest, AnOperationIsAnotherOneOnceAnInputWasReplaced) {
  PutPair();
  v1::RegisterRequest request = Request("op", /*with_field=*/false);
  request.set_detach(true);
  const auto ask = [&] {
    grpc::ClientContext rpc;
    auto reader = registration_->Register(&rpc, request);
    v1::RegisterResponse response;
    while (reader->Read(&response)) EXPECT_EQ(response.operation().name(), "operations/op");
    return reader->Finish();
  };
  ASSERT_TRUE(ask().ok());
  ASSERT_TRUE(Eventually([this] { return context().transforms.size() == 1; }));
  EXPECT_TRUE(ask().ok());
  ASSERT_TRUE(context().volumes.Erase("moving").ok());
  EXPECT_TRUE(ask().ok()) << "deleted";
  const std::vector<float> voxels(static_cast<size_t>(MovingGrid().voxels()), 1);
  PutVolume("moving", MovingGrid(), voxels, "of another patient");
  EXPECT_EQ(ReasonOf(ask()), v1::REQUEST_ID_REUSED);
}

TEST_P(RequestIdTest, ATransformHasTheWantedIdOnce) {
  PutPair();
  v1::RegisterRequest request = Request("");
  request.set_transform_id("mine");
  const RegisterAnswer first = Register(request), second = Register(request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_EQ(first.result->transform(), "transforms/mine");
  EXPECT_EQ(second.status.error_code(), grpc::ALREADY_EXISTS);
  EXPECT_EQ(ReasonOf(second.status), v1::RESOURCE_EXISTS);
}

TEST_P(RequestIdTest, ATransformGoesWhenItsTimeIsOver) {
  PutPair();
  v1::RegisterRequest request = Request("");
  request.mutable_ttl()->set_seconds(3600);
  const RegisterAnswer answer = Register(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  v1::GetTransformRequest get;
  get.set_name(answer.result->transform());
  v1::GetTransformResponse response;
  {
    grpc::ClientContext rpc;
    ASSERT_TRUE(transforms_->GetTransform(&rpc, get, &response).ok());
  }
  EXPECT_EQ(response.transform().expire_time().seconds(), response.transform().create_time().seconds() + 3600);
  AdvanceClock(std::chrono::seconds(3590));
  server_->Housekeep();
  EXPECT_EQ(context().transforms.size(), 1);
  AdvanceClock(std::chrono::seconds(10));
  server_->Housekeep();
  EXPECT_EQ(context().transforms.size(), 0);
  grpc::ClientContext rpc;
  const grpc::Status gone = transforms_->GetTransform(&rpc, get, &response);
  EXPECT_EQ(ReasonOf(gone), v1::RESOURCE_NOT_FOUND);
}

TEST_P(RequestIdTest, ARepeatedMultiplyFindsTheMatrixUntilItExpires) {
  PutMatrix();
  v1::MultiplyRequest request = Product("p");
  request.mutable_keep()->mutable_ttl()->set_seconds(60);
  const ProductAnswer first = Multiply(request), again = Multiply(request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(first.result.SerializeAsString(), again.result.SerializeAsString());
  EXPECT_EQ(context().matrices.size(), 2);
  const v1::MultiplyOptions& options = first.result.report().options();
  EXPECT_EQ(options.precision(), v1::PRECISION_FP32);
  EXPECT_EQ(options.semiring(), v1::SEMIRING_PLUS_TIMES);
  EXPECT_TRUE(options.has_transpose_a() && options.has_complement_mask() && options.has_alpha());

  v1::MultiplyRequest other = request;
  other.mutable_options()->set_alpha(2);
  EXPECT_EQ(ReasonOf(Multiply(other).status), v1::REQUEST_ID_REUSED);

  AdvanceClock(std::chrono::seconds(60));
  server_->Housekeep();
  EXPECT_EQ(context().matrices.size(), 1);
  const ProductAnswer anew = Multiply(request);
  ASSERT_TRUE(anew.status.ok()) << anew.status.error_message();
  EXPECT_NE(anew.result.sparse_matrix().name(), first.result.sparse_matrix().name());
}

TEST_P(RequestIdTest, TheReportEchoesEveryFieldOfTheOptionsAsResolved) {
  PutPair();
  const RegisterAnswer answer = Register(Request(""));
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const v1::RegistrationOptions& options = answer.result->report().options();
  EXPECT_TRUE(options.has_best_effort());
  ASSERT_EQ(options.stages_size(), 2);
  for (v1::Stage stage : options.stages()) {
    const google::protobuf::Message& resolved = OptionsOf(stage);
    for (int i = 0; i < resolved.GetDescriptor()->field_count(); ++i) {
      const google::protobuf::FieldDescriptor* field = resolved.GetDescriptor()->field(i);
      EXPECT_TRUE(resolved.GetReflection()->HasField(resolved, field)) << field->full_name();
    }
  }
  EXPECT_EQ(options.stages(1).ffd().levels(), answer.result->report().stages(1).levels_size());
}

}  // namespace
}  // namespace intrawarp::server
