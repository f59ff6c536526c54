// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/field_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/device_test.h"

namespace intrawarp::server {
namespace {

using testing::HasSubstr;

v1::FieldRequest Request(v1::FieldEncoding encoding, std::vector<int64_t> start, std::vector<int64_t> size,
                         std::vector<int64_t> stride) {
  v1::FieldRequest request;
  request.set_encoding(encoding);
  request.mutable_region_start()->Add(start.begin(), start.end());
  request.mutable_region_size()->Add(size.begin(), size.end());
  request.mutable_stride()->Add(stride.begin(), stride.end());
  return request;
}

void ExpectInvalid(const v1::FieldRequest& request, const std::string& message) {
  const absl::Status status = FieldRequestFromProto(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(FieldRequestTest, VoxelsOfARegionAreVoxelsOfTheGrid) {
  const Geometry domain = ObliqueGeometry({30, 21, 17}, /*left_handed=*/true);
  const auto request = FieldRequestFromProto(Request(v1::FIELD_ENCODING_INT16, {3, 0, 16}, {20, 21, 1}, {4, 5, 3}));
  ASSERT_TRUE(request.ok()) << request.status();
  const auto grid = FieldGrid(*request, domain);
  ASSERT_TRUE(grid.ok()) << grid.status();
  EXPECT_EQ(grid->size, (Int3{5, 5, 1}));
  EXPECT_EQ(FieldBytes(*request, *grid), 25 * 6);
  for (const Int3 v : {Int3{0, 0, 0}, Int3{4, 4, 0}, Int3{2, 1, 0}}) {
    const Vec3d p = IndexToPhysical(*grid)({double(v.x), double(v.y), double(v.z)});
    const Vec3d q = IndexToPhysical(domain)({3.0 + 4 * v.x, 5.0 * v.y, 16.0});
    for (int a = 0; a < 3; ++a) EXPECT_NEAR(p[a], q[a], 1e-9);
  }
}

TEST(FieldRequestTest, WithoutARegionItIsTheGridItself) {
  const Geometry domain = ObliqueGeometry({9, 8, 7});
  const auto request = FieldRequestFromProto(Request(v1::FIELD_ENCODING_FLOAT32, {}, {}, {}));
  ASSERT_TRUE(request.ok());
  EXPECT_TRUE(*FieldGrid(*request, domain) == domain);
}

TEST(FieldRequestTest, RefusesWhatMakesNoSense) {
  ExpectInvalid(Request(v1::FIELD_ENCODING_UNSPECIFIED, {}, {}, {}), "encoding: must be given");
  ExpectInvalid(Request(v1::FieldEncoding(9), {}, {}, {}), "encoding: 9");
  ExpectInvalid(Request(v1::FIELD_ENCODING_FLOAT32, {0, 0}, {1, 1, 1}, {}), "region_start: has 2");
  ExpectInvalid(Request(v1::FIELD_ENCODING_FLOAT32, {}, {1, 1, 1}, {}), "region_start: has 0");
  ExpectInvalid(Request(v1::FIELD_ENCODING_FLOAT32, {0, -1, 0}, {1, 1, 1}, {}), "region_start: is -1 along y");
  ExpectInvalid(Request(v1::FIELD_ENCODING_FLOAT32, {0, 0, 0}, {1, 1, 0}, {}), "region_size: is 0 along z");
  ExpectInvalid(Request(v1::FIELD_ENCODING_FLOAT32, {0, 0, 0}, {1, 1, int64_t{1} << 40}, {}), "region_size: is ");
  ExpectInvalid(Request(v1::FIELD_ENCODING_FLOAT32, {}, {}, {0, 1, 1}), "stride: is 0 along x");
  ExpectInvalid(Request(v1::FIELD_ENCODING_CONTROL_POINTS, {}, {}, {2, 2, 2}), "stride: does not go");
  ExpectInvalid(Request(v1::FIELD_ENCODING_CONTROL_POINTS, {0, 0, 0}, {2, 2, 2}, {}), "region_start: does not go");
}

TEST(FieldRequestTest, RefusesARegionOutsideTheGrid) {
  const Geometry domain = ObliqueGeometry({9, 8, 7});
  FieldRequest request;
  request.region_start = Int3{0, 8, 0};
  request.region_size = {1, 1, 1};
  EXPECT_THAT(std::string(FieldGrid(request, domain).status().message()), HasSubstr("region_start: is 8 along y"));
  request.region_start = Int3{5, 0, 0};
  request.region_size = {5, 1, 1};
  EXPECT_THAT(std::string(FieldGrid(request, domain).status().message()),
              HasSubstr("region_size: reaches to 10 along x"));
}

class FieldAnswerTest : public DeviceTest {};
INTRAWARP_INSTANTIATE_DEVICE_TEST(FieldAnswerTest);

TEST_P(FieldAnswerTest, NativeFormsNeedATransformThatHasThem) {
  const Transform affine(AffineMap::Identity());
  for (const FieldForm form : {FieldForm::kControlPoints, FieldForm::kVelocity}) {
    FieldRequest request;
    request.form = form;
    EXPECT_EQ(MakeFieldAnswer(ctx(), request, affine, ObliqueGeometry({4, 4, 4})).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

TEST_P(FieldAnswerTest, Float16RefusesWhatItCannotHold) {
  AffineMap far = AffineMap::Identity();
  far.m[0][3] = 1e5;
  FieldRequest request;
  request.component = ComponentType::kFloat16;
  EXPECT_EQ(MakeFieldAnswer(ctx(), request, Transform(far), ObliqueGeometry({4, 4, 4})).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace intrawarp::server
