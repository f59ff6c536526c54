// SPDX-License-Identifier: Apache-2.0
// Products that wait, are cancelled, are too large, or are under way when the server stops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/status_macros.h"
#include "server/monitor/registry.h"
#include "server/service/matrix_service.h"
#include "tests/server/gated_device.h"
#include "tests/server/job_blocker.h"
#include "tests/server/matrix_client.h"
#include "tests/server/sparse/matrix_fixture.h"
#include "tests/server/test_server.h"

namespace intrawarp::server {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(MatrixServiceTest, ADeadlineThatTheQueueLeavesNoTimeForIsRefusedAtOnce) {
  Put("a", RandomCsr<float>(50, 50, 4, 17));
  const auto idle = [](const v1::Usage& u) { return u.streams() == 0 && u.jobs() == 0; };
  for (int i = 0; i < CostModel::kMinSamples; ++i) {
    ASSERT_TRUE(Multiply(*stub_, ProductOf("a", "a")).status.ok());
    test_.WaitForUsage(idle);  // and the cost is learnt
  }
  JobBlocker blocker(context().jobs);
  Job job;  // interactive: it comes before the product
  job.predicted = std::chrono::hours(1);
  job.run = [](const absl::StatusOr<const ExecContext*>&) {};
  ASSERT_TRUE(context().jobs.Submit(std::move(job)).ok());
  grpc::ClientContext call;
  call.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(10));
  auto reader = stub_->Multiply(&call, ProductOf("a", "a"));
  v1::MultiplyResponse response;
  EXPECT_FALSE(reader->Read(&response));
  const grpc::Status status = reader->Finish();
  EXPECT_STATUS(status, grpc::DEADLINE_EXCEEDED, "deadline cannot be met");
  EXPECT_EQ(DetailsOf(status).reason, "DEADLINE_UNREACHABLE");
  EXPECT_TRUE(DetailsOf(status).retry);
}

TEST_F(MatrixServiceTest, DeletedFactorsServeTheProductThatHoldsThem) {
  const HostCsr<float> a = RandomCsr<float>(50, 50, 4, 18);
  Put("a", a);
  JobBlocker blocker(context().jobs);
  Product product;
  std::thread client([&] { product = Multiply(*stub_, ProductOf("a", "a")); });
  test_.WaitForUsage([](const v1::Usage& u) { return u.jobs() == 2; });
  EXPECT_TRUE(Delete("sparseMatrices/a").ok());
  EXPECT_GT(test_.Info().usage().resident_bytes(), 0);
  blocker.Release();
  client.join();
  ASSERT_TRUE(product.status.ok()) << product.status.error_message();
  EXPECT_TRUE(EntriesOf(CsrFromBytes<float>(product.header->shape(), product.bytes)) == Reference(a, a));
  EXPECT_TRUE(Nothing(test_.WaitForUsage(Nothing)));
}

// Says that it has started, and computes until Go.
class FrameGate {
 public:
  explicit FrameGate(JobQueue& jobs) {
    Job job;
    job.job_class = JobClass::kFrame;
    job.run = [this](const absl::StatusOr<const ExecContext*>&) {
      started_.set_value();
      go_.get_future().wait();
    };
    EXPECT_TRUE(jobs.Submit(std::move(job)).ok());
  }
  void AwaitStart() { started_.get_future().wait(); }
  void Go() { go_.set_value(); }

 private:
  std::promise<void> started_, go_;
};

struct Gates {
  DeviceGates gates_;
};

// 360 million multiplications and 200 MB, far more than a stream that is not read takes.
class LongProductTest : protected Gates, public MatrixServiceTest {
 protected:
  LongProductTest() : MatrixServiceTest(Options(gates_)) { Put("a", RandomCsr<float>(5000, 5000, 300, 22)); }
  static ServerOptions Options(DeviceGates& gates) {
    ServerOptions options = TestServer::DefaultOptions();
    options.open_device = [&gates](absl::string_view spec) -> absl::StatusOr<std::unique_ptr<Device>> {
      INTRAWARP_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(spec));
      return std::make_unique<GatedDevice>(std::move(device), gates);
    };
    options.limits.resident_capacity_bytes = int64_t{4} << 30;
    options.limits.pinned_capacity_bytes = int64_t{1} << 30;
    return options;
  }
  v1::Usage Idle() {
    return test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0 && u.jobs() == 0; });
  }
  void ExpectNothingIsLeft(const v1::Usage& before, const std::string& outcomes) {
    EXPECT_EQ(Idle().ShortDebugString(), before.ShortDebugString());
    EXPECT_THAT(Names(), ElementsAre("sparseMatrices/a"));
    const std::string text = context().metrics.registry.Scrape();
    EXPECT_THAT(text, ContainsRegex("intrawarp_products_total[{]outcome=\"(" + outcomes + ")\"[}] 1\n"));
    EXPECT_THAT(text, HasSubstr("intrawarp_products_total{outcome=\"ok\"} 0\n"));
    // The server goes on.
    Put("one", Full(1, 1, 3));
    EXPECT_TRUE(Multiply(*stub_, ProductOf("one", "one")).status.ok());
  }
};

TEST_F(LongProductTest, AFrameStartsAtItsNextCheckpoint) {
  v1::MultiplyRequest request = ProductOf("a", "a");
  request.mutable_keep()->set_id("product");
  grpc::ClientContext call;
  // The frame comes in the middle of the product's first step, however fast the device is.
  gates_.allocate.Close();
  auto reader = stub_->Multiply(&call, request);
  gates_.allocate.AwaitSomebody();
  FrameGate frame(context().jobs);
  gates_.allocate.Open();
  frame.AwaitStart();
  EXPECT_EQ(context().jobs.started(JobClass::kBatch), 1) << "held, and not at its end";
  EXPECT_EQ(context().matrices.size(), 1);
  frame.Go();
  test_.WaitForUsage([](const v1::Usage& u) { return u.jobs() < 2; });
  v1::MultiplyResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(context().matrices.size(), 2);
}

TEST_F(LongProductTest, CancelledWhileItIsHeldGivesItsMemoryBackAtOnce) {
  const v1::Usage before = Idle();
  grpc::ClientContext call;
  auto reader = stub_->Multiply(&call, ProductOf("a", "a"));
  v1::MultiplyResponse response;
  do {
    ASSERT_TRUE(reader->Read(&response));
  } while (response.progress().step() != v1::MultiplyProgress::STEP_PLANNED);
  FrameGate frame(context().jobs);
  frame.AwaitStart();
  EXPECT_GT(test_.Info().usage().resident_bytes(), before.resident_bytes());
  call.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  const v1::Usage after = test_.WaitForUsage([&](const v1::Usage& u) {
    return u.resident_bytes() == before.resident_bytes() && u.streams() == 0 && u.jobs() == 1;
  });
  EXPECT_EQ(after.resident_bytes(), before.resident_bytes()) << "while the frame still computes";
  EXPECT_EQ(after.jobs(), 1);
  frame.Go();
  ExpectNothingIsLeft(before, "cancelled");
}

TEST_F(LongProductTest, CancelledHalfWayLeavesNothing) {
  const v1::Usage before = Idle();
  grpc::ClientContext call;
  auto reader = stub_->Multiply(&call, ProductOf("a", "a"));
  v1::MultiplyResponse response;
  do {
    ASSERT_TRUE(reader->Read(&response));
  } while (response.progress().step() != v1::MultiplyProgress::STEP_PLANNED);
  EXPECT_GT(test_.Info().usage().resident_bytes(), before.resident_bytes());
  call.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  ExpectNothingIsLeft(before, "cancelled");
}

TEST_F(LongProductTest, ADeadlineHalfWayLeavesNothing) {
  const v1::Usage before = Idle();
  const auto deadline = std::chrono::system_clock::now() + std::chrono::milliseconds(500);
  grpc::ClientContext call;
  call.set_deadline(deadline);
  auto reader = stub_->Multiply(&call, ProductOf("a", "a"));
  // What comes meanwhile is not read, and most of it is not sent.
  std::this_thread::sleep_until(deadline);
  v1::MultiplyResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
  // The client may give up before the server's own clock has come so far.
  ExpectNothingIsLeft(before, "deadline_missed|cancelled");
}

class SmallMemoryTest : public MatrixServiceTest {
 protected:
  SmallMemoryTest() : MatrixServiceTest(Options()) {}
  static ServerOptions Options() {
    ServerOptions options = TestServer::DefaultOptions();
    options.limits.resident_capacity_bytes = int64_t{1} << 20;
    options.limits.max_matrix_bytes = 100000;
    return options;
  }
};

TEST_F(SmallMemoryTest, AProductTooLargeIsRefusedWithItsEstimateBeforeItStarts) {
  Put("column", Full(600, 1, 2));
  Put("row", Full(1, 600, 3));
  const v1::Usage before = test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0 && u.jobs() == 0; });
  for (bool keep : {false, true}) {
    v1::MultiplyRequest request = ProductOf("column", "row");
    if (keep) request.mutable_keep();
    const Product product = Multiply(*stub_, request);
    EXPECT_STATUS(product.status, grpc::FAILED_PRECONDITION, "at most 360000 entries from 360000 multiplications");
    EXPECT_EQ(DetailsOf(product.status).reason, "EXCEEDS_CAPACITY");
    EXPECT_FALSE(DetailsOf(product.status).retry) << "waiting makes no room for what can never fit";
    EXPECT_TRUE(product.progress.empty());
  }
  EXPECT_EQ(test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0 && u.jobs() == 0; }).ShortDebugString(),
            before.ShortDebugString());
  EXPECT_THAT(context().metrics.registry.Scrape(), HasSubstr("intrawarp_products_total{outcome=\"rejected\"} 2\n"));
  // The server goes on, and the other way round it fits.
  const Product dot = Multiply(*stub_, ProductOf("row", "column"));
  ASSERT_TRUE(dot.status.ok()) << dot.status.error_message();
  EXPECT_EQ(CsrFromBytes<float>(dot.header->shape(), dot.bytes).values, std::vector<float>{3600});
}

TEST_F(SmallMemoryTest, ColumnsThatWouldBecomeRowsAreCountedFirst) {
  HostCsr<float> wide = Full(1, 1, 1);
  wide.columns = std::numeric_limits<int32_t>::max();
  Put("wide", wide);
  Put("one", Full(1, 1, 1));
  v1::MultiplyRequest request = ProductOf("wide", "one");
  request.mutable_options()->set_transpose_a(true);
  const Product product = Multiply(*stub_, request);
  EXPECT_EQ(product.status.error_code(), grpc::FAILED_PRECONDITION) << product.status.error_message();
  EXPECT_EQ(DetailsOf(product.status).reason, "EXCEEDS_CAPACITY");
}

TEST_F(SmallMemoryTest, UploadsAreCappedBeforeAnythingIsAllocated) {
  UploadData large = MakeMatrix(Full(200, 100, 1), "u");
  EXPECT_EQ(DetailsOf(Upload(*bulk_, large)).field, "header.total_bytes");
  for (int i = 0; i < 20; ++i) {
    const grpc::Status status =
        Upload(*bulk_, MakeMatrix(Full(100, 100, static_cast<float>(i)), std::to_string(i)), nullptr, 1 << 20);
    if (status.ok()) continue;
    EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
    EXPECT_EQ(DetailsOf(status).reason, "RESIDENT_MEMORY");
    EXPECT_EQ(i, 12);  // of 81664 bytes each
    return;
  }
  ADD_FAILURE() << "nothing was refused";
}

class SmallTransferTest : public MatrixServiceTest {
 protected:
  SmallTransferTest() : MatrixServiceTest(Options()) {}
  static ServerOptions Options() {
    ServerOptions options = TestServer::DefaultOptions();
    options.limits.resident_capacity_bytes = int64_t{4} << 30;
    options.limits.pinned_capacity_bytes = int64_t{40} << 20;
    return options;
  }
};

TEST_F(SmallTransferTest, WhatIsTooLargeToBeSentCanBeKeptAndDownloaded) {
  constexpr int kSide = 2500;  // 50 MB
  Put("column", Full(kSide, 1, 2));
  Put("row", Full(1, kSide, 3));
  v1::MultiplyRequest request = ProductOf("column", "row");
  const Product sent = Multiply(*stub_, request);
  EXPECT_EQ(sent.status.error_code(), grpc::FAILED_PRECONDITION) << sent.status.error_message();
  EXPECT_EQ(DetailsOf(sent.status).reason, "EXCEEDS_CAPACITY");
  request.mutable_keep()->set_id("c");
  const Product kept = Multiply(*stub_, request);
  ASSERT_TRUE(kept.status.ok()) << kept.status.error_message();
  const DownloadedBytes back = DownloadMatrix(*bulk_, "sparseMatrices/c");
  ASSERT_TRUE(back.status.ok()) << back.status.error_message();
  const HostCsr<float> c = CsrFromBytes<float>(back.header.sparse_matrix().shape(), back.bytes);
  EXPECT_EQ(c.entries(), int64_t{kSide} * kSide);
  EXPECT_TRUE(std::all_of(c.values.begin(), c.values.end(), [](float v) { return v == 6; }));
}

TEST_F(SmallTransferTest, AProductWhoseAnswerFindsNoRoomIsRefusedBeforeItsValuesAreMade) {
  Put("column", Full(1000, 1, 2));
  Put("row", Full(1, 1000, 3));
  Ledger& ledger = context().ledger;
  absl::StatusOr<Grant> others = ledger.Admit({{.pinned_bytes = ledger.available(Resource::kPinned)}});
  ASSERT_TRUE(others.ok()) << others.status();
  const Product refused = Multiply(*stub_, ProductOf("column", "row"));
  EXPECT_EQ(refused.status.error_code(), grpc::RESOURCE_EXHAUSTED) << refused.status.error_message();
  EXPECT_EQ(DetailsOf(refused.status).reason, "PINNED_MEMORY");
  EXPECT_TRUE(DetailsOf(refused.status).retry);
  // An error overtakes progress that still waits to be sent: any part of it may have arrived.
  for (const v1::MultiplyProgress& progress : refused.progress) {
    EXPECT_NE(progress.step(), v1::MultiplyProgress::STEP_MULTIPLIED);
  }
  v1::MultiplyRequest kept = ProductOf("column", "row");
  kept.mutable_keep()->set_id("c");
  EXPECT_TRUE(Multiply(*stub_, kept).status.ok()) << "needs no pinned memory";
  *others = Grant();
  EXPECT_TRUE(Multiply(*stub_, ProductOf("column", "row")).status.ok());
}

TEST(MatrixStop, ProductUnderWayEndsWithTheServer) {
  TestServer test;
  auto stub = test.Stub<v1::SparseMatrixService>();
  ASSERT_TRUE(Upload(*test.Stub<v1::BulkService>(), MakeMatrix(RandomCsr<float>(50, 50, 4, 1), "u", "a")).ok());
  JobBlocker blocker(test.server->context().jobs);
  Product product;
  std::thread client([&] { product = Multiply(*stub, ProductOf("a", "a")); });
  test.WaitForUsage([](const v1::Usage& u) { return u.jobs() == 2; });
  std::thread stop([&] { test.server->Stop(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  blocker.Release();
  stop.join();
  client.join();
  // It was given time to end well. The end of the connection may overtake the answer: then the error is the client's
  // own, without the details that those of the server have.
  EXPECT_TRUE(product.status.ok() || product.status.error_details().empty()) << product.status.error_message();
}

}  // namespace
}  // namespace intrawarp::server
