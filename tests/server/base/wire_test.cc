// SPDX-License-Identifier: Apache-2.0
#include "server/base/wire.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Geometry Oblique() {
  Geometry g;
  g.size = {7, 5, 3};
  g.spacing = {0.5, 1.25, 3};
  g.origin = {-10, 20.5, 1e3};
  const double c = std::cos(0.3), s = std::sin(0.3);
  const double direction[3][3] = {{c, -s, 0}, {s, c, 0}, {0, 0, -1}};  // left-handed
  for (int r = 0; r < 3; ++r)
    for (int k = 0; k < 3; ++k) g.direction[r][k] = direction[r][k];
  return g;
}

TEST(WireGeometry, RoundTripIsExact) {
  const auto back = GeometryFromProto(GeometryToProto(Oblique()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(*back == Oblique());
}

TEST(WireGeometry, EachFaultNamesItsField) {
  struct Case {
    const char* field;
    std::function<void(v1::Geometry&)> spoil;
  };
  const std::vector<Case> cases = {
      {"size", [](v1::Geometry& g) { g.clear_size(); }},
      {"size", [](v1::Geometry& g) { g.add_size(1); }},
      {"size", [](v1::Geometry& g) { g.set_size(0, 0); }},
      {"size", [](v1::Geometry& g) { g.set_size(1, -3); }},
      {"size", [](v1::Geometry& g) { g.set_size(2, (int64_t{1} << 32) + 3); }},  // 3 once narrowed
      {"size",
       [](v1::Geometry& g) {
         for (int a = 0; a < 3; ++a) g.set_size(a, int64_t{1} << 40);
       }},
      {"size", [](v1::Geometry& g) { g.set_size(0, std::numeric_limits<int64_t>::max()); }},
      {"spacing", [](v1::Geometry& g) { g.mutable_spacing()->RemoveLast(); }},
      {"spacing", [](v1::Geometry& g) { g.set_spacing(0, 0); }},
      {"spacing", [](v1::Geometry& g) { g.set_spacing(1, -1); }},
      {"spacing", [](v1::Geometry& g) { g.set_spacing(2, kNan); }},
      {"spacing", [](v1::Geometry& g) { g.set_spacing(2, kInf); }},
      {"origin", [](v1::Geometry& g) { g.add_origin(0); }},
      {"origin", [](v1::Geometry& g) { g.set_origin(0, kNan); }},
      {"origin", [](v1::Geometry& g) { g.set_origin(0, -kInf); }},
      {"direction", [](v1::Geometry& g) { g.clear_direction(); }},
      {"direction",
       [](v1::Geometry& g) {
         for (int i = 0; i < 9; ++i) g.set_direction(i, 0);
       }},
      {"direction",
       [](v1::Geometry& g) {
         for (int r = 0; r < 3; ++r) g.set_direction(3 * r, g.direction(3 * r + 1));
       }},
      {"direction", [](v1::Geometry& g) { g.set_direction(8, 2); }},
      {"direction", [](v1::Geometry& g) { g.set_direction(2, 0.1); }},
      {"direction", [](v1::Geometry& g) { g.set_direction(4, kNan); }},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    v1::Geometry proto = GeometryToProto(Oblique());
    cases[i].spoil(proto);
    const auto geometry = GeometryFromProto(proto);
    EXPECT_EQ(geometry.status().code(), absl::StatusCode::kInvalidArgument) << i;
    EXPECT_EQ(FieldOf(geometry.status()), cases[i].field) << i << " " << geometry.status();
  }
}

TEST(WirePixelType, AllRoundTrip) {
  for (int i = v1::PIXEL_TYPE_UINT8; i <= v1::PIXEL_TYPE_FLOAT64; ++i) {
    const auto type = PixelTypeFromProto(static_cast<v1::PixelType>(i));
    ASSERT_TRUE(type.ok());
    EXPECT_EQ(PixelTypeToProto(*type), i);
  }
  EXPECT_EQ(FieldOf(PixelTypeFromProto(v1::PIXEL_TYPE_UNSPECIFIED).status()), "pixel_type");
  EXPECT_EQ(FieldOf(PixelTypeFromProto(static_cast<v1::PixelType>(99)).status()), "pixel_type");
}

TEST(WireMatrix, RoundTripAndRefusal) {
  AffineMap map;
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 4; ++c) map.m[r][c] = 10 * r + c + 0.1;
  const auto back = AffineMapFromProto(AffineMapToProto(map));
  ASSERT_TRUE(back.ok());
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 4; ++c) EXPECT_EQ(back->m[r][c], map.m[r][c]);

  const std::vector<std::function<void(v1::AffineMap&)>> spoil = {
      [](v1::AffineMap& m) { m.clear_values(); },       [](v1::AffineMap& m) { m.add_values(0); },
      [](v1::AffineMap& m) { m.set_values(3, kNan); },  [](v1::AffineMap& m) { m.set_values(0, kInf); },
      [](v1::AffineMap& m) { m.set_values(12, 1e-9); }, [](v1::AffineMap& m) { m.set_values(15, 2); }};
  for (const auto& fault : spoil) {
    v1::AffineMap proto = AffineMapToProto(map);
    fault(proto);
    EXPECT_EQ(FieldOf(AffineMapFromProto(proto).status()), "values");
  }
}

TEST(WireTime, TimestampsAndDurations) {
  const auto time = std::chrono::system_clock::time_point(std::chrono::milliseconds(1500));
  EXPECT_EQ(TimestampToProto(time).seconds(), 1);
  EXPECT_EQ(TimestampToProto(time).nanos(), 500000000);
  const auto duration =
      DurationFromProto(DurationToProto(std::chrono::milliseconds(2250)), "budget", std::chrono::hours(24));
  ASSERT_TRUE(duration.ok());
  EXPECT_EQ(*duration, std::chrono::milliseconds(2250));
  google::protobuf::Duration bad;
  bad.set_seconds(-1);
  EXPECT_EQ(FieldOf(DurationFromProto(bad, "budget", std::chrono::hours(24)).status()), "budget");
  bad.set_seconds(std::numeric_limits<int64_t>::max());
  EXPECT_FALSE(DurationFromProto(bad, "budget", std::chrono::hours(24)).ok());
  bad.set_seconds(0);
  EXPECT_FALSE(DurationFromProto(bad, "budget", std::chrono::hours(24)).ok());
  bad.set_seconds(24 * 3600);
  EXPECT_TRUE(DurationFromProto(bad, "budget", std::chrono::hours(24)).ok());
  bad.set_nanos(1);
  EXPECT_FALSE(DurationFromProto(bad, "budget", std::chrono::hours(24)).ok());
  bad.set_seconds(0);
  bad.set_nanos(1000000000);
  EXPECT_FALSE(DurationFromProto(bad, "budget", std::chrono::hours(24)).ok());
}

TEST(WireLatency, FieldsCarryTheirPhases) {
  LatencyBreakdown latency;
  for (int i = 0; i < kPhases; ++i) latency.Add(static_cast<Phase>(i), std::chrono::milliseconds(i + 1));
  latency.set_total(std::chrono::milliseconds(77));
  const v1::LatencyBreakdown proto = LatencyToProto(latency);
  const auto* descriptor = proto.GetDescriptor();
  for (int i = 0; i < kPhases; ++i) {
    const auto* field = descriptor->FindFieldByName(std::string(kPhaseNames[i]) + "_ms");
    ASSERT_NE(field, nullptr) << kPhaseNames[i];
    EXPECT_EQ(proto.GetReflection()->GetDouble(proto, field), i + 1) << kPhaseNames[i];
  }
  EXPECT_EQ(proto.total_ms(), 77);
}

TEST(WireRescale, RoundTripAndRefusal) {
  EXPECT_EQ(*RescaleFromProto(RescaleToProto({-2, 5})), (Rescale{-2, 5}));
  EXPECT_EQ(FieldOf(RescaleFromProto(RescaleToProto({0, 5})).status()), "slope");
  EXPECT_EQ(FieldOf(RescaleFromProto(RescaleToProto({kNan, 5})).status()), "slope");
  EXPECT_EQ(FieldOf(RescaleFromProto(RescaleToProto({1, kInf})).status()), "intercept");
}

TEST(ImageBytes, Multiplies) {
  Geometry g;
  g.size = {kMaxAxis, kMaxAxis, kMaxAxis};
  EXPECT_EQ(*ImageBytes(g, 8), int64_t{8} * kMaxAxis * kMaxAxis * kMaxAxis);
  EXPECT_EQ(FieldOf(ImageBytes(g, int64_t{1} << 40).status()), "size");
}

}  // namespace
}  // namespace intrawarp::server
