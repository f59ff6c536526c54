// SPDX-License-Identifier: Apache-2.0
// Volumes over the wire: what works, what is refused and how, and that nothing is left behind.
#include "server/service/volume_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/http_client.h"
#include "tests/server/test_server.h"
#include "tests/server/volume_client.h"
#include "tests/tcp_relay.h"

namespace intrawarp::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

bool Nothing(const v1::Usage& usage) { return usage.ByteSizeLong() == 0; }

class VolumeServiceTest : public ::testing::Test {
 protected:
  VolumeServiceTest() : stub_(test_.Stub<v1::VolumeService>()), bulk_(test_.Stub<v1::BulkService>()) {}
  // Whatever a test did, what it did not store is gone, at the latest when unfinished uploads have expired.
  ~VolumeServiceTest() override {
    for (const std::string& name : Names()) Delete(name);
    test_.WaitForUsage([](const v1::Usage& usage) { return usage.streams() == 0 && usage.jobs() == 0; });
    const v1::Usage usage = test_.WaitForExpiredUsage(Nothing);
    EXPECT_TRUE(Nothing(usage)) << usage.ShortDebugString();
    for (int i = 0; i < 500 && test_.server->context().pinned.leased_bytes() > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(test_.server->context().pinned.leased_bytes(), 0u);
  }

  std::vector<std::string> Names() {
    grpc::ClientContext call;
    v1::ListVolumesRequest request;
    request.set_page_size(1000);
    v1::ListVolumesResponse response;
    EXPECT_TRUE(stub_->ListVolumes(&call, request, &response).ok());
    std::vector<std::string> names;
    for (const v1::Volume& volume : response.volumes()) names.push_back(volume.name());
    return names;
  }
  grpc::Status Delete(const std::string& name) {
    grpc::ClientContext call;
    v1::DeleteVolumeRequest request;
    request.set_name(name);
    v1::DeleteVolumeResponse response;
    return stub_->DeleteVolume(&call, request, &response);
  }
  grpc::Status Get(const std::string& name, v1::Volume* volume) {
    grpc::ClientContext call;
    v1::GetVolumeRequest request;
    request.set_name(name);
    v1::GetVolumeResponse response;
    const grpc::Status status = stub_->GetVolume(&call, request, &response);
    *volume = response.volume();
    return status;
  }
  grpc::Status UploadStatus(const std::string& upload_id, v1::GetUploadStatusResponse* response) {
    grpc::ClientContext call;
    v1::GetUploadStatusRequest request;
    request.set_upload_id(upload_id);
    return bulk_->GetUploadStatus(&call, request, response);
  }
  // Waits until so much of the upload is there.
  void WaitForCommitted(const std::string& upload_id, int64_t committed) {
    v1::GetUploadStatusResponse status;
    for (int i = 0; i < 1000; ++i) {
      if (UploadStatus(upload_id, &status).ok() && status.committed_bytes() == committed) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ADD_FAILURE() << status.committed_bytes() << " instead of " << committed;
  }
  void WaitForNoStreams() {
    EXPECT_EQ(test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0; }).streams(), 0);
  }

  TestServer test_;
  std::unique_ptr<v1::VolumeService::Stub> stub_;
  std::unique_ptr<v1::BulkService::Stub> bulk_;
};

UploadData WithProvenance(const std::string& upload_id, const std::string& id, const v1::Provenance& from) {
  UploadData data = MakeVolume(BoxGeometry(5, 4, 3), RandomVoxels<int16_t>(BoxGeometry(5, 4, 3), 3), upload_id, id);
  *data.header.mutable_volume()->mutable_provenance() = from;
  return data;
}

v1::Provenance DicomProvenance() {
  v1::Provenance from;
  from.set_source(v1::PROVENANCE_SOURCE_DICOM);
  from.set_modality("MR");
  from.set_series_hash(std::string("\0\xff series hash of thirty-two bytes", 32));
  from.set_frame_of_reference_hash(std::string(32, 'f'));
  return from;
}

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

TEST_F(VolumeServiceTest, WrongProvenanceIsRefusedByItsField) {
  const auto refused = [&](const std::function<void(v1::Provenance&)>& change) {
    v1::Provenance from = DicomProvenance();
    change(from);
    v1::UploadResponse response;
    const grpc::Status status = Upload(*bulk_, WithProvenance("wrong", "wrong", from), &response);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << from.ShortDebugString();
    // A text of the client's is not repeated.
    EXPECT_THAT(status.error_message(), testing::Not(HasSubstr("ZAUNKOENIG")));
    return status.error_message().substr(0, status.error_message().find(':'));
  };
  const std::string field = "header.volume.provenance.";
  EXPECT_EQ(refused([](v1::Provenance& p) { p.clear_source(); }), field + "source");
  EXPECT_EQ(refused([](v1::Provenance& p) { p.set_source(static_cast<v1::ProvenanceSource>(99)); }), field + "source");
  // The server's own.
  EXPECT_EQ(refused([](v1::Provenance& p) { p.set_source(v1::PROVENANCE_SOURCE_STORAGE); }), field + "source");
  EXPECT_EQ(refused([](v1::Provenance& p) { p.set_source(v1::PROVENANCE_SOURCE_RETRIEVED); }), field + "source");
  EXPECT_EQ(refused([](v1::Provenance& p) { p.set_modality("ZAUNKOENIG"); }), field + "modality");
  EXPECT_EQ(refused([](v1::Provenance& p) { p.set_modality("ct"); }), field + "modality");
  EXPECT_EQ(refused([](v1::Provenance& p) { p.set_series_hash(std::string(31, 'a')); }), field + "series_hash");
  EXPECT_EQ(refused([](v1::Provenance& p) { p.set_series_hash(std::string(1 << 16, 'a')); }), field + "series_hash");
  EXPECT_EQ(refused([](v1::Provenance& p) { p.set_frame_of_reference_hash("1.2.826.0.1"); }),
            field + "frame_of_reference_hash");
  const auto file = [](v1::Provenance& p) { p.set_source(v1::PROVENANCE_SOURCE_FILE); };
  EXPECT_EQ(refused(file), field + "modality");
  EXPECT_EQ(refused([&](v1::Provenance& p) { file(p), p.clear_modality(); }), field + "series_hash");
  EXPECT_EQ(refused([&](v1::Provenance& p) { file(p), p.clear_modality(), p.clear_series_hash(); }),
            field + "frame_of_reference_hash");
  EXPECT_TRUE(Names().empty());
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

struct BadHeader {
  const char* field;
  std::function<void(v1::UploadHeader&)> spoil;
};

TEST_F(VolumeServiceTest, EachWrongHeaderNamesItsField) {
  const auto geometry = [](v1::UploadHeader& h) { return h.mutable_volume()->mutable_geometry(); };
  const auto rescale = [](v1::UploadHeader& h) { return h.mutable_volume()->mutable_rescale(); };
  const std::vector<BadHeader> cases = {
      {"header.id", [](auto& h) { h.set_id("-x"); }},
      {"header.id", [](auto& h) { h.set_id(std::string(64, 'x')); }},
      {"header.id", [](auto& h) { h.set_id("../x"); }},
      {"header.upload_id", [](auto& h) { h.clear_upload_id(); }},
      {"header.upload_id", [](auto& h) { h.set_upload_id(std::string(65, 'x')); }},
      {"header.volume.geometry.size", [](auto& h) { h.mutable_volume()->clear_geometry(); }},
      {"header.volume.geometry.size", [&](auto& h) { geometry(h)->set_size(0, 0); }},
      {"header.volume.geometry.size", [&](auto& h) { geometry(h)->set_size(1, -5); }},
      {"header.volume.geometry.size", [&](auto& h) { geometry(h)->add_size(1); }},
      {"header.volume.geometry.size",
       [&](auto& h) {
         for (int a = 0; a < 3; ++a) geometry(h)->set_size(a, int64_t{1} << 31);
       }},
      {"header.volume.geometry.size", [&](auto& h) { geometry(h)->set_size(0, (int64_t{1} << 32) + 5); }},
      {"header.volume.geometry.spacing", [&](auto& h) { geometry(h)->set_spacing(0, 0); }},
      {"header.volume.geometry.spacing", [&](auto& h) { geometry(h)->set_spacing(1, -1); }},
      {"header.volume.geometry.spacing", [&](auto& h) { geometry(h)->set_spacing(2, kNan); }},
      {"header.volume.geometry.origin", [&](auto& h) { geometry(h)->set_origin(2, kInf); }},
      {"header.volume.geometry.direction", [&](auto& h) { geometry(h)->set_direction(0, 0); }},
      {"header.volume.geometry.direction", [&](auto& h) { geometry(h)->set_direction(1, 0.5); }},
      {"header.volume.geometry.direction", [&](auto& h) { geometry(h)->set_direction(4, kNan); }},
      {"header.volume.pixel_type", [](auto& h) { h.mutable_volume()->clear_pixel_type(); }},
      {"header.volume.pixel_type", [](auto& h) { h.mutable_volume()->set_pixel_type(static_cast<v1::PixelType>(77)); }},
      {"header.total_bytes", [](auto& h) { h.mutable_volume()->set_pixel_type(v1::PIXEL_TYPE_FLOAT64); }},
      {"header.total_bytes", [](auto& h) { h.set_total_bytes(h.total_bytes() - 1); }},
      {"header.total_bytes", [](auto& h) { h.set_total_bytes(-1); }},
      {"header.total_bytes", [](auto& h) { h.set_total_bytes(std::numeric_limits<int64_t>::max()); }},
      {"header.sha256", [](auto& h) { h.clear_sha256(); }},
      {"header.sha256", [](auto& h) { h.set_sha256(std::string(31, 'x')); }},
      {"header.volume.rescale.slope", [&](auto& h) { rescale(h)->set_slope(kNan); }},
      {"header.volume.rescale.slope", [&](auto& h) { rescale(h)->set_intercept(3); }},
      {"header.volume.rescale.intercept", [&](auto& h) { rescale(h)->set_slope(1), rescale(h)->set_intercept(kInf); }},
      {"header.content", [](auto& h) { h.clear_volume(); }},
  };
  const UploadData good = MakeVolume(BoxGeometry(4, 3, 2), RandomVoxels<float>(BoxGeometry(4, 3, 2), 4), "u");
  for (size_t i = 0; i < cases.size(); ++i) {
    UploadData bad = good;
    cases[i].spoil(bad.header);
    // Answered before the client ends its stream.
    UploadCall call(*bulk_);
    call.SendHeader(bad.header);
    const grpc::Status status = call.Await();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << i << " " << status.error_message();
    EXPECT_EQ(DetailsOf(status).field, cases[i].field) << i << " " << status.error_message();
    EXPECT_EQ(test_.Info().usage().uploads(), 0) << i;
    EXPECT_EQ(test_.Info().usage().resident_bytes(), 0) << i;
  }
}

struct BadStream {
  const char* what;
  grpc::StatusCode code;
  const char* field;
  std::function<void(UploadCall&, const UploadData&)> send;
};

TEST_F(VolumeServiceTest, EachWrongStreamGetsItsStatusAndIsDropped) {
  using grpc::StatusCode;
  const std::vector<BadStream> cases = {
      {"nothing", StatusCode::INVALID_ARGUMENT, "header", [](UploadCall&, const UploadData&) {}},
      {"chunk before header", StatusCode::INVALID_ARGUMENT, "header",
       [](UploadCall& c, const UploadData& v) { c.SendChunk(0, v.bytes); }},
      {"no payload", StatusCode::INVALID_ARGUMENT, "header", [](UploadCall& c, const UploadData&) { c.Send({}); }},
      {"no payload after the header", StatusCode::INVALID_ARGUMENT, "chunk",
       [](UploadCall& c, const UploadData& v) { c.SendHeader(v.header), c.Send({}); }},
      {"two headers", StatusCode::INVALID_ARGUMENT, "header",
       [](UploadCall& c, const UploadData& v) { c.SendHeader(v.header), c.SendHeader(v.header); }},
      {"gap at the start", StatusCode::OUT_OF_RANGE, "chunk.offset",
       [](UploadCall& c, const UploadData& v) { c.SendHeader(v.header), c.SendChunk(1, v.bytes.substr(1)); }},
      {"out of order", StatusCode::OUT_OF_RANGE, "chunk.offset",
       [](UploadCall& c, const UploadData& v) {
         c.SendHeader(v.header);
         c.SendChunk(0, v.bytes.substr(0, 10)), c.SendChunk(20, v.bytes.substr(20)), c.SendChunk(10, "0123456789");
       }},
      {"overlap", StatusCode::OUT_OF_RANGE, "chunk.offset",
       [](UploadCall& c, const UploadData& v) {
         c.SendHeader(v.header), c.SendChunk(0, v.bytes.substr(0, 10)), c.SendChunk(9, v.bytes.substr(9));
       }},
      {"repeated", StatusCode::OUT_OF_RANGE, "chunk.offset",
       [](UploadCall& c, const UploadData& v) {
         c.SendHeader(v.header), c.SendChunk(0, v.bytes.substr(0, 10)), c.SendChunk(0, v.bytes.substr(0, 10));
       }},
      {"negative offset", StatusCode::OUT_OF_RANGE, "chunk.offset",
       [](UploadCall& c, const UploadData& v) { c.SendHeader(v.header), c.SendChunk(-1, v.bytes); }},
      {"past the end", StatusCode::OUT_OF_RANGE, "chunk.data",
       [](UploadCall& c, const UploadData& v) { c.SendHeader(v.header), c.SendChunk(0, v.bytes + "x"); }},
      {"too many", StatusCode::OUT_OF_RANGE, "chunk.data",
       [](UploadCall& c, const UploadData& v) {
         c.SendHeader(v.header), c.SendChunk(0, v.bytes), c.SendChunk(v.bytes.size(), "x");
       }},
      {"empty chunk", StatusCode::INVALID_ARGUMENT, "chunk.data",
       [](UploadCall& c, const UploadData& v) { c.SendHeader(v.header), c.SendChunk(0, ""); }},
      {"chunk too large", StatusCode::INVALID_ARGUMENT, "chunk.data",
       [](UploadCall& c, const UploadData& v) {
         c.SendHeader(v.header), c.SendChunk(0, std::string((1 << 20) + 1, 'x'));
       }},
  };
  const Geometry geometry = BoxGeometry(6, 5, 4);
  const UploadData good = MakeVolume(geometry, RandomVoxels<float>(geometry, 5), "u");
  for (const BadStream& bad : cases) {
    UploadCall call(*bulk_);
    bad.send(call, good);
    const grpc::Status status = call.Finish();
    EXPECT_EQ(status.error_code(), bad.code) << bad.what << ": " << status.error_message();
    EXPECT_EQ(DetailsOf(status).field, bad.field) << bad.what << ": " << status.error_message();
    EXPECT_EQ(test_.Info().usage().uploads(), 0) << bad.what;
    EXPECT_EQ(test_.Info().usage().resident_bytes(), 0) << bad.what;
  }
  // The same upload_id serves again.
  EXPECT_TRUE(Upload(*bulk_, good).ok());
}

TEST_F(VolumeServiceTest, ChunkFarTooLargeIsRefusedByTheTransport) {
  UploadCall call(*bulk_);
  call.SendChunk(0, std::string(3 << 20, 'x'));
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(VolumeServiceTest, TooFewBytesCanStillBeResumedUntilTheUploadExpires) {
  const Geometry geometry = BoxGeometry(6, 5, 4);
  const UploadData volume = MakeVolume(geometry, RandomVoxels<float>(geometry, 6), "u");
  UploadCall call(*bulk_);
  call.SendHeader(volume.header);
  call.SendBytes(volume.bytes, 0, 100, 50);
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(status).reason, "UPLOAD_INCOMPLETE");
  EXPECT_EQ(DetailsOf(status).field, "chunk.data");
  WaitForNoStreams();
  v1::GetUploadStatusResponse progress;
  ASSERT_TRUE(UploadStatus("u", &progress).ok());
  EXPECT_EQ(progress.committed_bytes(), 100);
  EXPECT_EQ(progress.total_bytes(), static_cast<int64_t>(volume.bytes.size()));

  test_.clock.Advance(std::chrono::seconds(299));
  test_.server->Housekeep();
  EXPECT_EQ(test_.Info().usage().uploads(), 1);
  test_.clock.Advance(std::chrono::seconds(1));
  test_.server->Housekeep();
  EXPECT_TRUE(Nothing(test_.Info().usage()));
  EXPECT_EQ(UploadStatus("u", &progress).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(VolumeServiceTest, WrongDigestIsDataLossAndDropsTheUpload) {
  const Geometry geometry = BoxGeometry(6, 5, 4);
  UploadData volume = MakeVolume(geometry, RandomVoxels<float>(geometry, 7), "u");
  volume.bytes[11] ^= 1;
  const grpc::Status status = Upload(*bulk_, volume);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(DetailsOf(status).reason, "DIGEST_MISMATCH");
  EXPECT_EQ(test_.Info().usage().uploads(), 0);
}

TEST_F(VolumeServiceTest, VoxelsThatAreNotFiniteAreRefused) {
  const Geometry geometry = BoxGeometry(6, 5, 4);
  for (const double bad : {kNan, kInf, -kInf, 1e300}) {  // the last is infinite as float32
    std::vector<double> voxels = RandomVoxels<double>(geometry, 8);
    voxels[17] = bad;
    const grpc::Status status = Upload(*bulk_, MakeVolume(geometry, voxels, "u"));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << bad;
    EXPECT_EQ(DetailsOf(status).field, "voxels") << status.error_message();
    EXPECT_EQ(test_.Info().usage().uploads(), 0);
    EXPECT_EQ(test_.Info().usage().resident_bytes(), 0);
  }
}

// An atlas' labels, of which float32 would make others.
TEST_F(VolumeServiceTest, WholeNumbersThatFloatCannotHoldAreRefused) {
  int uploads = 0;
  const auto put = [&](auto value, double slope = 1) {
    using T = decltype(value);
    UploadData volume = MakeVolume(BoxGeometry(3, 1, 1), std::vector<T>{1, value, 2}, absl::StrCat("u", ++uploads));
    volume.header.mutable_volume()->mutable_rescale()->set_slope(slope);
    volume.header.mutable_volume()->mutable_rescale()->set_intercept(0);
    return Upload(*bulk_, volume);
  };
  for (const int32_t label : {16777217, -16777217, 614454277}) {
    const grpc::Status refused = put(label);
    EXPECT_EQ(refused.error_code(), grpc::INVALID_ARGUMENT);
    EXPECT_EQ(DetailsOf(refused).field, "voxels");
    EXPECT_THAT(refused.error_message(), HasSubstr(absl::StrCat("int32 is ", label)));
    EXPECT_THAT(put(static_cast<double>(label)).error_message(), HasSubstr(absl::StrCat("float64 is ", label)));
  }
  EXPECT_THAT(put(uint32_t{4294967295}).error_message(), HasSubstr("uint32 is 4294967295"));
  EXPECT_THAT(put(int32_t{5000001}, 7).error_message(), HasSubstr("int32 is 35000007"));
  EXPECT_TRUE(Names().empty());
  // Exact ones, and measured values, of which the last digit may be rounded.
  EXPECT_TRUE(put(int32_t{16777216}).ok());
  EXPECT_TRUE(put(uint32_t{2147483648}).ok());
  EXPECT_TRUE(put(uint32_t{4294967295}, 1e-7).ok());
  EXPECT_TRUE(put(614454277.25).ok());
}

TEST_F(VolumeServiceTest, BrokenUploadResumes) {
  const Geometry geometry = BoxGeometry(60, 50, 40);
  const std::vector<int16_t> voxels = RandomVoxels<int16_t>(geometry, 9);
  const UploadData volume = MakeVolume(geometry, voxels, "u", "x");
  const int64_t total = volume.bytes.size();
  int64_t at = 0;
  for (const int64_t end : {int64_t{0}, int64_t{1}, total / 3, total - 1, total}) {
    UploadCall call(*bulk_);
    call.SendHeader(volume.header);
    call.SendBytes(volume.bytes, at, end, 10000);
    WaitForCommitted("u", end);
    call.Cancel();
    WaitForNoStreams();
    at = end;
  }
  UploadCall call(*bulk_);
  call.SendHeader(volume.header);
  const grpc::Status status = call.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  const DownloadedVolume back = Download(*bulk_, "volumes/x");
  EXPECT_EQ(std::vector<float>(voxels.begin(), voxels.end()), back.voxels);
  v1::GetUploadStatusResponse progress;
  const grpc::Status gone = UploadStatus("u", &progress);
  EXPECT_EQ(gone.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(DetailsOf(gone).reason, "RESOURCE_NOT_FOUND");
}

TEST_F(VolumeServiceTest, ResumingWithAnotherHeaderDropsTheUpload) {
  const Geometry geometry = BoxGeometry(6, 5, 4);
  UploadData volume = MakeVolume(geometry, RandomVoxels<float>(geometry, 10), "u");
  UploadCall first(*bulk_);
  first.SendHeader(volume.header);
  first.SendBytes(volume.bytes, 0, 1, 1);
  WaitForCommitted("u", 1);
  first.Cancel();
  WaitForNoStreams();
  volume.header.mutable_volume()->mutable_geometry()->set_spacing(0, 9);
  const grpc::Status status = Upload(*bulk_, volume);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(status).reason, "INVALID_FIELD");
  EXPECT_EQ(DetailsOf(status).field, "header");
  EXPECT_EQ(test_.Info().usage().uploads(), 0);
}

TEST_F(VolumeServiceTest, AnUploadWithoutAByteGoesWithItsStream) {
  const Geometry geometry = BoxGeometry(6, 5, 4);
  const UploadData volume = MakeVolume(geometry, RandomVoxels<float>(geometry, 10), "u");
  UploadCall call(*bulk_);
  call.SendHeader(volume.header);
  WaitForCommitted("u", 0);
  EXPECT_EQ(test_.Info().usage().uploads(), 1);
  call.Cancel();
  WaitForNoStreams();
  EXPECT_EQ(test_.WaitForUsage([](const v1::Usage& u) { return u.uploads() == 0; }).uploads(), 0);
  v1::GetUploadStatusResponse progress;
  EXPECT_EQ(UploadStatus("u", &progress).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(VolumeServiceTest, UploadIsIdempotentByDigest) {
  const Geometry geometry = BoxGeometry(6, 5, 4);
  const std::vector<float> voxels = RandomVoxels<float>(geometry, 12);
  v1::UploadResponse first, second;
  ASSERT_TRUE(Upload(*bulk_, MakeVolume(geometry, voxels, "u1"), &first).ok());
  // Answered after the header, while the client still writes.
  UploadCall early(*bulk_);
  early.SendHeader(MakeVolume(geometry, voxels, "u2").header);
  ASSERT_TRUE(early.Await().ok());
  EXPECT_TRUE(early.response().already_resident());
  EXPECT_EQ(early.response().volume().SerializeAsString(), first.volume().SerializeAsString());
  ASSERT_TRUE(Upload(*bulk_, MakeVolume(geometry, voxels, "u3"), &second).ok());
  EXPECT_TRUE(second.already_resident());
  EXPECT_EQ(test_.Info().usage().volumes(), 1);

  // The same bytes on another grid, or with another rescale, are another volume.
  Geometry other = geometry;
  other.spacing.x = 7;
  ASSERT_TRUE(Upload(*bulk_, MakeVolume(other, voxels, "u4"), &second).ok());
  EXPECT_FALSE(second.already_resident());
  UploadData rescaled = MakeVolume(geometry, voxels, "u5");
  rescaled.header.mutable_volume()->mutable_rescale()->set_slope(2);
  ASSERT_TRUE(Upload(*bulk_, rescaled, &second).ok());
  EXPECT_FALSE(second.already_resident());
  EXPECT_EQ(test_.Info().usage().volumes(), 3);
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

TEST_F(VolumeServiceTest, TwoUploadsOfOneIdOneWins) {
  const Geometry geometry = BoxGeometry(6, 5, 4);
  const UploadData a = MakeVolume(geometry, RandomVoxels<float>(geometry, 15), "ua", "x");
  const UploadData b = MakeVolume(geometry, RandomVoxels<float>(geometry, 16), "ub", "x");
  UploadCall first(*bulk_), second(*bulk_);
  first.SendHeader(a.header), second.SendHeader(b.header);
  WaitForCommitted("ua", 0), WaitForCommitted("ub", 0);
  first.SendChunk(0, a.bytes), second.SendChunk(0, b.bytes);
  EXPECT_TRUE(first.Finish().ok());
  const grpc::Status lost = second.Finish();
  EXPECT_EQ(lost.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(test_.Info().usage().uploads(), 0);
}

TEST_F(VolumeServiceTest, DeadlineLeavesOnlyAnUploadThatExpires) {
  const Geometry geometry = BoxGeometry(6, 5, 4);
  const UploadData volume = MakeVolume(geometry, RandomVoxels<float>(geometry, 17), "u");
  // On a busy machine a call can pass its deadline before the server has its header, and then leaves nothing.
  for (auto deadline = std::chrono::milliseconds(300); deadline < std::chrono::seconds(30); deadline *= 3) {
    UploadCall call(*bulk_, deadline);
    call.SendHeader(volume.header);
    call.SendChunk(0, volume.bytes.substr(0, 40));
    EXPECT_EQ(call.Await().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    WaitForNoStreams();
    if (test_.Info().usage().uploads() == 1) break;
  }
  EXPECT_EQ(test_.Info().usage().uploads(), 1);
}

TEST_F(VolumeServiceTest, VanishedUploaderLeavesOnlyAnUploadThatExpires) {
  const Geometry geometry = BoxGeometry(6, 5, 4);
  const UploadData volume = MakeVolume(geometry, RandomVoxels<float>(geometry, 18), "u");
  TcpRelay relay(test_.server->grpc_address());
  auto stub = v1::BulkService::NewStub(grpc::CreateChannel(relay.address(), grpc::InsecureChannelCredentials()));
  UploadCall call(*stub);
  call.SendHeader(volume.header);
  call.SendChunk(0, volume.bytes.substr(0, 40));
  WaitForCommitted("u", 40);
  relay.Cut();
  WaitForNoStreams();
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(test_.Info().usage().uploads(), 1);
  // And from another connection it goes on.
  UploadCall resumed(*bulk_);
  resumed.SendHeader(volume.header);
  resumed.SendBytes(volume.bytes, 40, volume.bytes.size(), 100);
  EXPECT_TRUE(resumed.Finish().ok());
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
