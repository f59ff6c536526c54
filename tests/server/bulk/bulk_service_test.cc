// SPDX-License-Identifier: Apache-2.0
// The bulk service: what all kinds of uploads and downloads share. Streams that take over, go on from an offset, carry
// damaged chunks, wait for the device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/base/worker_pool.h"
#include "server/bulk/upload_store.h"
#include "tests/server/bulk_client.h"
#include "tests/server/job_blocker.h"
#include "tests/server/matrix_client.h"
#include "tests/server/test_server.h"
#include "tests/server/volume_client.h"
#include "tests/support/eventually.h"

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;

enum class Kind { kVolume, kSparseMatrix, kTransform };

Geometry Grid() { return BoxGeometry(40, 30, 20); }

UploadData MakeData(Kind kind, const std::string& upload_id, const std::string& id) {
  if (kind == Kind::kVolume) return MakeVolume(Grid(), RandomVoxels<float>(Grid(), 1), upload_id, id);
  if (kind == Kind::kSparseMatrix) return MakeMatrix(RandomCsr<float>(2000, 1000, 8, 2), upload_id, id);
  const std::vector<float> field = RandomVoxels<float>(BoxGeometry(40, 30, 60), 3);
  UploadData data;
  data.bytes.assign(reinterpret_cast<const char*>(field.data()), field.size() * sizeof(float));
  data.header.set_id(id);
  data.header.set_upload_id(upload_id);
  v1::FieldHeader& header = *data.header.mutable_transform()->mutable_field();
  *header.mutable_geometry() = GeometryToProto(Grid());
  header.set_encoding(v1::FIELD_ENCODING_FLOAT32);
  header.set_total_bytes(data.bytes.size());
  data.Seal();
  return data;
}

v1::DownloadRequest RequestFor(Kind kind, const std::string& id) {
  v1::DownloadRequest request;
  if (kind == Kind::kVolume) request.set_name("volumes/" + id);
  if (kind == Kind::kSparseMatrix) request.set_name("sparseMatrices/" + id);
  if (kind != Kind::kTransform) return request;
  request.set_name("transforms/" + id);
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  return request;
}

class BulkServiceTest : public ::testing::TestWithParam<Kind> {
 protected:
  BulkServiceTest() : stub_(test_.Stub<v1::BulkService>()) {}
  ~BulkServiceTest() override {
    WaitForNoStreams();
    context().uploads.Clear();
    EXPECT_TRUE(Eventually([this] { return context().pinned.leased_bytes() == 0; }));
    EXPECT_TRUE(Eventually([this] { return context().jobs.pending() + context().copies.pending() == 0; }));
  }

  DeviceContext& context() { return test_.server->context(); }
  void WaitForNoStreams() {
    EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 0; }));
  }
  int64_t Committed(const std::string& upload_id) {
    const auto progress = context().uploads.Progress(upload_id);
    return progress.ok() ? progress->received : -1;
  }
  void WaitForCommitted(const std::string& upload_id, int64_t bytes) {
    EXPECT_TRUE(Eventually([&] { return Committed(upload_id) == bytes; })) << Committed(upload_id);
  }
  // What makes the object of an upload, held up.
  std::unique_ptr<JobBlocker> BlockMaking() {
    if (GetParam() == Kind::kVolume) return std::make_unique<JobBlocker>(context().jobs);
    return std::make_unique<JobBlocker>(context().copies);
  }
  int64_t Making() { return context().jobs.pending() + context().copies.pending(); }

  TestServer test_;
  std::unique_ptr<v1::BulkService::Stub> stub_;
};
std::string KindName(const ::testing::TestParamInfo<Kind>& info) {
  constexpr const char* kNames[] = {"Volume", "SparseMatrix", "Transform"};
  return kNames[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Kinds, BulkServiceTest,
                         ::testing::Values(Kind::kVolume, Kind::kSparseMatrix, Kind::kTransform), KindName);

TEST_P(BulkServiceTest, ASecondStreamTakesOverFromASilentOne) {
  const UploadData data = MakeData(GetParam(), "u", "x");
  UploadCall first(*stub_);
  first.SendHeader(data.header);
  first.SendBytes(data.bytes, 0, 10000, 5000);
  WaitForCommitted("u", 10000);
  // The first stream neither goes on nor ends.
  UploadCall second(*stub_);
  second.SendHeader(data.header);
  second.SendBytes(data.bytes, 10000, data.bytes.size(), 50000);
  const grpc::Status status = second.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  const grpc::Status fenced = first.Await();
  EXPECT_EQ(fenced.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(DetailsOf(fenced).reason, "UPLOAD_TAKEN_OVER");
  EXPECT_TRUE(DownloadBytes(*stub_, RequestFor(GetParam(), "x")).bytes == data.bytes);
}

TEST_P(BulkServiceTest, ASecondStreamTakesOverAnUploadThatWaitsForTheDevice) {
  const UploadData data = MakeData(GetParam(), "u", "x");
  auto blocker = BlockMaking();
  UploadCall first(*stub_);
  first.SendHeader(data.header);
  first.SendBytes(data.bytes, 0, data.bytes.size(), 50000);
  first.WritesDone();
  EXPECT_TRUE(Eventually([this] { return Making() == 2; }));
  UploadCall second(*stub_);
  second.SendHeader(data.header);
  second.WritesDone();
  EXPECT_EQ(DetailsOf(first.Await()).reason, "UPLOAD_TAKEN_OVER");
  // The first one's job leaves the queue at once; its copy waits for its turn and does nothing.
  EXPECT_TRUE(Eventually([this] { return Making() == (GetParam() == Kind::kVolume ? 2 : 3); }));
  blocker.reset();
  const grpc::Status status = second.Await();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(second.response().already_resident());
  EXPECT_TRUE(DownloadBytes(*stub_, RequestFor(GetParam(), "x")).bytes == data.bytes);
}

TEST_P(BulkServiceTest, ACancelledUploadThatWaitsForTheDeviceExpires) {
  const UploadData data = MakeData(GetParam(), "u", "x");
  auto blocker = BlockMaking();
  UploadCall call(*stub_);
  call.SendHeader(data.header);
  call.SendBytes(data.bytes, 0, data.bytes.size(), 50000);
  call.WritesDone();
  EXPECT_TRUE(Eventually([this] { return Making() == 2; }));
  call.Cancel();
  WaitForNoStreams();
  // Before the device has had its turn.
  EXPECT_GT(context().ledger.in_use(Resource::kResident), 0);
  EXPECT_TRUE(Eventually([this] {
    test_.clock.Advance(std::chrono::hours(1));
    test_.server->Housekeep();
    return context().uploads.size() == 0 && context().ledger.in_use(Resource::kResident) == 0;
  }));
  EXPECT_TRUE(Eventually([this] { return context().pinned.leased_bytes() == 0; }));
  blocker.reset();
}

TEST_P(BulkServiceTest, ManyStreamsTakeOverFromOneAnother) {
  const UploadData data = MakeData(GetParam(), "u", "x");
  std::mt19937 random(7);
  const auto begin = [this] { return static_cast<size_t>(std::max<int64_t>(Committed("u"), 0)); };
  auto last = std::make_unique<UploadCall>(*stub_);
  last->SendHeader(data.header);
  WaitForCommitted("u", 0);
  for (int i = 0; i < 20; ++i) {
    // What the stream before has sent may still be taken meanwhile: this one begins where the server was a moment ago.
    const size_t at = begin();
    auto next = std::make_unique<UploadCall>(*stub_);
    next->SendHeader(data.header);
    next->SendBytes(data.bytes, at, std::min(data.bytes.size(), at + random() % 20000), 3000);
    EXPECT_EQ(DetailsOf(last->Await()).reason, "UPLOAD_TAKEN_OVER");
    last = std::move(next);
  }
  const size_t at = begin();
  UploadCall whole(*stub_);
  whole.SendHeader(data.header);
  whole.SendBytes(data.bytes, at, data.bytes.size(), 3000);
  const grpc::Status status = whole.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(DetailsOf(last->Await()).reason, "UPLOAD_TAKEN_OVER");
  EXPECT_TRUE(DownloadBytes(*stub_, RequestFor(GetParam(), "x")).bytes == data.bytes);
}

TEST_P(BulkServiceTest, ADamagedChunkIsDataLossAndDropsTheUpload) {
  const UploadData data = MakeData(GetParam(), "u", "x");
  v1::Chunk chunk = MakeChunk(0, data.bytes.substr(0, 1000));
  chunk.mutable_data()->at(500) ^= 4;
  UploadCall damaged(*stub_);
  damaged.SendHeader(data.header);
  damaged.SendChunk(chunk);
  const grpc::Status status = damaged.Await();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(DetailsOf(status).reason, "CHUNK_CHECKSUM");
  EXPECT_EQ(Committed("u"), -1);
  chunk.clear_crc32c();
  UploadCall unchecked(*stub_);
  unchecked.SendHeader(data.header);
  unchecked.SendChunk(chunk);
  EXPECT_EQ(DetailsOf(unchecked.Await()).field, "chunk.crc32c");
}

TEST_P(BulkServiceTest, UploadsAreIdempotent) {
  v1::UploadResponse first, second;
  ASSERT_TRUE(Upload(*stub_, MakeData(GetParam(), "1", ""), &first, 100000).ok());
  ASSERT_TRUE(Upload(*stub_, MakeData(GetParam(), "2", ""), &second, 100000).ok());
  EXPECT_FALSE(first.already_resident());
  EXPECT_TRUE(second.already_resident());
  second.set_already_resident(false);
  EXPECT_EQ(first.SerializeAsString(), second.SerializeAsString());
}

TEST_P(BulkServiceTest, DownloadsGoOnFromAnyOffset) {
  const UploadData data = MakeData(GetParam(), "u", "x");
  ASSERT_TRUE(Upload(*stub_, data, nullptr, 100000).ok());
  v1::DownloadRequest request = RequestFor(GetParam(), "x");
  const DownloadedBytes whole = DownloadBytes(*stub_, request);
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  EXPECT_TRUE(whole.bytes == data.bytes);
  request.set_etag(whole.header.etag());
  const auto total = static_cast<int64_t>(data.bytes.size());
  for (const int64_t offset : {int64_t{0}, int64_t{1}, total / 3, total - 1, total}) {
    request.set_offset(offset);
    const DownloadedBytes rest = DownloadBytes(*stub_, request);
    ASSERT_TRUE(rest.status.ok()) << rest.status.error_message();
    EXPECT_EQ(rest.header.SerializeAsString(), whole.header.SerializeAsString());
    EXPECT_TRUE(rest.bytes == data.bytes.substr(static_cast<size_t>(offset)));
  }
  for (const int64_t offset : {int64_t{-1}, total + 1}) {
    request.set_offset(offset);
    const grpc::Status status = DownloadBytes(*stub_, request).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
    EXPECT_EQ(DetailsOf(status).field, "offset");
  }
}

TEST_P(BulkServiceTest, ADownloadOfOtherBytesIsAborted) {
  ASSERT_TRUE(Upload(*stub_, MakeData(GetParam(), "u", "x"), nullptr, 100000).ok());
  v1::DownloadRequest request = RequestFor(GetParam(), "x");
  request.set_etag("of something else");
  const grpc::Status status = DownloadBytes(*stub_, request).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(DetailsOf(status).reason, "CONTENT_CHANGED");
}

class BulkLimitsTest : public ::testing::Test {
 protected:
  static ServerOptions Options() {
    ServerOptions options = TestServer::DefaultOptions();
    options.limits.max_queued_jobs = 1;
    return options;
  }
  BulkLimitsTest() : test_(Options()), stub_(test_.Stub<v1::BulkService>()) {}

  TestServer test_;
  std::unique_ptr<v1::BulkService::Stub> stub_;
};

TEST_F(BulkLimitsTest, AFullJobQueueDoesNotFailCopies) {
  const UploadData volume = MakeData(Kind::kVolume, "v", "v");
  ASSERT_TRUE(Upload(*stub_, volume, nullptr, 100000).ok());
  JobQueue& jobs = test_.server->context().jobs;
  JobBlocker running(jobs);
  Job waiting;
  waiting.run = [](const absl::StatusOr<const ExecContext*>&) {};
  ASSERT_TRUE(jobs.Submit(std::move(waiting)).ok());
  // The queue is full and stands still.
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(DownloadBytes(*stub_, RequestFor(Kind::kVolume, "v")).bytes == volume.bytes);
  EXPECT_TRUE(Upload(*stub_, MakeData(Kind::kSparseMatrix, "m", "m"), nullptr, 100000).ok());
  EXPECT_TRUE(Upload(*stub_, MakeData(Kind::kTransform, "t", "t"), nullptr, 100000).ok());
  const grpc::Status refused =
      Upload(*stub_, MakeVolume(BoxGeometry(3, 3, 3), RandomVoxels<float>(BoxGeometry(3, 3, 3), 9), "w"));
  EXPECT_EQ(DetailsOf(refused).reason, "QUEUE_FULL");
}

TEST_F(BulkLimitsTest, ACancelDoesNotWaitForAWorker) {
  const UploadData data = MakeData(Kind::kVolume, "u", "x");
  WorkerPool& workers = test_.server->context().workers;
  // Every worker is busy, so the message of the call below is not taken.
  std::promise<void> release;
  const std::shared_future<void> gate = release.get_future().share();
  for (int i = 0; i < 64; ++i) workers.Submit([gate] { gate.wait(); });
  UploadCall call(*stub_);
  call.SendHeader(data.header);
  EXPECT_EQ(test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 1; }).streams(), 1);
  call.Cancel();
  EXPECT_EQ(test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0; }).streams(), 0);
  release.set_value();
  EXPECT_EQ(test_.Info().usage().uploads(), 0);
}

}  // namespace
}  // namespace intrawarp::server
