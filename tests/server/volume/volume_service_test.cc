// SPDX-License-Identifier: Apache-2.0
// Volumes over the wire: what they are, lists, names, deletes, downloads, metrics, limits.
#include "server/service/volume_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/http_client.h"
#include "tests/server/test_server.h"
#include "tests/server/volume/volume_fixture.h"
#include "tests/server/volume_client.h"
#include "tests/tcp_relay.h"

namespace intrawarp::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(VolumeServiceTest, AVolumeKnowsWhereItComesFrom) {
  const v1::Provenance from = DicomProvenance();
  v1::UploadResponse response;
  ASSERT_TRUE(Upload(*bulk_, WithProvenance("u1", "liver", from), &response).ok());
  EXPECT_EQ(response.volume().provenance().SerializeAsString(), from.SerializeAsString());
  v1::Volume volume;
  ASSERT_TRUE(Get("volumes/liver", &volume).ok());
  EXPECT_EQ(volume.provenance().SerializeAsString(), from.SerializeAsString());
  UploadData plain = WithProvenance("u2", "plain", {});
  plain.header.mutable_volume()->clear_provenance();
  ASSERT_TRUE(Upload(*bulk_, plain, &response).ok());
  EXPECT_FALSE(response.already_resident());
  EXPECT_FALSE(response.volume().has_provenance());
}

// Modality, series and frame of reference tell volumes of equal voxels apart; how they came does not.
TEST_F(VolumeServiceTest, ProvenanceTellsVolumesApart) {
  const v1::Provenance from = DicomProvenance();
  v1::UploadResponse response;
  ASSERT_TRUE(Upload(*bulk_, WithProvenance("u0", "", from), &response).ok());
  const std::string first = response.volume().name();
  ASSERT_TRUE(Upload(*bulk_, WithProvenance("u1", "", from), &response).ok());
  EXPECT_TRUE(response.already_resident());
  EXPECT_EQ(response.volume().name(), first);
  std::vector<v1::Provenance> others(5, from);
  others[0].set_modality("CT");
  others[1].set_series_hash(std::string(32, 'x'));
  others[2].clear_frame_of_reference_hash();
  // A hash counts as what it is.
  others[3].set_series_hash(from.frame_of_reference_hash());
  others[3].set_frame_of_reference_hash(from.series_hash());
  others[4].Clear();
  others[4].set_source(v1::PROVENANCE_SOURCE_FILE);
  int n = 2;
  for (const v1::Provenance& other : others) {
    ASSERT_TRUE(Upload(*bulk_, WithProvenance(absl::StrCat("u", n++), "", other), &response).ok());
    EXPECT_FALSE(response.already_resident()) << other.ShortDebugString();
  }
  // A file says no more of its voxels than nothing at all.
  UploadData plain = WithProvenance("plain", "", {});
  plain.header.mutable_volume()->clear_provenance();
  ASSERT_TRUE(Upload(*bulk_, plain, &response).ok());
  EXPECT_TRUE(response.already_resident());
}

template <typename T>
class VolumePixelTypeTest : public VolumeServiceTest {};

using PixelTypes = ::testing::Types<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, double>;

TYPED_TEST_SUITE(VolumePixelTypeTest, PixelTypes);

TYPED_TEST(VolumePixelTypeTest, ComesBackAsFloat32) {
  const Geometry geometry = BoxGeometry(17, 9, 5);
  const std::vector<TypeParam> voxels = RandomVoxels<TypeParam>(geometry, 1);
  UploadData data = MakeVolume(geometry, voxels, "u", "liver");
  data.header.mutable_volume()->mutable_rescale()->set_slope(0.5);
  data.header.mutable_volume()->mutable_rescale()->set_intercept(-7);
  v1::UploadResponse response;
  const grpc::Status status = Upload(*this->bulk_, data, &response, /*chunk=*/37);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(response.already_resident());
  const v1::Volume& volume = response.volume();
  EXPECT_EQ(volume.name(), "volumes/liver");
  EXPECT_EQ(volume.pixel_type(), PixelTypeOf<TypeParam>());
  EXPECT_EQ(volume.digest(), data.header.sha256());
  EXPECT_GE(volume.resident_bytes(), geometry.voxels() * 4);
  EXPECT_GT(volume.create_time().seconds(), 0);
  EXPECT_TRUE(*GeometryFromProto(volume.geometry()) == geometry);
  const auto [least, most] = std::minmax_element(voxels.begin(), voxels.end());
  EXPECT_EQ(volume.minimum(), static_cast<float>(*least * 0.5 - 7));
  EXPECT_EQ(volume.maximum(), static_cast<float>(*most * 0.5 - 7));

  const DownloadedVolume back = Download(*this->bulk_, "volumes/liver");
  ASSERT_TRUE(back.status.ok()) << back.status.error_message();
  EXPECT_EQ(back.header.volume().SerializeAsString(), volume.SerializeAsString());
  ASSERT_EQ(back.voxels.size(), voxels.size());
  for (size_t i = 0; i < voxels.size(); ++i) ASSERT_EQ(back.voxels[i], static_cast<float>(voxels[i] * 0.5 - 7)) << i;

  v1::Volume got;
  ASSERT_TRUE(this->Get("volumes/liver", &got).ok());
  EXPECT_EQ(got.SerializeAsString(), volume.SerializeAsString());
  const v1::Usage usage = this->test_.Info().usage();
  EXPECT_EQ(usage.volumes(), 1);
  EXPECT_EQ(usage.uploads(), 0);
  EXPECT_EQ(usage.resident_bytes(), volume.resident_bytes());
}

TEST_F(VolumeServiceTest, ManySlabsAndChunks) {
  const Geometry geometry = BoxGeometry(201, 180, 150);  // 21.7 MB: three slabs, not a multiple of a chunk
  const std::vector<float> voxels = RandomVoxels<float>(geometry, 2);
  v1::UploadResponse response;
  ASSERT_TRUE(Upload(*bulk_, MakeVolume(geometry, voxels, "u"), &response, 1 << 20).ok());
  const DownloadedVolume back = Download(*bulk_, response.volume().name());
  ASSERT_TRUE(back.status.ok()) << back.status.error_message();
  EXPECT_EQ(back.voxels, voxels);
  EXPECT_EQ(back.chunks, 21);
}

TEST_F(VolumeServiceTest, OneVoxelAndOneSlice) {
  for (const Geometry& geometry : {BoxGeometry(1, 1, 1), BoxGeometry(33, 20, 1)}) {
    const std::vector<float> voxels = RandomVoxels<float>(geometry, 3);
    v1::UploadResponse response;
    const grpc::Status status = Upload(*bulk_, MakeVolume(geometry, voxels, "u"), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(Download(*bulk_, response.volume().name()).voxels, voxels);
  }
}

TEST_F(VolumeServiceTest, IdsAreHonouredAndTakenOnce) {
  const Geometry geometry = BoxGeometry(6, 5, 4);
  const std::vector<float> voxels = RandomVoxels<float>(geometry, 13);
  v1::UploadResponse response;
  ASSERT_TRUE(Upload(*bulk_, MakeVolume(geometry, voxels, "u1", "a"), &response).ok());
  EXPECT_EQ(response.volume().name(), "volumes/a");
  ASSERT_TRUE(Upload(*bulk_, MakeVolume(geometry, voxels, "u2", "a"), &response).ok());
  EXPECT_TRUE(response.already_resident());

  const grpc::Status taken = Upload(*bulk_, MakeVolume(geometry, RandomVoxels<float>(geometry, 14), "u4", "a"));
  EXPECT_EQ(taken.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(DetailsOf(taken).resource, "volumes/a");
}

// Whoever names a volume may delete it: nobody else is given it for the same content.
TEST_F(VolumeServiceTest, AVolumeThatAClientNamedIsNobodyElses) {
  const Geometry geometry = BoxGeometry(6, 5, 4);
  const std::vector<float> voxels = RandomVoxels<float>(geometry, 13);
  v1::UploadResponse named, other, chosen, again;
  ASSERT_TRUE(Upload(*bulk_, MakeVolume(geometry, voxels, "u1", "a"), &named).ok());
  ASSERT_TRUE(Upload(*bulk_, MakeVolume(geometry, voxels, "u2", "b"), &other).ok());
  EXPECT_FALSE(other.already_resident());
  EXPECT_EQ(other.volume().name(), "volumes/b");
  ASSERT_TRUE(Upload(*bulk_, MakeVolume(geometry, voxels, "u3"), &chosen).ok());
  EXPECT_FALSE(chosen.already_resident());
  EXPECT_NE(chosen.volume().name(), "volumes/a");
  EXPECT_NE(chosen.volume().name(), "volumes/b");
  // The id that the server chose serves everyone who asks for none, not one who asks for another.
  ASSERT_TRUE(Upload(*bulk_, MakeVolume(geometry, voxels, "u4"), &again).ok());
  EXPECT_TRUE(again.already_resident());
  EXPECT_EQ(again.volume().name(), chosen.volume().name());
  ASSERT_TRUE(Upload(*bulk_, MakeVolume(geometry, voxels, "u5", "c"), &again).ok());
  EXPECT_FALSE(again.already_resident());
  EXPECT_EQ(test_.Info().usage().volumes(), 4);
}

TEST_F(VolumeServiceTest, VanishedDownloaderLeavesNothing) {
  const Geometry geometry = BoxGeometry(256, 256, 160);
  v1::UploadResponse uploaded;
  ASSERT_TRUE(Upload(*bulk_, MakeVolume(geometry, RandomVoxels<float>(geometry, 22), "u"), &uploaded, 1 << 20).ok());
  TcpRelay relay(test_.server->grpc_address());
  auto stub = v1::BulkService::NewStub(grpc::CreateChannel(relay.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext call;
  v1::DownloadRequest request;
  request.set_name(uploaded.volume().name());
  auto reader = stub->Download(&call, request);
  v1::DownloadResponse response;
  ASSERT_TRUE(reader->Read(&response));
  relay.Cut();
  WaitForNoStreams();
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(VolumeServiceTest, DownloadsThatNobodyReadsToTheEndLeaveNothing) {
  const Geometry geometry = BoxGeometry(256, 256, 160);  // 42 MB, more than the transport buffers
  v1::UploadResponse uploaded;
  ASSERT_TRUE(Upload(*bulk_, MakeVolume(geometry, RandomVoxels<float>(geometry, 19), "u"), &uploaded, 1 << 20).ok());
  v1::DownloadRequest request;
  request.set_name(uploaded.volume().name());
  v1::DownloadResponse response;
  for (const int reads : {0, 1, 5}) {
    for (const bool deadline : {false, true}) {
      grpc::ClientContext call;
      const auto expiry = std::chrono::system_clock::now() + std::chrono::milliseconds(200);
      if (deadline) call.set_deadline(expiry);
      auto reader = bulk_->Download(&call, request);
      for (int i = 0; i < reads; ++i) reader->Read(&response);
      // A client that does not read does not make the server pile up memory.
      EXPECT_LE(test_.server->context().pinned.leased_bytes(), size_t{32} << 20);
      if (!deadline) call.TryCancel();
      if (deadline) std::this_thread::sleep_until(expiry);  // the call may not even have arrived
      WaitForNoStreams();
      while (reader->Read(&response)) {
      }
      EXPECT_EQ(reader->Finish().error_code(),
                deadline ? grpc::StatusCode::DEADLINE_EXCEEDED : grpc::StatusCode::CANCELLED);
    }
  }
}

TEST_F(VolumeServiceTest, DeletedVolumeServesThoseWhoHoldIt) {
  const Geometry geometry = BoxGeometry(256, 256, 160);
  const std::vector<float> voxels = RandomVoxels<float>(geometry, 20);
  v1::UploadResponse uploaded;
  ASSERT_TRUE(Upload(*bulk_, MakeVolume(geometry, voxels, "u", "x"), &uploaded, 1 << 20).ok());
  grpc::ClientContext call;
  v1::DownloadRequest request;
  request.set_name("volumes/x");
  auto reader = bulk_->Download(&call, request);
  v1::DownloadResponse response;
  ASSERT_TRUE(reader->Read(&response));
  ASSERT_TRUE(Delete("volumes/x").ok());
  v1::Usage usage = test_.Info().usage();
  EXPECT_EQ(usage.volumes(), 0);
  EXPECT_EQ(usage.resident_bytes(), uploaded.volume().resident_bytes());
  EXPECT_EQ(Download(*bulk_, "volumes/x").status.error_code(), grpc::StatusCode::NOT_FOUND);
  std::string bytes;
  while (reader->Read(&response)) bytes += response.chunk().data();
  EXPECT_TRUE(reader->Finish().ok());
  ASSERT_EQ(bytes.size(), voxels.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(bytes.data(), voxels.data(), bytes.size()), 0);
  EXPECT_TRUE(Nothing(test_.WaitForUsage(Nothing)));
}

TEST_F(VolumeServiceTest, ListsInPages) {
  const Geometry geometry = BoxGeometry(3, 2, 1);
  for (int i = 0; i < 7; ++i) {
    const std::string id = "v" + std::to_string(i);
    ASSERT_TRUE(Upload(*bulk_, MakeVolume(geometry, RandomVoxels<float>(geometry, 100 + i), id, id)).ok());
  }
  std::vector<std::string> names;
  std::string token;
  std::vector<int> sizes;
  do {
    grpc::ClientContext call;
    v1::ListVolumesRequest request;
    request.set_page_size(3);
    request.set_page_token(token);
    v1::ListVolumesResponse response;
    ASSERT_TRUE(stub_->ListVolumes(&call, request, &response).ok());
    sizes.push_back(response.volumes_size());
    for (const v1::Volume& volume : response.volumes()) names.push_back(volume.name());
    token = response.next_page_token();
    // A token outlives the volume that it came from.
    if (!token.empty()) {
      ASSERT_TRUE(Delete(names.back()).ok());
    }
  } while (!token.empty());
  EXPECT_THAT(sizes, ElementsAre(3, 3, 1));
  EXPECT_THAT(names, ElementsAre("volumes/v0", "volumes/v1", "volumes/v2", "volumes/v3", "volumes/v4", "volumes/v5",
                                 "volumes/v6"));

  for (const auto& [size, bad_token, field] :
       std::vector<std::tuple<int, std::string, std::string>>{{-1, "", "page_size"}, {1, "/etc", "page_token"}}) {
    grpc::ClientContext call;
    v1::ListVolumesRequest request;
    request.set_page_size(size);
    request.set_page_token(bad_token);
    v1::ListVolumesResponse response;
    const grpc::Status status = stub_->ListVolumes(&call, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(DetailsOf(status).field, field);
  }
}

TEST_F(VolumeServiceTest, UnknownAndMalformedNames) {
  v1::Volume volume;
  for (const grpc::Status& status :
       {Get("volumes/nobody", &volume), Delete("volumes/nobody"), Download(*bulk_, "volumes/nobody").status}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_EQ(DetailsOf(status).resource, "volumes/nobody");
  }
  for (const std::string name : {"", "nobody", "volumes/", "transforms/x", "volumes/a/b"}) {
    for (const grpc::Status& status : {Get(name, &volume), Delete(name)}) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
      EXPECT_EQ(DetailsOf(status).field, "name");
    }
    if (name == "transforms/x") continue;  // a download of another kind
    const grpc::Status download = Download(*bulk_, name).status;
    EXPECT_EQ(download.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(DetailsOf(download).field, "name");
  }
  v1::GetUploadStatusResponse progress;
  EXPECT_EQ(DetailsOf(UploadStatus("", &progress)).field, "upload_id");
}

TEST_F(VolumeServiceTest, MetricsKnowOfVolumes) {
  const Geometry geometry = BoxGeometry(6, 5, 4);
  const UploadData volume = MakeVolume(geometry, RandomVoxels<float>(geometry, 21), "u", "x");
  ASSERT_TRUE(Upload(*bulk_, volume).ok());
  ASSERT_TRUE(Download(*bulk_, "volumes/x").status.ok());
  WaitForNoStreams();
  const std::string text = HttpGet(test_.server->http_address(), "/metrics").body;
  EXPECT_THAT(text, HasSubstr("intrawarp_resident_objects{kind=\"volume\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("handled_total{grpc_code=\"OK\",grpc_method=\"Upload\","));
  const auto value = [&text](const std::string& series) {
    const size_t at = text.find("\n" + series + " ");
    return at == std::string::npos ? -1.0 : std::atof(text.c_str() + at + series.size() + 2);
  };
  const std::string service = "grpc_service=\"intrawarp.v1.BulkService\"";
  const std::string upload = "{grpc_method=\"Upload\"," + service + ",grpc_type=\"client_stream\"}";
  const std::string download = "{grpc_method=\"Download\"," + service + ",grpc_type=\"server_stream\"}";
  EXPECT_GT(value("grpc_server_msg_received_bytes_total" + upload), 480);
  EXPECT_LT(value("grpc_server_msg_received_bytes_total" + upload), 1000);
  EXPECT_GT(value("grpc_server_msg_sent_bytes_total" + download), 480);
  EXPECT_LT(value("grpc_server_msg_sent_bytes_total" + download), 1000);
  EXPECT_EQ(text.find("volumes/x"), std::string::npos);
}

// Servers with little room.

TEST(VolumeLimits, LargerThanAllowedIsRefusedBeforeAnythingIsAllocated) {
  ServerOptions options = TestServer::DefaultOptions();
  options.limits.max_volume_bytes = 400;
  TestServer test(options);
  auto stub = test.Stub<v1::BulkService>();
  const Geometry fits = BoxGeometry(10, 10, 1), larger = BoxGeometry(101, 1, 1);
  EXPECT_TRUE(Upload(*stub, MakeVolume(fits, RandomVoxels<float>(fits, 1), "u1")).ok());
  const grpc::Status status = Upload(*stub, MakeVolume(larger, RandomVoxels<float>(larger, 1), "u2"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(status).field, "header.total_bytes");
}

TEST(VolumeLimits, ResidentMemoryIsCapped) {
  ServerOptions options = TestServer::DefaultOptions();
  options.limits.resident_capacity_bytes = 3 << 20;
  options.limits.uploading_capacity_bytes = 3 << 20;
  TestServer test(options);
  auto stub = test.Stub<v1::BulkService>();
  const Geometry geometry = BoxGeometry(100, 100, 45);  // 1.8 MB and its pyramid: one fits
  v1::UploadResponse first;
  ASSERT_TRUE(Upload(*stub, MakeVolume(geometry, RandomVoxels<float>(geometry, 1), "u1", "a"), &first, 1 << 20).ok());
  const UploadData second = MakeVolume(geometry, RandomVoxels<float>(geometry, 2), "u2");
  // At the header, before the bytes.
  UploadCall call(*stub);
  call.SendHeader(second.header);
  const grpc::Status status = call.Await();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(status).reason, "RESIDENT_MEMORY");
  EXPECT_TRUE(DetailsOf(status).retry);
  EXPECT_EQ(test.Info().usage().uploads(), 0);
  EXPECT_EQ(test.Info().usage().resident_bytes(), first.volume().resident_bytes());
  EXPECT_THAT(HttpGet(test.server->http_address(), "/metrics").body,
              HasSubstr("intrawarp_admission_rejections_total{reason=\"resident_memory\"} 1\n"));
  grpc::ClientContext delete_call;
  v1::DeleteVolumeRequest request;
  request.set_name("volumes/a");
  v1::DeleteVolumeResponse response;
  ASSERT_TRUE(test.Stub<v1::VolumeService>()->DeleteVolume(&delete_call, request, &response).ok());
  EXPECT_TRUE(Upload(*stub, second, nullptr, 1 << 20).ok());
}

TEST(VolumeLimits, BytesOfUnfinishedUploadsAreCapped) {
  ServerOptions options = TestServer::DefaultOptions();
  options.limits.uploading_capacity_bytes = 1 << 20;
  TestServer test(options);
  auto stub = test.Stub<v1::BulkService>();
  const Geometry geometry = BoxGeometry(100, 100, 45);
  const grpc::Status status =
      Upload(*stub, MakeVolume(geometry, RandomVoxels<float>(geometry, 1), "u"), nullptr, 1 << 20);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(DetailsOf(status).reason, "EXCEEDS_CAPACITY");
  EXPECT_FALSE(DetailsOf(status).retry);
  EXPECT_TRUE(Nothing(test.WaitForUsage(Nothing)));
}

TEST(VolumeLimits, UnfinishedUploadsAndStreamsAreCapped) {
  ServerOptions options = TestServer::DefaultOptions();
  options.limits.max_uploads = 2;
  options.limits.max_streams = 3;
  TestServer test(options);
  auto stub = test.Stub<v1::BulkService>();
  const Geometry geometry = BoxGeometry(6, 5, 4);
  std::vector<std::unique_ptr<UploadCall>> calls;
  for (int i = 0; i < 2; ++i) {
    calls.push_back(std::make_unique<UploadCall>(*stub));
    calls[i]->SendHeader(MakeVolume(geometry, RandomVoxels<float>(geometry, i), "u" + std::to_string(i)).header);
  }
  EXPECT_EQ(test.WaitForUsage([](const v1::Usage& u) { return u.uploads() == 2; }).uploads(), 2);
  const UploadData third = MakeVolume(geometry, RandomVoxels<float>(geometry, 3), "u3");
  grpc::Status status = Upload(*stub, third);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(status).reason, "TOO_MANY_UPLOADS");
  test.WaitForUsage([](const v1::Usage& u) { return u.streams() == 2; });

  calls.push_back(std::make_unique<UploadCall>(*stub));  // says nothing, but counts
  EXPECT_EQ(test.WaitForUsage([](const v1::Usage& u) { return u.streams() == 3; }).streams(), 3);
  status = Upload(*stub, third);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(status).reason, "TOO_MANY_STREAMS");
  EXPECT_EQ(DetailsOf(Download(*stub, "volumes/x").status).reason, "TOO_MANY_STREAMS");
  for (auto& call : calls) call->Cancel();
  EXPECT_EQ(test.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0; }).streams(), 0);
}

TEST(VolumeStop, UploadUnderWayEndsWithTheServer) {
  ServerOptions options = TestServer::DefaultOptions();
  options.drain_timeout = std::chrono::milliseconds(100);
  TestServer test(options);
  auto stub = test.Stub<v1::BulkService>();
  const Geometry geometry = BoxGeometry(6, 5, 4);
  const UploadData volume = MakeVolume(geometry, RandomVoxels<float>(geometry, 1), "u");
  UploadCall call(*stub);
  call.SendHeader(volume.header);
  call.SendChunk(0, volume.bytes.substr(0, 40));
  test.WaitForUsage([](const v1::Usage& u) { return u.uploads() == 1; });
  test.server->Stop();
  EXPECT_FALSE(call.Finish().ok());
  EXPECT_EQ(test.server->context().pinned.leased_bytes(), 0u);
}

TEST(VolumeStop, UploadThatFinishesInTimeIsServed) {
  TestServer test;
  auto stub = test.Stub<v1::BulkService>();
  const Geometry geometry = BoxGeometry(6, 5, 4);
  const UploadData volume = MakeVolume(geometry, RandomVoxels<float>(geometry, 1), "u");
  UploadCall call(*stub);
  call.SendHeader(volume.header);
  test.WaitForUsage([](const v1::Usage& u) { return u.uploads() == 1; });
  std::thread stop([&test] { test.server->Stop(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  call.SendBytes(volume.bytes, 0, volume.bytes.size(), 100);
  const grpc::Status status = call.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  stop.join();
}

}  // namespace
}  // namespace intrawarp::server
