// SPDX-License-Identifier: Apache-2.0
// What the tests of deformable methods share: a pair of volumes with a known kind of deformation, and the calls with
// which a stored transform is looked at.
#ifndef INTRAWARP_TESTS_SERVER_DEFORMED_PAIR_H_
#define INTRAWARP_TESTS_SERVER_DEFORMED_PAIR_H_

#include <cmath>
#include <string>
#include <vector>

#include "tests/server/service_fixture.h"
#include "tests/server/stages.h"
#include "wire/convert.h"

namespace intrawarp::server {

class DeformedPairTest : public ServiceTest {
 protected:
  using ServiceTest::ServiceTest;
  static constexpr double kScale = 22;  // mm, of the blobs

  static Geometry FixedGrid() { return ObliqueGeometry({33, 40, 18}, /*left_handed=*/true); }
  static Geometry MovingGrid() {
    Geometry g = ObliqueGeometry({36, 44, 20});
    g.origin = g.origin + Center(FixedGrid()) - Center(g);
    return g;
  }

  // The fixed image is the moving one, stretched, turned and bent.
  void PutPair() {
    const Vec3d center = Center(FixedGrid());
    AffineMap bent = AffineMap::Identity();
    bent.m[0][0] = 1.08;
    bent.m[0][1] = -0.07;
    bent.m[1][2] = 0.06;
    const Vec3d t = center + Vec3d{2, -1.5, 1} - bent(center);
    for (int r = 0; r < 3; ++r) bent.m[r][3] = t[r];
    std::vector<float> fixed = Blobs(FixedGrid(), center, kScale, bent);
    const std::vector<float> elsewhere = Blobs(FixedGrid(), center, kScale, AffineMap::Identity());
    for (size_t i = 0; i < fixed.size(); ++i) {
      const double side = 0.5 + 0.5 * std::tanh((double(i % FixedGrid().size.x) - 16) / 6);
      fixed[i] = static_cast<float>(side * fixed[i] + (1 - side) * elsewhere[i]);
    }
    PutVolume("fixed", FixedGrid(), fixed);
    PutVolume("moving", MovingGrid(), Blobs(MovingGrid(), center, kScale, AffineMap::Identity()));
  }
  // Affine and then `method`, a few iterations of two levels each.
  static v1::RegisterRequest AffineThen(StageKind method) {
    v1::RegisterRequest request;
    request.set_fixed("volumes/fixed");
    request.set_moving("volumes/moving");
    for (const StageKind each : {StageKind::kAffine, method}) {
      v1::Stage& stage = *request.mutable_options()->add_stages();
      SetMethod(stage, each);
      SetIterations(stage, 8);
      SetLevels(stage, 2);
    }
    return request;
  }
  static std::string Id(const std::string& name) { return name.substr(std::string("transforms/").size()); }

  v1::Transform Get(const std::string& id) {
    grpc::ClientContext rpc;
    v1::GetTransformRequest request;
    v1::GetTransformResponse response;
    request.set_name("transforms/" + id);
    const grpc::Status status = transforms_->GetTransform(&rpc, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.transform();
  }
  Download GetEncoded(const std::string& id, v1::FieldEncoding encoding) {
    v1::DownloadRequest request = WholeField(id);
    request.mutable_field()->set_encoding(encoding);
    return GetField(request);
  }
  // An upload of what such a download gave.
  static std::vector<v1::UploadRequest> NativeRequests(const std::string& id, const v1::FieldHeader& header,
                                                       const std::string& bytes) {
    auto requests = FieldRequests(id, *GeometryFromProto(header.geometry()), bytes);
    *requests[0].mutable_header()->mutable_transform()->mutable_field() = header;
    return requests;
  }
  Download GetWarped(const std::string& id, bool inverse, v1::Interpolation interpolation) {
    v1::WarpVolumeRequest request;
    request.set_transform("transforms/" + id);
    request.set_moving("volumes/moving");
    request.set_like_volume("volumes/fixed");
    request.set_inverse(inverse);
    request.set_interpolation(interpolation);
    request.set_fill(-1);
    return Warp(request);
  }
  std::vector<double> MapPoints(const std::string& id, bool inverse, const std::vector<double>& points) {
    grpc::ClientContext rpc;
    v1::MapPointsRequest request;
    v1::MapPointsResponse response;
    request.set_transform("transforms/" + id);
    request.set_inverse(inverse);
    request.mutable_points()->Add(points.begin(), points.end());
    const grpc::Status status = transforms_->MapPoints(&rpc, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return std::vector<double>(response.points().begin(), response.points().end());
  }
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_DEFORMED_PAIR_H_
