// SPDX-License-Identifier: Apache-2.0
#include "server/transform/transform_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <utility>

#include "server/status/errors.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

using std::chrono::seconds;
using std::chrono::system_clock;
using testing::ElementsAre;

Geometry Grid(Int3 size) {
  Geometry grid;
  grid.size = size;
  return grid;
}

StoredTransform Stored(Transform transform) {
  return {"a", system_clock::time_point(seconds(100)), std::nullopt, nullptr, std::move(transform)};
}

// In each of its forms a transform has a domain, except for an affine map by itself. Nobody reads the memory.
TEST(TransformToProto, EachFormHasItsKind) {
  const v1::Transform affine = TransformToProto(Stored(Transform(AffineMap::Identity())), true);
  EXPECT_EQ(affine.kind(), v1::TRANSFORM_KIND_AFFINE);
  EXPECT_FALSE(affine.has_domain() || affine.has_control_grid());

  const v1::Transform field = TransformToProto(Stored(Transform(Buffer(), Grid({6, 5, 4}))), true);
  EXPECT_EQ(field.kind(), v1::TRANSFORM_KIND_DISPLACEMENT);
  EXPECT_THAT(field.domain().size(), ElementsAre(6, 5, 4));
  EXPECT_FALSE(field.has_control_grid());

  const v1::Transform points =
      TransformToProto(Stored(Transform(AffineMap::Identity(), Buffer(), Grid({9, 8, 7}), Grid({6, 5, 4}))), true);
  EXPECT_EQ(points.kind(), v1::TRANSFORM_KIND_CONTROL_GRID);
  EXPECT_THAT(points.control_grid().size(), ElementsAre(9, 8, 7));
  EXPECT_THAT(points.domain().size(), ElementsAre(6, 5, 4));

  const v1::Transform velocity =
      TransformToProto(Stored(Transform(AffineMap::Identity(), VelocityFields(), Grid({6, 5, 4}))), true);
  EXPECT_EQ(velocity.kind(), v1::TRANSFORM_KIND_VELOCITY) << "though it has a displacement, too";
  EXPECT_FALSE(velocity.has_control_grid());
}

TEST(TransformToProto, EachFieldGoesWhereItBelongs) {
  AffineMap map = AffineMap::Identity();
  map.m[1][3] = 7;
  StoredTransform stored = Stored(Transform(map));
  stored.owner = "ann";
  v1::Transform to = TransformToProto(stored, false);
  EXPECT_EQ(to.name(), "transforms/a");
  EXPECT_EQ(to.owner(), "ann");
  EXPECT_EQ(to.affine().values(7), 7);
  EXPECT_EQ(to.create_time().seconds(), 100);
  EXPECT_EQ(to.resident_bytes(), 0);
  EXPECT_FALSE(to.has_expire_time());
  stored.expiry = Expiry{system_clock::time_point(seconds(160)), {}};
  EXPECT_EQ(TransformToProto(stored, false).expire_time().seconds(), 160);
}

TEST(TransformToProto, TheReportComesOnDemandWhereThereIsOne) {
  StoredTransform stored = Stored(Transform(AffineMap::Identity()));
  EXPECT_FALSE(TransformToProto(stored, true).has_report()) << "an upload has none";
  stored.report.emplace().set_device("cpu");
  EXPECT_EQ(TransformToProto(stored, true).report().device(), "cpu");
  EXPECT_FALSE(TransformToProto(stored, false).has_report());
}

TEST(InvertibleMapFromProto, TakesAMapThatCanBeTurnedBack) {
  AffineMap map = AffineMap::Identity();
  map.m[0][0] = -1;
  map.m[2][3] = 12.5;
  const absl::StatusOr<AffineMap> back = InvertibleMapFromProto(AffineMapToProto(map));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->m[0][0], -1);
  EXPECT_EQ(back->m[2][3], 12.5);
}

TEST(InvertibleMapFromProto, RefusesWhatCannotBe) {
  const v1::AffineMap good = AffineMapToProto(AffineMap::Identity());
  const auto refused = [](const v1::AffineMap& map) {
    const absl::Status status = InvertibleMapFromProto(map).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << map.ShortDebugString();
    EXPECT_EQ(FieldOf(status), "values") << map.ShortDebugString();
  };
  refused(v1::AffineMap());
  const auto with = [&good](int at, double value) {
    v1::AffineMap map = good;
    map.set_values(at, value);
    return map;
  };
  refused(with(0, 0));
  refused(with(5, std::numeric_limits<double>::quiet_NaN()));
  refused(with(3, std::numeric_limits<double>::infinity()));
  refused(with(12, 1));
  refused(with(15, 2));
  // Two rows that are one.
  v1::AffineMap flat = with(4, 1);
  flat.set_values(5, 0);
  refused(flat);
}

}  // namespace
}  // namespace intrawarp::server
