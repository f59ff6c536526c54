// SPDX-License-Identifier: Apache-2.0
// Clients that hold as much as they can, and what is left for frames and for others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "intrawarp/v1/server.grpc.pb.h"
#include "server/job/job_support.h"
#include "tests/server/service_fixture.h"
#include "tests/server/stages.h"
#include "tests/server/volume_client.h"

namespace intrawarp::server {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

AffineMap SomeMap() {
  AffineMap map = AffineMap::Identity();
  map.m[0][1] = 0.25;
  map.m[1][3] = -3;
  return map;
}

class LedgerServiceTest : public ServiceTest {
 protected:
  static ServerLimits Limits() {
    ServerLimits limits;
    limits.resident_capacity_bytes = 256 * kMiB;
    limits.uploading_capacity_bytes = 32 * kMiB;
    limits.workspace_capacity_bytes = 256 * kMiB;
    limits.pinned_capacity_bytes = 64 * kMiB;
    return limits;
  }
  LedgerServiceTest() : ServiceTest(Limits()) {}

  v1::DownloadRequest LargeField() const {
    v1::DownloadRequest request = WholeField("m");
    *request.mutable_geometry() = GeometryToProto(BoxGeometry(192, 192, 192));  // 85 MB
    return request;
  }
  // Header of an upload of so many voxels, of which nothing was sent.
  static v1::UploadRequest VolumeHeader(const std::string& upload_id, const Geometry& geometry) {
    v1::UploadRequest request;
    *request.mutable_header() = MakeVolume(geometry, RandomVoxels<float>(geometry, 1), upload_id).header;
    return request;
  }
  int64_t InUse(Resource resource) { return context().ledger.in_use(resource); }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(LedgerServiceTest);

TEST_P(LedgerServiceTest, ClientsThatReadNothingHoldARingEach) {
  PutTransform("m", Transform(SomeMap()));
  grpc::ClientContext rpc;
  const auto reader = bulk_->Download(&rpc, LargeField());
  v1::DownloadResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_LE(InUse(Resource::kPinned), 13 * kMiB);
  v1::WarpVolumeRequest warp;
  warp.set_transform("transforms/m");
  warp.set_moving("volumes/v");
  warp.set_like_volume("volumes/v");
  const Geometry geometry = BoxGeometry(192, 192, 192);
  PutVolume("v", geometry, std::vector<float>(geometry.voxels(), 1));
  grpc::ClientContext warp_rpc;
  const auto warp_reader = transforms_->WarpVolume(&warp_rpc, warp);
  v1::WarpVolumeResponse warp_response;
  ASSERT_TRUE(warp_reader->Read(&warp_response));
  EXPECT_LE(InUse(Resource::kPinned), 30 * kMiB);
  EXPECT_GE(InUse(Resource::kResident), 4 * geometry.voxels());  // the warped volume stays on the device
  rpc.TryCancel();
  warp_rpc.TryCancel();
  while (reader->Read(&response)) {
  }
  while (warp_reader->Read(&warp_response)) {
  }
  reader->Finish();
  warp_reader->Finish();
  EXPECT_TRUE(Eventually([this] { return InUse(Resource::kPinned) + InUse(Resource::kResident) == 0; }));
}

TEST_P(LedgerServiceTest, FramesAndUploadsGetOnBesideClientsThatReadNothing) {
  PutTransform("m", Transform(SomeMap()));
  struct Reader {
    grpc::ClientContext rpc;
    std::unique_ptr<grpc::ClientReader<v1::DownloadResponse>> reader;
  };
  std::vector<std::unique_ptr<Reader>> readers;
  v1::DownloadResponse response;
  // Until one is refused.
  while (readers.size() < 20) {
    auto next = std::make_unique<Reader>();
    next->reader = bulk_->Download(&next->rpc, LargeField());
    if (!next->reader->Read(&response)) {
      EXPECT_EQ(ReasonOf(next->reader->Finish()), v1::PINNED_MEMORY);
      break;
    }
    readers.push_back(std::move(next));
  }
  EXPECT_EQ(readers.size(), 4);  // of 12 MiB in the 48 that sessions leave
  EXPECT_EQ(ReasonOf(LeasePinned(context(), 12 * kMiB, "").status()), v1::PINNED_MEMORY);
  EXPECT_TRUE(LeasePinned(context(), 16 * kMiB, "", Share::kSession).ok());
  const Geometry geometry = BoxGeometry(20, 20, 20);
  EXPECT_TRUE(server::Upload(*bulk_, MakeVolume(geometry, RandomVoxels<float>(geometry, 1), "u")).ok());
  for (const auto& open : readers) open->rpc.TryCancel();
  for (const auto& open : readers) {
    while (open->reader->Read(&response)) {
    }
    open->reader->Finish();
  }
  EXPECT_TRUE(Eventually([this] { return InUse(Resource::kPinned) == 0; }));
}

TEST_P(LedgerServiceTest, AHeaderHoldsNoPinnedMemoryAndLeavesRoomForOthers) {
  UploadCall liar(*bulk_);
  liar.Send(VolumeHeader("liar", BoxGeometry(160, 160, 160)));  // 16 MB, and its pyramid
  EXPECT_TRUE(Eventually([this] { return InUse(Resource::kUploads) == 1; }));
  EXPECT_EQ(InUse(Resource::kPinned), 0);
  // A second one of the kind is refused, a small one is not.
  UploadCall second(*bulk_);
  second.Send(VolumeHeader("second", BoxGeometry(160, 160, 160)));
  EXPECT_EQ(ReasonOf(second.Await()), v1::RESIDENT_MEMORY);
  const Geometry geometry = BoxGeometry(20, 20, 20);
  EXPECT_TRUE(server::Upload(*bulk_, MakeVolume(geometry, RandomVoxels<float>(geometry, 1), "u")).ok());
  liar.Cancel();
}

TEST_P(LedgerServiceTest, ASilentUploadEndsThoughItsStreamIsOpen) {
  UploadCall silent(*bulk_), slow(*bulk_);
  const Geometry geometry = BoxGeometry(50, 50, 50);
  const UploadData data = MakeVolume(geometry, RandomVoxels<float>(geometry, 1), "slow");
  silent.Send(VolumeHeader("silent", geometry));
  slow.SendHeader(data.header);
  slow.SendBytes(data.bytes, 0, 1000, 1000);
  EXPECT_TRUE(Eventually([this] {
    const auto progress = context().uploads.Progress("slow");
    return context().uploads.size() == 2 && progress.ok() && progress->received == 1000;
  }));
  AdvanceClock(std::chrono::seconds(31));
  server_->Housekeep();
  EXPECT_EQ(silent.Await().error_code(), grpc::ABORTED);
  EXPECT_EQ(slow.Await().error_code(), grpc::ABORTED);
  // What came can be gone on with for a while.
  EXPECT_FALSE(context().uploads.Progress("silent").ok());
  EXPECT_TRUE(server::Upload(*bulk_, data, nullptr, 100000, 1000).ok());
  EXPECT_TRUE(Eventually([this] { return InUse(Resource::kUploads) == 0; }));
  EXPECT_EQ(InUse(Resource::kUploading), 0);
}

TEST_P(LedgerServiceTest, AnUploadThatIsBeingMadeIsNotSilent) {
  const Geometry geometry = BoxGeometry(20, 20, 20);
  const UploadData data = MakeVolume(geometry, RandomVoxels<float>(geometry, 1), "u");
  auto blocker = std::make_unique<JobBlocker>(context().jobs);
  UploadCall call(*bulk_);
  call.SendHeader(data.header);
  call.SendBytes(data.bytes, 0, data.bytes.size(), 100000);
  call.WritesDone();
  EXPECT_TRUE(Eventually([this] { return context().jobs.pending() == 2; }));
  AdvanceClock(std::chrono::hours(1));
  server_->Housekeep();
  blocker.reset();
  EXPECT_TRUE(call.Await().ok());
}

TEST_P(LedgerServiceTest, AResultWithoutATtlExpiresAndGivesItsPlaceBack) {
  const Geometry grid = BoxGeometry(24, 20, 16);
  const Vec3d center = IndexToPhysical(grid)({11.5, 9.5, 7.5});
  PutVolume("fixed", grid, Blobs(grid, center, 12, SomeMap()));
  PutVolume("moving", grid, Blobs(grid, center, 12, AffineMap::Identity()));
  v1::RegisterRequest request;
  request.set_fixed("volumes/fixed");
  request.set_moving("volumes/moving");
  SetMethod(*request.mutable_options()->add_stages(), StageKind::kAffine);
  const RegisterAnswer answer = Register(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  v1::GetTransformRequest get;
  get.set_name(answer.result->transform());
  v1::GetTransformResponse response;
  grpc::ClientContext rpc;
  ASSERT_TRUE(transforms_->GetTransform(&rpc, get, &response).ok());
  const v1::Transform& stored = response.transform();
  EXPECT_EQ(stored.expire_time().seconds(), stored.create_time().seconds() + 24 * 3600);
  EXPECT_EQ(InUse(Resource::kTransforms), 1);
  EXPECT_TRUE(Eventually([this] { return InUse(Resource::kWorkspace) == 0; }));
  AdvanceClock(std::chrono::hours(24) + std::chrono::seconds(1));
  server_->Housekeep();
  EXPECT_EQ(context().transforms.size(), 0);
  EXPECT_TRUE(Eventually([this] { return InUse(Resource::kTransforms) == 0; }));
}

TEST_P(LedgerServiceTest, ServerInfoTellsWhatIsInUsePerShare) {
  const Grant frame = *context().ledger.Admit({{.workspace_bytes = 7, .pinned_bytes = 5}}, Share::kSession);
  const Grant other = *context().ledger.Admit({{.pinned_bytes = 3}});
  grpc::ClientContext rpc;
  v1::GetServerInfoResponse response;
  ASSERT_TRUE(v1::ServerService::NewStub(channel_)->GetServerInfo(&rpc, {}, &response).ok());
  const v1::Resources& resources = response.info().resources();
  EXPECT_EQ(resources.pinned_memory().in_use(), 8);
  EXPECT_EQ(resources.pinned_memory().session_in_use(), 5);
  EXPECT_EQ(resources.pinned_memory().capacity(), 64 * kMiB);
  EXPECT_EQ(resources.pinned_memory().session_reserve(), 16 * kMiB);
  EXPECT_EQ(resources.workspace_memory().in_use(), 7);
  EXPECT_EQ(resources.transforms().capacity(), 4096 + kSessionTransforms * 8);
  EXPECT_EQ(resources.sessions().capacity(), 8);
  EXPECT_EQ(response.info().limits().result_ttl().seconds(), 24 * 3600);
}

}  // namespace
}  // namespace intrawarp::server
