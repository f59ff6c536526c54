// SPDX-License-Identifier: Apache-2.0
// A server with a state directory and less device memory than its volumes take.
#include "server/store/residency.h"

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "intrawarp/v1/volume.grpc.pb.h"
#include "server/store/durable_objects.h"
#include "tests/server/http_client.h"
#include "tests/server/session/session_fixture.h"
#include "tests/server/state/test_files.h"
#include "tests/server/volume_client.h"

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;

const Geometry kGrid = ObliqueGeometry({33, 30, 17});

// A base of the test, so that the disk is there before the first server and goes after the last one.
struct Disk {
  state::MemoryDisk disk_;
  state::LockedFiles locked_{disk_};
  state::FaultyFiles files_{locked_, state::Fault::kBroken};
  ServerOptions options_;
};

// Room for three volumes and a half.
class ResidencyTest : protected Disk, public SessionTest {
 protected:
  ResidencyTest()
      : SessionTest(Limits(), [this](ServerOptions& options) {
          options.state_dir = "d";
          options.state_files = &files_;
          options_ = options;
        }) {
    volumes_ = v1::VolumeService::NewStub(channel_);
  }
  static int64_t VolumeBytes() { return PreparedImage::Bytes(kGrid); }
  static ServerLimits Limits() {
    ServerLimits limits;
    limits.resident_capacity_bytes = 7 * VolumeBytes() / 2;
    limits.uploading_capacity_bytes = int64_t{1} << 26;
    limits.workspace_capacity_bytes = int64_t{1} << 30;
    return limits;
  }
  void SetUp() override {}
  void Restart() {
    server_.reset();
    Serve(options_);
    volumes_ = v1::VolumeService::NewStub(channel_);
  }

  static std::vector<float> Voxels(const std::string& id) {
    AffineMap moved = AffineMap::Identity();
    moved.m[0][3] = 0.7 * (id[0] - 'a');
    return Blobs(kGrid, Center(kGrid), 12, moved);
  }
  grpc::Status Put(const std::string& id, bool pinned = false) {
    UploadData upload = MakeVolume(kGrid, Voxels(id), "u" + id, id);
    upload.header.mutable_volume()->set_pinned(pinned);
    return server::Upload(*bulk_, upload);
  }
  // "a" for a volume on the device, "(a)" for one that is not, "a!" for a pinned one.
  std::string List() {
    grpc::ClientContext rpc;
    v1::ListVolumesResponse response;
    EXPECT_TRUE(volumes_->ListVolumes(&rpc, {}, &response).ok());
    std::string list;
    for (const v1::Volume& volume : response.volumes()) {
      const std::string id = volume.name().substr(std::string("volumes/").size());
      switch (volume.residency()) {
        case v1::RESIDENCY_RESIDENT:
          list += id;
          break;
        case v1::RESIDENCY_SPOOLED:
          list += "(" + id + ")";
          break;
        default:
          list += "?" + id;
      }
      if (volume.pinned()) list += "!";
      if (volume.residency() == v1::RESIDENCY_FAILED) continue;
      EXPECT_EQ(volume.resident_bytes(), VolumeBytes());
      EXPECT_GT(volume.maximum(), volume.minimum()) << "known without the voxels";
    }
    return list;
  }
  DownloadedBytes Download(const std::string& id) {
    v1::DownloadRequest request;
    request.set_name("volumes/" + id);
    return DownloadBytes(*bulk_, request);
  }
  void ExpectIntact(const std::string& id) {
    const DownloadedBytes download = Download(id);
    ASSERT_TRUE(download.status.ok()) << id << ": " << download.status.error_message();
    EXPECT_TRUE(download.bytes == Bytes(Voxels(id))) << id;
  }
  grpc::Status Register(const std::string& fixed, const std::string& moving) {
    v1::RegisterRequest request;
    request.set_fixed("volumes/" + fixed);
    request.set_moving("volumes/" + moving);
    SetMethod(*request.mutable_options()->add_stages(), StageKind::kRigid);
    grpc::ClientContext rpc;
    auto reader = registration_->Register(&rpc, request);
    v1::RegisterResponse response;
    while (reader->Read(&response)) {
    }
    return reader->Finish();
  }
  double Metric(const std::string& line) { return MetricValue(Page(), line); }
  std::string Page() { return HttpGet(server_->http_address(), "/metrics").body; }
  // The gauge is that many volumes once the calls before have let go of theirs.
  bool EventuallyEvictable(int volumes) {
    return Eventually([this, volumes] {
      return Metric("intrawarp_memory_evictable_bytes{kind=\"resident\"}") ==
             static_cast<double>(volumes * VolumeBytes());
    });
  }
  static double MetricValue(const std::string& page, const std::string& line) {
    const size_t at = page.find("\n" + line + " ");
    EXPECT_NE(at, std::string::npos) << line;
    return at == std::string::npos ? -1 : std::stod(page.substr(at + line.size() + 2));
  }

  std::unique_ptr<v1::VolumeService::Stub> volumes_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(ResidencyTest);

TEST_P(ResidencyTest, WhatWasUsedLongestAgoMakesRoomAndComesBackBitForBit) {
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(Put(id).ok());
  EXPECT_EQ(List(), "abc");
  ExpectIntact("a");  // a use
  ASSERT_TRUE(Put("d").ok());
  EXPECT_EQ(List(), "a(b)cd");
  for (const char* id : {"a", "b", "c", "d"}) ExpectIntact(id);
  EXPECT_EQ(Metric("intrawarp_volumes{residency=\"resident\"}"), 3);
  EXPECT_EQ(Metric("intrawarp_volumes{residency=\"spooled\"}"), 1);
  EXPECT_EQ(Metric("intrawarp_volume_bytes{residency=\"spooled\"}"), static_cast<double>(VolumeBytes()));
  const double evictions = Metric("intrawarp_volume_evictions_total");
  EXPECT_GE(evictions, 2);
  EXPECT_EQ(Metric("intrawarp_volume_loads_total{outcome=\"ok\"}"), evictions - 1);
  EXPECT_EQ(Metric("intrawarp_volume_load_seconds_count"), evictions - 1);
  // The bytes are those of the same object.
  v1::UploadResponse again;
  ASSERT_TRUE(server::Upload(*bulk_, MakeVolume(kGrid, Voxels("b"), "again", "b"), &again).ok());
  EXPECT_TRUE(again.already_resident());
}

TEST_P(ResidencyTest, WorkWaitsForItsVolumes) {
  for (const char* id : {"a", "b", "c", "d", "e", "f"}) ASSERT_TRUE(Put(id).ok());
  EXPECT_EQ(List(), "(a)(b)(c)def");
  for (const char* pair : {"ab", "cd", "ef", "ba"}) {
    const grpc::Status status = Register({pair[0]}, {pair[1]});
    EXPECT_TRUE(status.ok()) << pair << ": " << status.error_message();
  }
  EXPECT_LE(context().ledger.use(Resource::kResident).peak, context().ledger.capacity(Resource::kResident));
}

TEST_P(ResidencyTest, PinnedVolumesAndThoseOfSessionsStay) {
  ASSERT_TRUE(Put("a", /*pinned=*/true).ok());
  ASSERT_TRUE(Put("b").ok());
  v1::NavigateConfig config;
  config.set_fixed("volumes/b");
  config.set_session_id("s");
  SetMethod(*config.mutable_options()->add_stages(), StageKind::kRigid);
  auto carrier = Open(config);
  ASSERT_TRUE(Put("c").ok());
  ASSERT_TRUE(Put("d").ok());
  EXPECT_EQ(List(), "a!b(c)d");
  EXPECT_TRUE(EventuallyEvictable(1)) << Page();
  ASSERT_TRUE(Put("e", /*pinned=*/true).ok());
  EXPECT_EQ(List(), "a!b(c)(d)e!");
  EXPECT_TRUE(EventuallyEvictable(0)) << Page();
  // Nobody can go.
  EXPECT_EQ(ReasonOf(Put("f")), v1::RESIDENT_MEMORY);
  EXPECT_EQ(ReasonOf(Download("c").status), v1::RESIDENT_MEMORY);
  EXPECT_EQ(List(), "a!b(c)(d)e!");
  carrier->Finish();
  carrier.reset();
  EXPECT_TRUE(Eventually([this] { return Download("c").status.ok(); }));
  EXPECT_EQ(List(), "a!(b)c(d)e!");
  EXPECT_TRUE(EventuallyEvictable(1)) << Page();
  Restart();
  ExpectIntact("b");
  EXPECT_THAT(List(), HasSubstr("a!")) << "a restart keeps the pin";
}

TEST_P(ResidencyTest, AMaskOfAFrameComesBackAndStaysForIt) {
  for (const char* id : {"a", "b"}) ASSERT_TRUE(Put(id).ok());
  v1::NavigateConfig config;
  config.set_fixed("volumes/a");
  config.set_frame_masks(true);
  SetMethod(*config.mutable_options()->add_stages(), StageKind::kRigid);
  auto carrier = Open(config);
  for (const char* id : {"c", "d"}) ASSERT_TRUE(Put(id).ok());
  EXPECT_EQ(List(), "a(b)cd");
  const auto masked = [](int number) {
    std::vector<v1::NavigateRequest> frame = FrameRequests(number, kGrid, Voxels("c"));
    frame[0].mutable_frame()->set_mask("volumes/b");
    return frame;
  };
  ASSERT_OK(carrier->Send(masked(1)));
  EXPECT_EQ(Answers(*carrier, 1)[0].status().code(), 0) << carrier->Answers()[0].status().message();
  EXPECT_EQ(List(), "ab(c)d");
  // Nobody takes it from a frame that is being received.
  std::vector<v1::NavigateRequest> frame = masked(2);
  ASSERT_OK(carrier->Send({frame[0]}));
  for (const char* id : {"e", "f"}) ASSERT_TRUE(Put(id).ok());
  EXPECT_EQ(List(), "ab(c)(d)(e)f");
  frame.erase(frame.begin());
  ASSERT_OK(carrier->Send(frame));
  EXPECT_EQ(Answers(*carrier, 2)[1].status().code(), 0) << carrier->Answers()[1].status().message();
}

// A frame counts as a use of its mask.
TEST_P(ResidencyTest, AMaskThatFramesNameGoesLast) {
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(Put(id).ok());
  v1::NavigateConfig config;
  config.set_fixed("volumes/a");
  config.set_frame_masks(true);
  SetMethod(*config.mutable_options()->add_stages(), StageKind::kRigid);
  auto carrier = Open(config);
  std::vector<v1::NavigateRequest> frame = FrameRequests(1, kGrid, Voxels("c"));
  frame[0].mutable_frame()->set_weight("volumes/none");
  frame[0].mutable_frame()->set_mask("volumes/b");
  ASSERT_OK(carrier->Send(frame));
  EXPECT_EQ(Answers(*carrier, 1)[0].status().code(), grpc::NOT_FOUND);
  frame = FrameRequests(2, kGrid, Voxels("c"));
  frame[0].mutable_frame()->set_mask("volumes/b");
  ASSERT_OK(carrier->Send(frame));
  EXPECT_EQ(Answers(*carrier, 2)[1].status().code(), 0) << carrier->Answers()[1].status().message();
  EXPECT_TRUE(EventuallyEvictable(2)) << Page();
  ASSERT_TRUE(Put("d").ok());
  EXPECT_EQ(List(), "ab(c)d");
}

TEST_P(ResidencyTest, ManyWaitForOneLoad) {
  for (const char* id : {"a", "b", "c", "d"}) ASSERT_TRUE(Put(id).ok());
  ASSERT_EQ(List(), "(a)bcd");
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) clients.emplace_back([this] { ExpectIntact("a"); });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(Metric("intrawarp_volume_loads_total{outcome=\"ok\"}"), 1);
}

// Volumes come and go under the feet of work that names them.
TEST_P(ResidencyTest, ALoadWithoutRoomDelaysNoOther) {
  const Geometry small = ObliqueGeometry({9, 8, 7});
  ASSERT_TRUE(
      server::Upload(*bulk_, MakeVolume(small, Blobs(small, Center(small), 3, AffineMap::Identity()), "us", "s")).ok());
  ASSERT_TRUE(Put("a").ok());
  for (const char* id : {"b", "c", "d"}) ASSERT_TRUE(Put(id, /*pinned=*/true).ok());
  for (const char* id : {"a", "s"}) ASSERT_FALSE(HasVoxels(**context().volumes.FindOf("", id))) << id;
  // A callback may still be in its last line when the test has heard of it.
  struct Ends {
    std::mutex mutex;
    std::vector<std::string> order;
    std::promise<void> two;
  };
  const auto ends = std::make_shared<Ends>();
  const auto load = [&](const std::string& id) {
    LoadVolume(context(), *context().volumes.FindOf("", id),
               [ends, id](const absl::StatusOr<Residency::Pointer>& loaded) {
                 std::lock_guard<std::mutex> lock(ends->mutex);
                 ends->order.push_back(
                     loaded.ok() ? id : id + ": " + std::string(absl::StatusCodeToString(loaded.status().code())));
                 if (ends->order.size() == 2) ends->two.set_value();
               });
  };
  load("a");
  load("s");
  ends->two.get_future().wait();
  std::lock_guard<std::mutex> lock(ends->mutex);
  EXPECT_THAT(ends->order, testing::ElementsAre("s", "a: RESOURCE_EXHAUSTED"));
}

TEST_P(ResidencyTest, UploadsUsesAndDeletionsAtOnce) {
  for (const char* id : {"a", "b", "c", "d", "e"}) ASSERT_TRUE(Put(id).ok());
  std::vector<std::thread> clients;
  std::atomic<int> done{0};
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([this, i, &done] {
      for (int n = 0; n < 12; ++n) {
        const std::string id(1, static_cast<char>('a' + (i + 2 * n) % 5));
        const DownloadedBytes download = Download(id);
        const bool is_refused = download.status.error_code() == grpc::RESOURCE_EXHAUSTED;
        EXPECT_TRUE(download.status.ok() || is_refused) << download.status.error_message();
        if (!download.status.ok()) continue;
        EXPECT_TRUE(download.bytes == Bytes(Voxels(id))) << id;
        ++done;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(done, 0);
  for (const char* id : {"a", "b", "c", "d", "e"}) {
    EXPECT_TRUE(Eventually([&] { return Download(id).status.ok(); })) << id;
    ExpectIntact(id);
  }
}

TEST_P(ResidencyTest, ADeletedVolumeDoesNotComeBack) {
  for (const char* id : {"a", "b", "c", "d"}) ASSERT_TRUE(Put(id).ok());
  ASSERT_EQ(List(), "(a)bcd");
  ASSERT_OK(context().durable.Erase(context().volumes, "a", Anybody()));
  EXPECT_EQ(Download("a").status.error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(List(), "bcd");
}

TEST_P(ResidencyTest, AFlippedBitIsFoundOnTheWayBackAndNeverServed) {
  for (const char* id : {"a", "b", "c", "d"}) ASSERT_TRUE(Put(id).ok());
  ASSERT_EQ(List(), "(a)bcd");
  const auto rows = *context().durable.state().List();
  disk_.FlipBit("d/" + state::PayloadSpool::FileName(rows[0].payload), 1000);
  const grpc::Status damaged = Download("a").status;
  EXPECT_STATUS(damaged, grpc::DATA_LOSS, "volumes/a");
  EXPECT_EQ(ReasonOf(damaged), v1::OBJECT_DAMAGED);
  EXPECT_EQ(ReasonOf(Register("a", "b")), v1::OBJECT_DAMAGED);
  EXPECT_THAT(List(), HasSubstr("?a"));
  EXPECT_EQ(Metric("intrawarp_volume_loads_total{outcome=\"failed\"}"), 1);
  ASSERT_OK(context().durable.Erase(context().volumes, "a", Anybody()));
  EXPECT_TRUE(Put("a").ok());
}

TEST_P(ResidencyTest, ADiskThatDoesNotAnswerIsNoLoss) {
  for (const char* id : {"a", "b", "c", "d"}) ASSERT_TRUE(Put(id).ok());
  ASSERT_EQ(List(), "(a)bcd");
  files_.Unplug();
  const grpc::Status status = Download("a").status;
  EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE) << status.error_message();
  EXPECT_EQ(ReasonOf(status), v1::STATE_UNAVAILABLE);
  EXPECT_THAT(List(), HasSubstr("(a)"));
  files_.Replug();
  ExpectIntact("a");
}

TEST_P(ResidencyTest, MoreVolumesThanMemoryComeBackAfterARestart) {
  for (const char* id : {"a", "b", "c", "d", "e", "f"}) ASSERT_TRUE(Put(id).ok());
  Restart();
  EXPECT_EQ(context().volumes.size(), 6);
  EXPECT_EQ(Metric("intrawarp_volumes{residency=\"resident\"}"), 3);
  for (const char* id : {"a", "b", "c", "d", "e", "f"}) ExpectIntact(id);
}

// A field on the disk is not a volume: results take the place of volumes.
TEST_P(ResidencyTest, AResultTakesTheRoomOfAVolume) {
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(Put(id).ok());
  v1::UploadRequest header = HeaderRequest("t", "");
  const std::string field = Bytes(std::vector<float>(static_cast<size_t>(3 * kGrid.voxels()), 0.5f));
  ASSERT_TRUE(Send(FieldRequests("t", kGrid, field)).status.ok());
  EXPECT_THAT(List(), HasSubstr("(a)"));
  ExpectIntact("c");
}

}  // namespace
}  // namespace intrawarp::server
