// SPDX-License-Identifier: Apache-2.0
// Uploads of volumes: what is refused by its field, what breaks and is resumed, what expires.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/service/volume_service.h"
#include "tests/server/volume/volume_fixture.h"
#include "tests/server/volume_client.h"
#include "tests/tcp_relay.h"

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

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

}  // namespace
}  // namespace intrawarp::server
