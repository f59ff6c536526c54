// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/deformation_gate.h"

#include <cmath>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

constexpr double kNodeMm = 2;

// A block whose own and smoothed minima lie at `offset` nodes along x, with a cost `zero` where it is.
BlockMatch Block(float offset, float zero = 20) {
  BlockMatch match;
  match.nodes = 125;
  match.covered = match.matched = 1;
  match.own = {{offset, 0, 0}, static_cast<int32_t>(std::lround(std::abs(offset))), zero, 10, 100, 80};
  match.smoothed = match.own;
  return match;
}

ResidualProbe ProbeOf(std::vector<BlockMatch> matches) {
  ResidualProbe probe;
  probe.blocks.size = {static_cast<int>(matches.size()), 1, 1};
  probe.blocks.spacing = {kBlockSide * kNodeMm, kBlockSide * kNodeMm, kBlockSide * kNodeMm};
  probe.node_mm = {kNodeMm, kNodeMm, kNodeMm};
  probe.matches = std::move(matches);
  return probe;
}

// 10 of 100 blocks lie off by 2 nodes (4 mm), and a deformation moves them.
TEST(DeformationGateTest, OnlyBlocksThatMoveHaveASay) {
  std::vector<BlockMatch> before(100, Block(0)), after(100, Block(0));
  std::vector<Vec3d> ways(100);
  for (int i = 0; i < 10; ++i) {
    before[i] = Block(2, 60);
    ways[i] = {4, 0, 0};
  }
  MovedBlocks moved = SumMovedBlocks(ProbeOf(before), ProbeOf(after), ways);
  EXPECT_EQ(moved.count, 10);
  EXPECT_GT(moved.gain, 0.9);
  EXPECT_NEAR(moved.foretold, 1, 1e-12);
  // The same way at ten other blocks, which lay right and no longer do.
  std::vector<Vec3d> elsewhere(100);
  for (int i = 10; i < 20; ++i) {
    after[i] = Block(-2, 60);
    elsewhere[i] = {4, 0, 0};
  }
  moved = SumMovedBlocks(ProbeOf(before), ProbeOf(after), elsewhere);
  EXPECT_EQ(moved.count, 10);
  EXPECT_LT(moved.gain, -0.9);
  EXPECT_NEAR(moved.foretold, 0, 1e-12);
  // A way below a quarter of a node, and blocks that only one probe matched.
  for (Vec3d& way : ways) way = 0.1 * way;
  EXPECT_EQ(SumMovedBlocks(ProbeOf(before), ProbeOf(after), ways).count, 0);
  for (Vec3d& way : ways) way = {4, 0, 0};
  for (int i = 0; i < 50; ++i) before[i].matched = 0;
  for (int i = 40; i < 95; ++i) after[i].matched = 0;
  EXPECT_EQ(SumMovedBlocks(ProbeOf(before), ProbeOf(after), ways).count, 5);
}

TEST(DeformationGateTest, AWayBeyondTheSearchCountsAsFarAsThat) {
  const std::vector<Vec3d> ways(20, {40, 0, 0});
  const MovedBlocks moved = SumMovedBlocks(ProbeOf(std::vector<BlockMatch>(20, Block(3))),
                                           ProbeOf(std::vector<BlockMatch>(20, Block(0))), ways);
  // 3 (1.09 + 0.1) nodes of 3.
  EXPECT_NEAR(moved.gain, 1.19, 1e-6);
}

// A right deformation that is longer than the probe reaches lies beyond bounds that mean nothing there.
TEST(DeformationGateTest, OnlyBlocksThatAgreeBoundADeformation) {
  const std::vector<Vec3d> ways(60, {8, 0, 0});
  const BoundedMoves far = CountBoundedMoves(ProbeOf(std::vector<BlockMatch>(60, Block(2))), ways);
  EXPECT_EQ(far.blocks, 60);
  EXPECT_EQ(far.beyond, 0);
  const BoundedMoves near = CountBoundedMoves(ProbeOf(std::vector<BlockMatch>(60, Block(0.2f))), ways);
  EXPECT_EQ(near.blocks, 60);
  EXPECT_EQ(near.beyond, 60);
  const std::vector<Vec3d> short_ways(60, {1, 0, 0});
  EXPECT_EQ(CountBoundedMoves(ProbeOf(std::vector<BlockMatch>(60, Block(0.2f))), short_ways).beyond, 0);
}

// 5 % of 1000 and of 40 blocks, and two standard deviations: 63.8 and 4.8.
TEST(DeformationGateTest, MoreBlocksBeyondTheirBoundThanMayBeAreAContradiction) {
  EXPECT_FALSE(ContradictsBound({1000, 63}));
  EXPECT_TRUE(ContradictsBound({1000, 64}));
  EXPECT_FALSE(ContradictsBound({40, 4}));
  EXPECT_TRUE(ContradictsBound({40, 5}));
  EXPECT_FALSE(ContradictsBound({}));
}

DeformationEvidence Evidence(double gain, double foretold, Unexplained unexplained = {0.5, 0.5, 0.5}) {
  DeformationEvidence evidence;
  evidence.moved = {100, gain, foretold};
  evidence.unexplained = unexplained;
  evidence.bounded = {1000, 50};
  evidence.deformation_mm = 9;
  evidence.node_mm = kNodeMm;
  evidence.affine_agreement = 0.5;
  return evidence;
}

TEST(DeformationGateTest, AGainThatWasForetoldIsBelieved) {
  EXPECT_TRUE(IsBelieved(Evidence(0.41, 0.16)));
  EXPECT_FALSE(IsBelieved(Evidence(0.39, 0.16)));
  EXPECT_FALSE(IsBelieved(Evidence(0.41, 0.14)));
  // Beyond the reach of the probe the intensities foretell.
  EXPECT_TRUE(IsBelieved(Evidence(0.41, 0, {0.5, 0.12, 0.14})));
  EXPECT_FALSE(IsBelieved(Evidence(0.41, 0, {0.5, 0.13, 0.14})));
  EXPECT_FALSE(IsBelieved(Evidence(0.41, 0, {0.5, 0.12, 0.16})));
}

TEST(DeformationGateTest, FewBlocksThatMovedJudgeNothing) {
  DeformationEvidence evidence = Evidence(-1, 0);
  evidence.moved.count = kLeastMovedBlocks;
  EXPECT_FALSE(IsBelieved(evidence));
  evidence.moved.count = kLeastMovedBlocks - 1;
  EXPECT_TRUE(IsBelieved(evidence));
}

TEST(DeformationGateTest, IntensitiesThatFallIntoPlaceOverruleTheRest) {
  DeformationEvidence evidence = Evidence(-0.3, 0, {0.5, 0.4, 0.14, 0.21});
  evidence.bounded.beyond = 900;
  EXPECT_FALSE(IsBelieved(evidence));
  evidence.unexplained.left_in_most = 0.19;
  EXPECT_TRUE(IsBelieved(evidence));
  evidence.unexplained.after_everywhere = 0.16;
  EXPECT_FALSE(IsBelieved(evidence));
}

TEST(DeformationGateTest, ADeformationMayNotLeaveTheBoundsOfTheAffineErrors) {
  DeformationEvidence evidence = Evidence(1, 1);
  EXPECT_TRUE(IsBelieved(evidence));
  evidence.bounded.beyond = 80;
  EXPECT_TRUE(Contradicts(evidence));
  EXPECT_FALSE(IsBelieved(evidence));
}

// The limits are an agreement of 0.9 and a way of 0.8 nodes, 1.6 mm.
TEST(DeformationGateTest, ADeformationMayNotContradictAnAffineResultThatAgrees) {
  const auto evidence = [](double deformation_mm, double agreement, bool may_lie_on_a_line) {
    DeformationEvidence made = Evidence(1, 1);
    made.deformation_mm = deformation_mm;
    made.affine_agreement = agreement;
    made.may_lie_on_a_line = may_lie_on_a_line;
    return made;
  };
  EXPECT_FALSE(IsBelieved(evidence(1.7, 0.91, false)));
  EXPECT_TRUE(Contradicts(evidence(1.7, 0.91, false)));
  EXPECT_TRUE(IsBelieved(evidence(1.5, 0.91, false)));
  EXPECT_TRUE(IsBelieved(evidence(1.7, 0.89, false)));
  EXPECT_TRUE(IsBelieved(evidence(1.7, 0.91, true)));
}

TEST(DeformationGateTest, FindsTheNearestAffineMap) {
  AffineMap truth = AffineMap::Identity();
  truth.m[0][1] = 0.1, truth.m[1][1] = 0.95, truth.m[2][0] = -0.02, truth.m[0][3] = 4, truth.m[2][3] = -7;
  const std::vector<Vec3d> axes = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
  std::vector<Vec3d> places, ways;
  std::mt19937 engine(1);
  std::uniform_real_distribution<double> u(-50, 50);
  for (int i = 0; i < 40; ++i) {
    places.push_back({u(engine), u(engine), 100 + u(engine)});
    ways.push_back(truth(places.back()) - places.back());
  }
  const std::optional<AffineMap> found = NearestAffine(places, ways, axes);
  ASSERT_TRUE(found.has_value());
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 4; ++c) EXPECT_NEAR(found->m[r][c], truth.m[r][c], 1e-9);
  }
  // For places in a plane, the map keeps the direction across the plane.
  for (size_t i = 0; i < places.size(); ++i) {
    places[i].z = 3;
    ways[i] = {2, 0.01 * places[i].x, 0};
  }
  EXPECT_FALSE(NearestAffine(places, ways, axes).has_value());
  const std::optional<AffineMap> in_plane = NearestAffine(places, ways, {axes[0], axes[1]});
  ASSERT_TRUE(in_plane.has_value());
  EXPECT_NEAR(in_plane->m[1][0], 0.01, 1e-9);
  EXPECT_NEAR(in_plane->m[0][3], 2, 1e-9);
  EXPECT_EQ(in_plane->m[2][2], 1);
  places.resize(15);
  ways.resize(15);
  EXPECT_FALSE(NearestAffine(places, ways, {axes[0], axes[1]}).has_value());
}

// A smooth texture, different for each seed, at a point in mm.
double Texture(Vec3d p, int seed) {
  double sum = 0;
  for (int k = 0; k < 12; ++k) {
    const double a = 1.7 * k + 2.3 * seed, f = 0.16 + 0.02 * k;
    const Vec3d direction{std::sin(a), std::sin(2 * a + 1), std::cos(3 * a)};
    sum += std::sin(f * Dot(direction, p) + 5 * a);
  }
  return sum;
}

class GateOnImagesTest : public DeviceTest {
 protected:
  using Map = std::function<Vec3d(Vec3d)>;

  static Geometry Grid() {
    Geometry grid;
    grid.size = {40, 44, 36};
    grid.spacing = {kNodeMm, kNodeMm, kNodeMm};
    grid.origin = {-20, 5, 100};
    return grid;
  }
  template <typename Body>
  static void ForEachPoint(const Body& body) {
    const AffineMap to_physical = IndexToPhysical(Grid());
    for (int z = 0; z < Grid().size.z; ++z) {
      for (int y = 0; y < Grid().size.y; ++y) {
        for (int x = 0; x < Grid().size.x; ++x) body(to_physical({double(x), double(y), double(z)}));
      }
    }
  }
  // The texture seen through a map.
  PreparedImage Image(int seed, const Map& map) {
    std::vector<float> voxels;
    ForEachPoint([&](Vec3d p) { voxels.push_back(static_cast<float>(500 + 100 * Texture(map(p), seed))); });
    return *PreparedImage::Prepare(ctx(), voxels.data(), PixelType::kFloat32, 1, 0, Grid());
  }
  Transform Deformation(const Map& map) {
    std::vector<float> u;
    ForEachPoint([&](Vec3d p) {
      for (int a = 0; a < 3; ++a) u.push_back(static_cast<float>((map(p) - p)[a]));
    });
    Buffer memory = *device().Allocate(u.size() * sizeof(float), ctx().stream());
    EXPECT_OK(device().Copy(memory.as<float>(), u.data(), u.size() * sizeof(float), ctx().stream()));
    EXPECT_OK(device().Synchronize(ctx().stream()));
    return Transform(std::move(memory), Grid());
  }
  // The answer about the deformation of `fixed` by a map, in exactly the workspace of a probe.
  GateAnswer Judge(const PreparedImage& fixed, const PreparedImage& moving, const Map& map) {
    OwnedContext owned = *OwnedContext::Create(device(), ResidualProbeWorkspaceBytes(Grid()));
    const ExecContext& ctx = owned.context();
    const Transform transform = Deformation(map), affine(AffineMap::Identity());
    const ResidualProbe before = *ProbeResidual(ctx, fixed, moving, {}, {}, affine),
                        after = *ProbeResidual(ctx, fixed, moving, {}, {}, transform);
    const absl::StatusOr<GateAnswer> answer = JudgeDeformation(
        ctx, {fixed, moving, {}, {}}, transform, {before, *PredictError(before)}, {after, *PredictError(after)});
    EXPECT_OK(answer.status());
    return *answer;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(GateOnImagesTest);

Vec3d Same(Vec3d p) { return p; }
// A bump of 3 mm that is 10 mm wide, so that it moves one block in ten.
Vec3d Bump(Vec3d p) {
  const Vec3d d = p - Vec3d{20, 50, 136};
  return p + std::exp(-Dot(d, d) / 200) * Vec3d{3, -1.5, 0};
}

TEST_P(GateOnImagesTest, BelievesABumpWhereItIs) {
  const PreparedImage fixed = Image(1, Bump), moving = Image(1, Same);
  const GateAnswer right = Judge(fixed, moving, Bump);
  EXPECT_TRUE(right.is_accepted);
  EXPECT_GT(right.gain(), 0.6);
  EXPECT_GT(right.evidence.moved.foretold, 0.5);
  EXPECT_LT(right.evidence.moved.count, 150);
  EXPECT_GE(right.evidence.moved.count, kLeastMovedBlocks);
  EXPECT_LT(right.evidence.unexplained.after, 0.1 * right.evidence.unexplained.before);
  EXPECT_LT(right.evidence.unexplained.left_in_most, 0.1);
  // The whole image hardly moves.
  EXPECT_LT(right.evidence.deformation_mm, 0.5 * kNodeMm);
  EXPECT_NEAR(*right.error.deformation_mm, right.evidence.deformation_mm, 0);
  const GateAnswer reversed = Judge(fixed, moving, [](Vec3d p) { return p - (Bump(p) - p); });
  EXPECT_FALSE(reversed.is_accepted);
  const GateAnswer invented = Judge(moving, moving, Bump);
  EXPECT_FALSE(invented.is_accepted);
  EXPECT_LT(invented.gain(), 0);
}

// 8 mm are 4 nodes, more than the probe reaches, so that the start seems to have nothing in common with the answer.
TEST_P(GateOnImagesTest, BelievesAShiftThatContradictsTheStart) {
  const auto shift = [](Vec3d p) { return p + Vec3d{8, 0, 0}; };
  const PreparedImage fixed = Image(1, shift), moving = Image(1, Same);
  const GateAnswer answer = Judge(fixed, moving, shift);
  EXPECT_TRUE(answer.is_accepted);
  EXPECT_LT(answer.evidence.affine_agreement, 0.3);
  EXPECT_LT(answer.error.expected_mm, 1);
  // The affine map that is nearest to it is the shift.
  const double chance = answer.error.chance;
  if (answer.evidence.affine_agreement < chance) {
    EXPECT_GT(*answer.error.affine_agreement, 0.9);
  }
  EXPECT_GE(*answer.error.affine_agreement, chance);
}

TEST_P(GateOnImagesTest, DoesNotBelieveADeformationOfUnrelatedImages) {
  const PreparedImage fixed = Image(1, Same), moving = Image(2, Same);
  EXPECT_FALSE(Judge(fixed, moving, Bump).is_accepted);
  EXPECT_FALSE(Judge(fixed, moving, [](Vec3d p) { return p + Vec3d{5, 3, -2}; }).is_accepted);
}

}  // namespace
}  // namespace intrawarp
