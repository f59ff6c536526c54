// SPDX-License-Identifier: Apache-2.0
// Phantom pairs of an operation: the true map brings the images together wherever there is a counterpart, the holes
// have the size that was asked for, and equal options give equal bytes.
#include "client/phantom/surgery.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace intrawarp::phantom {
namespace {

constexpr SurgeryKind kKinds[] = {SurgeryKind::kPlain,     SurgeryKind::kResection, SurgeryKind::kAblation,
                                  SurgeryKind::kSliding,   SurgeryKind::kNeedle,    SurgeryKind::kGas,
                                  SurgeryKind::kTruncation};

SurgeryOptions Options(SurgeryKind kind) {
  SurgeryOptions options = DefaultSurgeryOptions(kind);
  options.pair.size = {40, 38, 36};
  options.pair.spacing = {6, 6, 6};
  return options;
}

double Volume(const io::HostVolume& mask) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(mask.pixels.data());
  const int64_t count = mask.geometry.voxels() - std::count(bytes, bytes + mask.geometry.voxels(), uint8_t{0});
  return static_cast<double>(count) * mask.geometry.spacing.x * mask.geometry.spacing.y * mask.geometry.spacing.z;
}

// Calls body(p) for points of a grid over the fixed image.
template <typename Body>
void ForPoints(const Geometry& grid, const Body& body) {
  const AffineMap to_point = IndexToPhysical(grid);
  for (int z = 2; z < grid.size.z; z += 3)
    for (int y = 2; y < grid.size.y; y += 3)
      for (int x = 2; x < grid.size.x; x += 3) body(to_point({double(x), double(y), double(z)}));
}

TEST(SurgeryPhantomTest, TheMapBringsWhatHasACounterpartTogether) {
  for (const SurgeryKind kind : kKinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    const SurgeryOptions options = Options(kind);
    const auto model = SurgeryModel::Create(options);
    ASSERT_TRUE(model.ok()) << model.status();
    const auto made = MakeSurgeryPhantom(options);
    ASSERT_TRUE(made.ok()) << made.status();
    int counted = 0, far = 0, moved_back = 0;
    ForPoints(made->pair.fixed.geometry, [&](Vec3d p) {
      const Vec3d q = model->Transform(p);
      const Vec3d back = model->Inverse(q) - p;
      moved_back += std::sqrt(Dot(back, back)) > 0.5;
      if (!model->HasCounterpart(p, q) || model->FixedMetal(p) > 0 || model->MovingMetal(q) > 0) return;
      ++counted;
      far += std::abs(model->FixedHounsfield(p, q) - model->MovingHounsfield(q)) > 1;
    });
    EXPECT_GT(counted, 300);
    // Edges of what is painted are one voxel wide.
    EXPECT_LT(far, (kind == SurgeryKind::kSliding ? 0.08 : 0.02) * counted);
    // Where organs slide, the map is not one to one.
    if (kind != SurgeryKind::kSliding) {
      EXPECT_EQ(moved_back, 0);
    }
  }
}

TEST(SurgeryPhantomTest, EqualOptionsGiveEqualBytes) {
  for (const SurgeryKind kind : kKinds) {
    const auto a = MakeSurgeryPhantom(Options(kind)), b = MakeSurgeryPhantom(Options(kind));
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_TRUE(a->pair.fixed.pixels == b->pair.fixed.pixels && a->pair.moving.pixels == b->pair.moving.pixels);
  }
}

TEST(SurgeryPhantomTest, APlainPairIsThePhantom) {
  const SurgeryOptions options = Options(SurgeryKind::kPlain);
  const auto plain = MakePhantom(options.pair);
  const auto made = MakeSurgeryPhantom(options);
  ASSERT_TRUE(plain.ok() && made.ok());
  EXPECT_TRUE(plain->fixed.pixels == made->pair.fixed.pixels);
  EXPECT_TRUE(plain->moving.pixels == made->pair.moving.pixels);
  EXPECT_FALSE(made->hole.has_value());
}

TEST(SurgeryPhantomTest, HolesHaveTheirSize) {
  for (const SurgeryKind kind : {SurgeryKind::kResection, SurgeryKind::kAblation}) {
    const auto made = MakeSurgeryPhantom(Options(kind));
    ASSERT_TRUE(made.ok());
    ASSERT_TRUE(made->hole.has_value());
    const double sphere = M_PI / 6 * 40 * 40 * 40;
    EXPECT_GT(Volume(*made->hole), 0.4 * sphere);
    EXPECT_LT(Volume(*made->hole), 2 * sphere);
    SurgeryOptions intact = Options(kind);
    intact.intact = true;
    const auto whole = MakeSurgeryPhantom(intact);
    ASSERT_TRUE(whole.ok());
    EXPECT_FALSE(whole->hole.has_value());
  }
}

TEST(SurgeryPhantomTest, OrgansSlideAlongAWallThatStays) {
  const SurgeryOptions options = Options(SurgeryKind::kSliding);
  const auto model = SurgeryModel::Create(options);
  const auto made = MakeSurgeryPhantom(options);
  ASSERT_TRUE(model.ok() && made.ok());
  ASSERT_TRUE(made->regions.has_value());
  double slid = 0, stayed = 0;
  ForPoints(made->pair.fixed.geometry, [&](Vec3d p) {
    const Vec3d u = model->Transform(p) - p;
    double& most = model->Slides(p) ? slid : stayed;
    most = std::max(most, std::sqrt(Dot(u, u)));
  });
  EXPECT_GT(slid, 8);
  EXPECT_LT(stayed, 1);
}

TEST(SurgeryPhantomTest, RodsAreMetal) {
  SurgeryOptions options = Options(SurgeryKind::kPlain);
  options.pair.size = {80, 76, 72};
  options.pair.spacing = {3, 3, 3};
  const auto without = MakeSurgeryPhantom(options);
  options.rods = 8;
  options.outliers_in = OutliersIn::kFixed;
  const auto with = MakeSurgeryPhantom(options);
  ASSERT_TRUE(without.ok() && with.ok());
  const auto largest = [](const io::HostVolume& volume) {
    const std::vector<float> values = io::ToFloat(volume);
    return *std::max_element(values.begin(), values.end());
  };
  EXPECT_GT(largest(with->pair.fixed), 5 * largest(without->pair.fixed));
  EXPECT_TRUE(with->pair.moving.pixels == without->pair.moving.pixels);
}

TEST(SurgeryPhantomTest, WrongOptionsAreNamed) {
  EXPECT_FALSE(ParseSurgeryKind("surgery").ok());
  EXPECT_FALSE(ParseOutliersIn("neither").ok());
  SurgeryOptions options = Options(SurgeryKind::kResection);
  options.hole_mm = 1e6;
  EXPECT_EQ(MakeSurgeryPhantom(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = Options(SurgeryKind::kPlain);
  options.hole_mm = 40;
  EXPECT_EQ(MakeSurgeryPhantom(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace intrawarp::phantom
