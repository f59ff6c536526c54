// SPDX-License-Identifier: Apache-2.0
#include "server/service/transform_service.h"

#include <cmath>
#include <limits>

#include "io/file/digest.h"
#include "tests/server/service_fixture.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

AffineMap SomeMap() {
  AffineMap map;
  const double m[3][4] = {{1.02, -0.11, 0.03, 4.5}, {0.10, 0.97, -0.05, -7.25}, {-0.02, 0.06, 1.04, 2.125}};
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 4; ++c) map.m[r][c] = m[r][c];
  return map;
}

// A smooth field of a few mm.
std::vector<float> SomeField(const Geometry& grid) {
  std::vector<float> field(3 * grid.voxels());
  for (int64_t i = 0; i < grid.voxels(); ++i) {
    const int x = i % grid.size.x, y = i / grid.size.x % grid.size.y, z = i / grid.size.x / grid.size.y;
    field[3 * i] = 1.5f * std::sin(0.3f * y + 0.1f * z);
    field[3 * i + 1] = 2.0f * std::cos(0.2f * x);
    field[3 * i + 2] = -1.0f * std::sin(0.25f * x + 0.15f * y);
  }
  return field;
}

class TransformServiceTest : public ServiceTest {
 protected:
  using ServiceTest::ServiceTest;

  static v1::UploadRequest MatrixRequest(const std::string& id, const AffineMap& map) {
    v1::UploadRequest request = HeaderRequest(id, "");
    *request.mutable_header()->mutable_transform()->mutable_affine() = AffineMapToProto(map);
    return request;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(TransformServiceTest);

TEST_P(TransformServiceTest, AMatrixComesBackAsItWent) {
  const Upload upload = Send({MatrixRequest("m", SomeMap())});

  ASSERT_TRUE(upload.status.ok()) << upload.status.error_message();
  EXPECT_EQ(upload.response.transform().name(), "transforms/m");
  EXPECT_EQ(upload.response.transform().kind(), v1::TRANSFORM_KIND_AFFINE);
  EXPECT_FALSE(upload.response.transform().has_domain());
  EXPECT_GT(upload.response.transform().create_time().seconds(), 0);
  grpc::ClientContext rpc;
  v1::GetTransformRequest request;
  request.set_name("transforms/m");
  v1::GetTransformResponse response;
  ASSERT_TRUE(transforms_->GetTransform(&rpc, request, &response).ok());
  EXPECT_EQ(response.transform().SerializeAsString(), upload.response.transform().SerializeAsString());
  EXPECT_THAT(response.transform().affine().values(), testing::ElementsAreArray(AffineMapToProto(SomeMap()).values()));
}

TEST_P(TransformServiceTest, TheServerChoosesAnIdWhenNoneIsGiven) {
  const Upload first = Send({MatrixRequest("", SomeMap())}), second = Send({MatrixRequest("", AffineMap::Identity())});

  ASSERT_TRUE(first.status.ok() && second.status.ok());
  EXPECT_NE(first.response.transform().name(), second.response.transform().name());
  EXPECT_EQ(context().transforms.size(), 2);
}

TEST_P(TransformServiceTest, RefusesMatricesThatAreNone) {
  auto with = [](int index, double value) {
    v1::UploadRequest request = MatrixRequest("m", SomeMap());
    request.mutable_header()->mutable_transform()->mutable_affine()->set_values(index, value);
    return request;
  };
  v1::UploadRequest singular = MatrixRequest("m", SomeMap());
  for (int c = 0; c < 3; ++c) {
    singular.mutable_header()->mutable_transform()->mutable_affine()->set_values(4 + c, 2 * SomeMap().m[0][c]);
  }
  v1::UploadRequest fifteen = MatrixRequest("m", SomeMap());
  fifteen.mutable_header()->mutable_transform()->mutable_affine()->mutable_values()->RemoveLast();
  for (const auto& request :
       {with(3, std::nan("")), with(5, HUGE_VAL), with(12, 0.5), with(15, 2.0), singular, fifteen}) {
    const grpc::Status status = Send({request}).status;
    EXPECT_STATUS(status, grpc::INVALID_ARGUMENT, "header.transform.affine.values: ");
    EXPECT_EQ(FieldOf(status), "header.transform.affine.values");
  }
  v1::UploadRequest digest = MatrixRequest("m", SomeMap());
  digest.mutable_header()->set_sha256("x");
  EXPECT_EQ(FieldOf(Send({digest}).status), "header.sha256");
  EXPECT_EQ(context().transforms.size(), 0);
}

TEST_P(TransformServiceTest, RefusesWrongOrderAndIds) {
  const v1::UploadRequest matrix = MatrixRequest("m", SomeMap());
  v1::UploadRequest chunk, nothing;
  *chunk.mutable_chunk() = MakeChunk(0, "0123");
  EXPECT_STATUS(Send({}).status, grpc::INVALID_ARGUMENT, "header: is missing");
  EXPECT_STATUS(Send({chunk}).status, grpc::INVALID_ARGUMENT, "header: must be the first message");
  EXPECT_STATUS(Send({matrix, matrix}).status, grpc::INVALID_ARGUMENT, "header: may only be the first message");
  EXPECT_STATUS(Send({matrix, chunk}).status, grpc::OUT_OF_RANGE, "passes the end");
  EXPECT_STATUS(Send({nothing}).status, grpc::INVALID_ARGUMENT, "header: must be the first message");
  EXPECT_EQ(FieldOf(Send({MatrixRequest("../m", SomeMap())}).status), "header.id");
  v1::UploadRequest empty;
  empty = matrix;
  empty.mutable_header()->clear_transform();
  EXPECT_EQ(FieldOf(Send({empty}).status), "header.content");
  empty.mutable_header()->mutable_transform();
  EXPECT_EQ(FieldOf(Send({empty}).status), "header.transform.content");
  EXPECT_EQ(context().transforms.size(), 0);

  ASSERT_TRUE(Send({matrix}).status.ok());
  const Upload again = Send({matrix});
  EXPECT_TRUE(again.status.ok() && again.response.already_resident());
  EXPECT_STATUS(Send({MatrixRequest("m", AffineMap::Identity())}).status, grpc::ALREADY_EXISTS, "transforms/m");
  EXPECT_EQ(context().transforms.size(), 1);
}

TEST_P(TransformServiceTest, AFieldComesBackBitForBit) {
  const Geometry grid = ObliqueGeometry({61, 47, 53});  // 1.8 MB: several chunks, the last one not full
  const std::string bytes = Bytes(SomeField(grid));
  const Upload upload = Send(FieldRequests("f", grid, bytes, 300001));

  ASSERT_TRUE(upload.status.ok()) << upload.status.error_message();
  EXPECT_EQ(upload.response.transform().kind(), v1::TRANSFORM_KIND_DISPLACEMENT);
  EXPECT_EQ(upload.response.transform().resident_bytes(), bytes.size());
  EXPECT_EQ(context().ledger.in_use(Resource::kResident), bytes.size());
  v1::DownloadRequest request = WholeField("f");
  const Download download = GetField(request);
  ASSERT_TRUE(download.status.ok()) << download.status.error_message();
  EXPECT_EQ(download.field->total_bytes(), bytes.size());
  EXPECT_EQ(download.field->encoding(), v1::FIELD_ENCODING_FLOAT32);
  EXPECT_TRUE(*GeometryFromProto(download.field->geometry()) == grid);
  EXPECT_EQ(download.chunks.chunks(), (bytes.size() + (1 << 20) - 1) >> 20);
  EXPECT_TRUE(download.chunks.floats() == EngineField("f", grid));
  EXPECT_TRUE(download.chunks.bytes() == bytes);

  grpc::ClientContext rpc;
  v1::DeleteTransformRequest erase;
  erase.set_name("transforms/f");
  v1::DeleteTransformResponse erased;
  ASSERT_TRUE(transforms_->DeleteTransform(&rpc, erase, &erased).ok());
  EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kResident) == 0; }));
}

TEST_P(TransformServiceTest, RefusesFieldsThatAreNone) {
  const Geometry grid = ObliqueGeometry({5, 4, 3});
  const std::vector<float> field = SomeField(grid);
  const std::string bytes = Bytes(field);
  auto field_of = [this](const std::vector<v1::UploadRequest>& requests) { return FieldOf(Send(requests).status); };
  auto requests = FieldRequests("f", grid, bytes);
  v1::UploadHeader& header = *requests[0].mutable_header();
  const v1::UploadHeader good = header;

  header.mutable_transform()->mutable_field()->mutable_geometry()->set_spacing(1, 0);
  EXPECT_EQ(field_of(requests), "header.transform.field.geometry.spacing");
  header = good;
  header.mutable_transform()->mutable_field()->set_total_bytes(bytes.size() - 1);
  EXPECT_EQ(field_of(requests), "header.transform.field.total_bytes");
  header = good;
  header.mutable_transform()->mutable_field()->clear_encoding();
  EXPECT_EQ(field_of(requests), "header.transform.field.encoding");
  header = good;
  header.mutable_sha256()->pop_back();
  EXPECT_EQ(field_of(requests), "header.sha256");
  header = good;
  header.mutable_sha256()->at(7) ^= 1;
  EXPECT_STATUS(Send(requests).status, grpc::DATA_LOSS, "header.sha256: ");
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> broken = field;
    broken[100] = bad;
    const grpc::Status status = Send(FieldRequests("f", grid, Bytes(broken))).status;
    EXPECT_STATUS(status, grpc::INVALID_ARGUMENT, "NaN or infinite");
    EXPECT_EQ(FieldOf(status), "field");
  }
  EXPECT_EQ(context().transforms.size(), 0);
  EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kResident) == 0; }));
}

TEST_P(TransformServiceTest, RefusesChunksThatDoNotContinue) {
  const Geometry grid = ObliqueGeometry({5, 4, 3});  // 720 bytes
  const std::string bytes = Bytes(SomeField(grid));
  const auto good = FieldRequests("f", grid, bytes, 300);
  auto requests = good;
  std::swap(requests[1], requests[2]);
  EXPECT_STATUS(Send(requests).status, grpc::OUT_OF_RANGE, "chunk.offset: is 300, must be 0");
  requests = good;
  requests[2].mutable_chunk()->set_offset(299);
  EXPECT_STATUS(Send(requests).status, grpc::OUT_OF_RANGE, "chunk.offset: is 299, must be 300");
  requests = good;
  *requests[3].mutable_chunk() = MakeChunk(600, bytes.substr(600) + 'x');
  EXPECT_STATUS(Send(requests).status, grpc::OUT_OF_RANGE, "passes the end");
  requests = good;
  requests.pop_back();
  EXPECT_STATUS(Send(requests).status, grpc::INVALID_ARGUMENT, "chunk.data: the stream ended after 600 of 720 bytes");
  requests = good;
  requests[1].mutable_chunk()->clear_data();
  EXPECT_STATUS(Send(requests).status, grpc::INVALID_ARGUMENT, "chunk.data: is empty");
  requests = good;
  requests[2].mutable_chunk()->set_offset(std::numeric_limits<int64_t>::min());
  EXPECT_STATUS(Send(requests).status, grpc::OUT_OF_RANGE, "chunk.offset: ");
  EXPECT_EQ(context().transforms.size(), 0);
  EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kResident) == 0; }));
}

TEST_P(TransformServiceTest, AClientThatGoesAwayDuringAnUploadLeavesNothing) {
  const Geometry grid = ObliqueGeometry({32, 32, 32});
  const auto requests = FieldRequests("f", grid, Bytes(SomeField(grid)), 100000);
  grpc::ClientContext rpc;
  v1::UploadResponse response;
  auto writer = bulk_->Upload(&rpc, &response);
  ASSERT_TRUE(writer->Write(requests[0]));
  ASSERT_TRUE(writer->Write(requests[1]));
  // An upload of which nothing was taken would go with its stream.
  v1::GetUploadStatusRequest asked;
  asked.set_upload_id(requests[0].header().upload_id());
  v1::GetUploadStatusResponse progress;
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext call;
    return bulk_->GetUploadStatus(&call, asked, &progress).ok() && progress.committed_bytes() > 0;
  }));

  rpc.TryCancel();

  EXPECT_EQ(writer->Finish().error_code(), grpc::CANCELLED);
  EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 0; }));
  EXPECT_EQ(context().uploads.size(), 1);  // can be resumed until it expires
  // A worker may still be taking the last chunk.
  EXPECT_TRUE(Eventually([this] {
    context().uploads.Clear();
    return context().ledger.in_use(Resource::kResident) == 0;
  }));
  EXPECT_EQ(context().transforms.size(), 0);
}

TEST_P(TransformServiceTest, ListsInPages) {
  for (const char* id : {"b", "d", "a", "e", "c"}) PutTransform(id, Transform(SomeMap(), ObliqueGeometry({4, 5, 6})));
  std::vector<std::string> names;
  v1::ListTransformsRequest request;
  request.set_page_size(2);
  int pages = 0;
  do {
    grpc::ClientContext rpc;
    v1::ListTransformsResponse response;
    ASSERT_TRUE(transforms_->ListTransforms(&rpc, request, &response).ok());
    for (const auto& transform : response.transforms()) {
      names.push_back(transform.name());
      EXPECT_EQ(transform.domain().size(2), 6);
    }
    request.set_page_token(response.next_page_token());
    ++pages;
  } while (!request.page_token().empty());

  EXPECT_THAT(names,
              testing::ElementsAre("transforms/a", "transforms/b", "transforms/c", "transforms/d", "transforms/e"));
  EXPECT_EQ(pages, 3);
  grpc::ClientContext rpc;
  v1::ListTransformsResponse response;
  request.set_page_size(-1);
  EXPECT_EQ(FieldOf(transforms_->ListTransforms(&rpc, request, &response)), "page_size");
}

TEST_P(TransformServiceTest, UnknownTransformsAreNotFound) {
  grpc::ClientContext get, erase, points;
  v1::GetTransformRequest get_request;
  v1::GetTransformResponse get_response;
  get_request.set_name("transforms/none");
  EXPECT_STATUS(transforms_->GetTransform(&get, get_request, &get_response), grpc::NOT_FOUND, "transforms/none");
  v1::DeleteTransformRequest delete_request;
  v1::DeleteTransformResponse delete_response;
  delete_request.set_name("none");
  EXPECT_EQ(FieldOf(transforms_->DeleteTransform(&erase, delete_request, &delete_response)), "name");
  v1::MapPointsRequest points_request;
  v1::MapPointsResponse points_response;
  points_request.set_transform("transforms/none");
  EXPECT_STATUS(transforms_->MapPoints(&points, points_request, &points_response), grpc::NOT_FOUND, "transforms/none");
  v1::DownloadRequest field_request = WholeField("none");
  EXPECT_STATUS(GetField(field_request).status, grpc::NOT_FOUND, "transforms/none");
  v1::WarpVolumeRequest warp_request;
  warp_request.set_transform("transforms/none");
  EXPECT_STATUS(Warp(warp_request).status, grpc::NOT_FOUND, "transforms/none");
}

TEST_P(TransformServiceTest, TheFieldOfAMatrixOnAnotherGrid) {
  PutTransform("m", Transform(SomeMap()));
  const Geometry grid = ObliqueGeometry({70, 64, 67}, /*left_handed=*/true);  // more than one slab
  v1::DownloadRequest request = WholeField("m");
  EXPECT_EQ(FieldOf(GetField(request).status), "geometry");
  *request.mutable_geometry() = GeometryToProto(grid);
  const Download download = GetField(request);

  ASSERT_TRUE(download.status.ok()) << download.status.error_message();
  const std::vector<float> field = download.chunks.floats();
  ASSERT_EQ(field.size(), 3 * grid.voxels());
  EXPECT_TRUE(field == EngineField("m", grid));
  for (const int64_t i : {int64_t{0}, grid.voxels() / 2, (int64_t{1} << 18) - 1, int64_t{1} << 18, grid.voxels() - 1}) {
    const Vec3d index{double(i % grid.size.x), double(i / grid.size.x % grid.size.y),
                      double(i / grid.size.x / grid.size.y)};
    const Vec3d p = IndexToPhysical(grid)(index), d = SomeMap()(p) - p;
    for (int a = 0; a < 3; ++a) EXPECT_NEAR(field[3 * i + a], d[a], 1e-3);
  }
  request.mutable_field()->set_encoding(static_cast<v1::FieldEncoding>(99));
  EXPECT_EQ(FieldOf(GetField(request).status), "field.encoding");
  request.mutable_field()->clear_encoding();
  EXPECT_EQ(FieldOf(GetField(request).status), "field.encoding");
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  request.mutable_geometry()->set_size(0, 0);
  EXPECT_EQ(FieldOf(GetField(request).status), "geometry.size");
}

TEST_P(TransformServiceTest, WarpsAsTheEngineDoes) {
  const Geometry moving = ObliqueGeometry({40, 36, 33}), like = ObliqueGeometry({45, 38, 30}, true);
  PutVolume("moving", moving, RandomFloats(moving.voxels(), 7, 1, 2));
  PutVolume("like", like, RandomFloats(like.voxels(), 8));
  PutTransform("m", Transform(SomeMap()));
  ASSERT_TRUE(Send(FieldRequests("f", moving, Bytes(SomeField(moving)))).status.ok());
  for (const std::string transform : {"m", "f"}) {
    for (const bool inverse : {false, true}) {
      for (const Interpolation interpolation :
           {Interpolation::kLinear, Interpolation::kNearest, Interpolation::kCubic}) {
        v1::WarpVolumeRequest request;
        request.set_transform("transforms/" + transform);
        request.set_moving("volumes/moving");
        if (interpolation == Interpolation::kNearest) {
          request.set_like_volume("volumes/like");
        } else {
          *request.mutable_like_geometry() = GeometryToProto(like);
        }
        request.set_inverse(inverse);
        request.set_fill(-5);
        request.set_interpolation(interpolation == Interpolation::kLinear    ? v1::INTERPOLATION_UNSPECIFIED
                                  : interpolation == Interpolation::kNearest ? v1::INTERPOLATION_NEAREST
                                                                             : v1::INTERPOLATION_CUBIC);
        const Download download = Warp(request);

        ASSERT_TRUE(download.status.ok()) << download.status.error_message();
        EXPECT_EQ(download.warp->total_bytes(), 4 * like.voxels());
        EXPECT_TRUE(*GeometryFromProto(download.warp->geometry()) == like);
        const std::vector<float> warped = download.chunks.floats();
        EXPECT_TRUE(warped == EngineWarp(transform, "moving", inverse, interpolation, -5, like));
        EXPECT_THAT(warped, testing::Contains(-5.0f));
        EXPECT_THAT(warped, testing::Contains(testing::Gt(1.0f)));
      }
    }
  }
}

TEST_P(TransformServiceTest, RefusesWarpsThatCannotBe) {
  const Geometry grid = ObliqueGeometry({8, 8, 8});
  PutVolume("moving", grid, RandomFloats(grid.voxels(), 7));
  PutTransform("m", Transform(SomeMap()));
  v1::WarpVolumeRequest request;
  request.set_transform("transforms/m");
  request.set_moving("volumes/moving");
  EXPECT_EQ(FieldOf(Warp(request).status), "like");
  request.set_like_volume("volumes/none");
  EXPECT_STATUS(Warp(request).status, grpc::NOT_FOUND, "volumes/none");
  request.set_like_volume("transforms/m");
  EXPECT_EQ(FieldOf(Warp(request).status), "like_volume");
  *request.mutable_like_geometry() = GeometryToProto(grid);
  request.mutable_like_geometry()->set_direction(0, 5);
  EXPECT_EQ(FieldOf(Warp(request).status), "like_geometry.direction");
  *request.mutable_like_geometry() = GeometryToProto(grid);
  for (int a = 0; a < 3; ++a) request.mutable_like_geometry()->set_size(a, 16384);
  EXPECT_STATUS(Warp(request).status, grpc::INVALID_ARGUMENT, "like_geometry.size: 16384x16384x16384");
  *request.mutable_like_geometry() = GeometryToProto(grid);
  request.set_interpolation(static_cast<v1::Interpolation>(17));
  EXPECT_EQ(FieldOf(Warp(request).status), "interpolation");
  request.clear_interpolation();
  request.set_moving("volumes/none");
  EXPECT_STATUS(Warp(request).status, grpc::NOT_FOUND, "volumes/none");
}

TEST_P(TransformServiceTest, MapsPointsAndBack) {
  const Geometry grid = ObliqueGeometry({40, 36, 33});
  PutTransform("m", Transform(SomeMap()));
  ASSERT_TRUE(Send(FieldRequests("f", grid, Bytes(SomeField(grid)))).status.ok());
  std::vector<double> points;
  for (int i = 0; i < 64; ++i) {
    const Vec3d p = IndexToPhysical(grid)({4.0 + i % 30, 5.0 + i % 25, 6.0 + i % 20});
    for (int a = 0; a < 3; ++a) points.push_back(p[a]);
  }
  auto map = [this](const std::string& transform, bool inverse, const std::vector<double>& from) {
    grpc::ClientContext rpc;
    v1::MapPointsRequest request;
    v1::MapPointsResponse response;
    request.set_transform("transforms/" + transform);
    request.set_inverse(inverse);
    request.mutable_points()->Add(from.begin(), from.end());
    const grpc::Status status = transforms_->MapPoints(&rpc, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return std::vector<double>(response.points().begin(), response.points().end());
  };

  const std::vector<double> mapped = map("m", false, points);
  ASSERT_EQ(mapped.size(), points.size());
  for (size_t i = 0; i < points.size(); i += 3) {
    const Vec3d q = SomeMap()({points[i], points[i + 1], points[i + 2]});
    for (int a = 0; a < 3; ++a) EXPECT_NEAR(mapped[i + a], q[a], 1e-9);
  }
  for (const std::string transform : {"m", "f"}) {
    const std::vector<double> there = map(transform, false, points), back = map(transform, true, there);
    EXPECT_THAT(there, testing::Not(testing::Pointwise(testing::DoubleNear(0.1), points)));
    EXPECT_THAT(back, testing::Pointwise(testing::DoubleNear(1e-3), points));
  }
  EXPECT_TRUE(map("m", false, {}).empty());
}

TEST_P(TransformServiceTest, RefusesPointsThatAreNone) {
  PutTransform("m", Transform(SomeMap()));
  auto status = [this](const std::vector<double>& points) {
    grpc::ClientContext rpc;
    v1::MapPointsRequest request;
    v1::MapPointsResponse response;
    request.set_transform("transforms/m");
    request.mutable_points()->Add(points.begin(), points.end());
    return transforms_->MapPoints(&rpc, request, &response);
  };
  EXPECT_EQ(FieldOf(status({1, 2, 3, 4})), "points");
  EXPECT_EQ(FieldOf(status({1, 2, 3, 4, std::nan(""), 6})), "points[4]");
  EXPECT_EQ(FieldOf(status({1, -HUGE_VAL, 3})), "points[1]");
  EXPECT_TRUE(status(std::vector<double>(3 * 32768, 1.0)).ok());
  EXPECT_EQ(FieldOf(status(std::vector<double>(3 * 32769, 1.0))), "points");
}

TEST_P(TransformServiceTest, ASlowReaderDoesNotHoldTheJobsAndACancelledOneLeavesNothing) {
  PutTransform("m", Transform(SomeMap()));
  const Geometry grid = ObliqueGeometry({128, 128, 128});  // 25 MB: more than the transport buffers
  v1::DownloadRequest request = WholeField("m");
  *request.mutable_geometry() = GeometryToProto(grid);
  grpc::ClientContext rpc;
  auto reader = bulk_->Download(&rpc, request);
  v1::DownloadResponse response;
  ASSERT_TRUE(reader->Read(&response));
  // Another client is served while this one does not read.
  EXPECT_TRUE(Eventually([this] { return context().jobs.pending() == 0; }));
  v1::DownloadRequest small = request;
  *small.mutable_geometry() = GeometryToProto(ObliqueGeometry({9, 8, 7}));
  EXPECT_TRUE(GetField(small).status.ok());
  EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 1; }));

  rpc.TryCancel();

  EXPECT_TRUE(Eventually(
      [this] { return context().ledger.in_use(Resource::kStreams) == 0 && context().pinned.leased_bytes() == 0; }));
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
}

class LimitedTransformServiceTest : public TransformServiceTest {
 protected:
  static ServerLimits Limits() {
    ServerLimits limits;
    limits.resident_capacity_bytes = 4 << 20;
    limits.pinned_capacity_bytes = 1 << 20;
    limits.max_transforms = 2;
    limits.max_streams = 1;
    limits.max_queued_jobs = 1;
    return limits;
  }
  LimitedTransformServiceTest() : TransformServiceTest(Limits()) {}
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(LimitedTransformServiceTest);

TEST_P(LimitedTransformServiceTest, SaysWhatThereIsTooMuchOf) {
  const Geometry grid = ObliqueGeometry({64, 64, 64});       // 3 MB
  const Geometry too_large = ObliqueGeometry({80, 80, 80});  // 6 MB
  EXPECT_STATUS(Send(FieldRequests("f", too_large, Bytes(SomeField(too_large)))).status, grpc::FAILED_PRECONDITION,
                "resident_memory");
  EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 0; }));
  EXPECT_EQ(context().ledger.in_use(Resource::kResident), 0);

  PutTransform("a", Transform(SomeMap()));
  v1::DownloadRequest request = WholeField("a");
  *request.mutable_geometry() = GeometryToProto(grid);
  EXPECT_STATUS(GetField(request).status, grpc::FAILED_PRECONDITION, "pinned_memory");
  EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 0; }));
  for (const char* id : {"b", "c"}) {
    EXPECT_TRUE(Send({MatrixRequest(id, SomeMap())}).status.ok());
    EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 0; }));
  }
  EXPECT_STATUS(Send({MatrixRequest("d", SomeMap())}).status, grpc::RESOURCE_EXHAUSTED,
                "transforms: 1 asked, 2 of 2 in use");
}

TEST_P(LimitedTransformServiceTest, RefusesMoreStreamsAndJobsThanAllowed) {
  PutTransform("a", Transform(SomeMap(), ObliqueGeometry({8, 8, 8})));
  JobBlocker blocker(context().jobs);
  v1::DownloadRequest request = WholeField("a");
  grpc::ClientContext rpc;
  auto reader = bulk_->Download(&rpc, request);  // waits in the queue, and fills it
  ASSERT_TRUE(Eventually([this] { return context().jobs.pending() == 2; }));
  EXPECT_STATUS(GetField(request).status, grpc::RESOURCE_EXHAUSTED, "streams");
  grpc::ClientContext points;
  v1::MapPointsRequest points_request;
  v1::MapPointsResponse points_response;
  points_request.set_transform("transforms/a");
  EXPECT_STATUS(transforms_->MapPoints(&points, points_request, &points_response), grpc::RESOURCE_EXHAUSTED, "streams");

  blocker.Release();

  v1::DownloadResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_P(LimitedTransformServiceTest, RefusesPointsWhileTheQueueIsFull) {
  PutTransform("a", Transform(SomeMap()));
  JobBlocker blocker(context().jobs);
  Job waiting;
  waiting.run = [](const absl::StatusOr<const ExecContext*>&) {};
  ASSERT_TRUE(context().jobs.Submit(std::move(waiting)).ok());
  grpc::ClientContext points;
  v1::MapPointsRequest request;
  v1::MapPointsResponse response;
  request.set_transform("transforms/a");
  EXPECT_STATUS(transforms_->MapPoints(&points, request, &response), grpc::RESOURCE_EXHAUSTED, "queue");
}

TEST_P(TransformServiceTest, ADeadlineEndsACallThatStillWaits) {
  PutTransform("a", Transform(SomeMap(), ObliqueGeometry({8, 8, 8})));
  JobBlocker blocker(context().jobs);
  grpc::ClientContext rpc;
  // Long enough for the call to be queued on a busy machine.
  rpc.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(3));
  v1::DownloadRequest request = WholeField("a");
  auto reader = bulk_->Download(&rpc, request);
  ASSERT_TRUE(Eventually([this] { return context().jobs.pending() == 2; }));
  v1::DownloadResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
  // The stream and its job are gone while the device is busy.
  EXPECT_TRUE(
      Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 0 && context().jobs.pending() == 1; }));
}

}  // namespace
}  // namespace intrawarp::server
