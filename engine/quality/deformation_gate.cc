// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/deformation_gate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"
#include "engine/quality/deformation_ways.h"
#include "engine/quality/residual_probe_kernels.h"

namespace intrawarp {

namespace {

double Length(Vec3d v) { return std::sqrt(Dot(v, v)); }

// The centres of all blocks, x fastest.
std::vector<Vec3d> Centres(const Geometry& blocks) {
  const AffineMap to_physical = IndexToPhysical(blocks);
  std::vector<Vec3d> centres;
  centres.reserve(blocks.voxels());
  for (int64_t i = 0; i < blocks.voxels(); ++i) centres.push_back(to_physical(ToVec3d(VoxelAt(blocks.size, i))));
  return centres;
}

// The mean of |A u| over the matched blocks.
double MeanLength(const AffineMap& affine, const ResidualProbe& probe, absl::Span<const Vec3d> ways) {
  double sum = 0;
  int64_t count = 0;
  for (size_t i = 0; i < ways.size(); ++i) {
    if (probe.matches[i].matched == 0) continue;
    sum += Length(affine.Linear(ways[i]));
    ++count;
  }
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

// A displacement in mm in nodes along the axes of the probe.
class InNodes {
 public:
  explicit InNodes(const ResidualProbe& probe)
      : to_index_(PhysicalToIndex(probe.blocks)), blocks_(probe.blocks), node_(probe.node_mm) {}

  Vec3d operator()(Vec3d mm) const {
    const Vec3d in_blocks = to_index_.Linear(mm);
    Vec3d nodes;
    for (int a = 0; a < 3; ++a) nodes[a] = in_blocks[a] * blocks_.spacing[a] / node_[a];
    return nodes;
  }

 private:
  AffineMap to_index_;
  Geometry blocks_;
  Vec3d node_;
};

Vec3d OffsetOf(const CostMinimum& minimum) { return {minimum.offset[0], minimum.offset[1], minimum.offset[2]}; }

bool HasMoved(Vec3d nodes) { return Length(nodes) >= kMoved; }

// Samples of both images on the grid of the probe, on the host.
struct HostSamples {
  std::vector<float> fixed, moving;
  std::vector<uint8_t> valid;
};

absl::StatusOr<HostSamples> SampleToHost(const ExecContext& ctx, const GateImages& images, const Transform& transform,
                                         const Geometry& grid) {
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(
      const ProbeSamples samples,
      SampleImages(ctx, images.fixed, images.moving, images.fixed_mask, images.moving_mask, transform, grid));
  const auto nodes = static_cast<size_t>(grid.voxels());
  HostSamples host{std::vector<float>(nodes), std::vector<float>(nodes), std::vector<uint8_t>(nodes)};
  Device& device = ctx.device();
  INTRAWARP_RETURN_IF_ERROR(device.Copy(host.fixed.data(), samples.fixed, nodes * sizeof(float), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(device.Copy(host.moving.data(), samples.moving, nodes * sizeof(float), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(device.Copy(host.valid.data(), samples.valid, nodes, ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(device.Synchronize(ctx.stream()));
  return host;
}

// Sums over pairs of the fixed image (f) and the moving one (m), each less the mean of its whole image.
struct PairSums {
  double count = 0, f = 0, m = 0, ff = 0, mm = 0, fm = 0;

  void Add(double of_fixed, double of_moving) {
    ++count;
    f += of_fixed, ff += of_fixed * of_fixed;
    m += of_moving, mm += of_moving * of_moving;
    fm += of_fixed * of_moving;
  }
  void Add(const PairSums& other) {
    count += other.count;
    f += other.f, ff += other.ff;
    m += other.m, mm += other.mm;
    fm += other.fm;
  }
  // Central moments times the number of pairs.
  double fixed_squares() const { return count > 0 ? ff - f * f / count : 0; }
  double moving_squares() const { return count > 0 ? mm - m * m / count : 0; }
  double products() const { return count > 0 ? fm - f * m / count : 0; }
  // 1 - r^2; 1 where either is constant.
  double unexplained() const {
    const double squares = fixed_squares() * moving_squares();
    return squares > 0 ? std::clamp(1 - products() * products() / squares, 0.0, 1.0) : 1;
  }
};

// f = slope m + offset in the least squares over some pairs.
struct Line {
  double slope = 0, offset = 0;

  // The sum of the squared distances of pairs from it.
  double Residual(const PairSums& s) const {
    const double squares = s.ff + slope * slope * s.mm + s.count * offset * offset;
    return std::max(0.0, squares + 2 * (slope * offset * s.m - slope * s.fm - offset * s.f));
  }
};

Line LineThrough(const PairSums& s) {
  if (!(s.moving_squares() > 0)) return {};
  const double slope = s.products() / s.moving_squares();
  return {slope, (s.f - slope * s.m) / s.count};
}

// Whether a block has structure (either probe matched it), and whether it moved, too.
enum class BlockKind : uint8_t { kBare, kStill, kMoved };

std::vector<BlockKind> KindsOf(const ResidualProbe& before, const ResidualProbe& after, absl::Span<const Vec3d> ways) {
  const InNodes in_nodes(before);
  std::vector<BlockKind> kinds(ways.size(), BlockKind::kBare);
  for (size_t i = 0; i < ways.size(); ++i) {
    if (before.matches[i].matched == 0 && after.matches[i].matched == 0) continue;
    kinds[i] = HasMoved(in_nodes(ways[i])) ? BlockKind::kMoved : BlockKind::kStill;
  }
  return kinds;
}

// The sums of a block over the nodes that count both before and after, so that the pairs differ in nothing but the
// deformation.
struct BlockSums {
  PairSums before, after;
};

absl::StatusOr<std::vector<BlockSums>> SumBlocks(const ExecContext& ctx, const GateImages& images,
                                                 const Transform& transform) {
  const Geometry grid = ProbeGrid(images.fixed.geometry());
  const Transform affine(transform.affine());
  INTRAWARP_ASSIGN_OR_RETURN(const HostSamples before, SampleToHost(ctx, images, affine, grid));
  INTRAWARP_ASSIGN_OR_RETURN(const HostSamples after, SampleToHost(ctx, images, transform, grid));
  const double of_fixed = images.fixed.statistics().mean, of_moving = images.moving.statistics().mean;
  const Int3 n = grid.size, blocks = BlockCounts(n);
  std::vector<BlockSums> sums(BlockCount(n));
  const auto add_row = [&](int y, int z) {
    BlockSums* const row = &sums[(z / kBlockSide * int64_t{blocks.y} + y / kBlockSide) * blocks.x];
    const int64_t first = (int64_t{z} * n.y + y) * n.x;
    for (int x = 0; x < n.x; ++x) {
      const int64_t node = first + x;
      if (before.valid[node] == 0 || after.valid[node] == 0) continue;
      const double f = before.fixed[node] - of_fixed;
      row[x / kBlockSide].before.Add(f, before.moving[node] - of_moving);
      row[x / kBlockSide].after.Add(f, after.moving[node] - of_moving);
    }
  };
  // A layer of blocks at a time, so that the nodes of a block are added in one order.
  ParallelFor(blocks.z, [&](int64_t layer) {
    const int begin = static_cast<int>(layer) * kBlockSide, end = std::min(begin + kBlockSide, n.z);
    for (int z = begin; z < end; ++z) {
      for (int y = 0; y < n.y; ++y) add_row(y, z);
    }
  });
  return sums;
}

// The quotient after by before of a block's squared residuals from the line that holds everywhere after; residuals of a
// millionth of the variance count as none.
double ResidualLeft(const BlockSums& block, const Line& line, double variance) {
  const double nothing = 1e-6 * variance * block.after.count;
  return (line.Residual(block.after) + nothing) / (line.Residual(block.before) + nothing);
}

absl::StatusOr<Unexplained> MeasureUnexplained(const ExecContext& ctx, const GateImages& images,
                                               const Transform& transform, const std::vector<BlockKind>& kinds) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<BlockSums> blocks, SumBlocks(ctx, images, transform));
  if (blocks.size() != kinds.size()) return absl::InternalError("a probe of another grid");
  BlockSums moved, all;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (kinds[i] == BlockKind::kBare) continue;
    all.after.Add(blocks[i].after);
    if (kinds[i] != BlockKind::kMoved) continue;
    moved.before.Add(blocks[i].before);
    moved.after.Add(blocks[i].after);
  }
  Unexplained unexplained{moved.before.unexplained(), moved.after.unexplained(), all.after.unexplained()};
  const Line line = LineThrough(all.after);
  const double variance = all.after.fixed_squares() / std::max(all.after.count, 1.0);
  std::vector<double> left;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (kinds[i] == BlockKind::kMoved && blocks[i].after.count > 1 && variance > 0) {
      left.push_back(ResidualLeft(blocks[i], line, variance));
    }
  }
  if (left.empty()) return unexplained;
  const auto third_quarter = left.begin() + static_cast<int64_t>(3 * left.size() / 4);
  std::nth_element(left.begin(), third_quarter, left.end());
  unexplained.left_in_most = *third_quarter;
  return unexplained;
}

// Solves m x = b for a symmetric, positive definite n x n matrix by Cholesky's method, in place; false where it is not.
bool Solve(int n, std::array<std::array<double, 3>, 3>& m, std::array<double, 3>& b) {
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j <= i; ++j) {
      double sum = m[i][j];
      for (int k = 0; k < j; ++k) sum -= m[i][k] * m[j][k];
      if (i == j && !(sum > 0)) return false;
      m[i][j] = i == j ? std::sqrt(sum) : sum / m[j][j];
    }
    for (int k = 0; k < i; ++k) b[i] -= m[i][k] * b[k];
    b[i] /= m[i][i];
  }
  for (int i = n - 1; i >= 0; --i) {
    for (int k = i + 1; k < n; ++k) b[i] -= m[k][i] * b[k];
    b[i] /= m[i][i];
  }
  return true;
}

Vec3d MeanOfAll(absl::Span<const Vec3d> vectors) {
  Vec3d sum{};
  for (const Vec3d v : vectors) sum = sum + v;
  return (1.0 / static_cast<double>(vectors.size())) * sum;
}

// The estimate of the affine map that is nearest to the deformation over the matched blocks; absent without one.
absl::StatusOr<std::optional<ErrorEstimate>> EstimateOfNearestAffine(const ExecContext& ctx, const GateImages& images,
                                                                     const Transform& transform,
                                                                     const ResidualProbe& probe,
                                                                     absl::Span<const Vec3d> centres,
                                                                     absl::Span<const Vec3d> ways) {
  std::vector<Vec3d> places, moves;
  for (size_t i = 0; i < ways.size(); ++i) {
    if (probe.matches[i].matched == 0) continue;
    places.push_back(centres[i]);
    moves.push_back(ways[i]);
  }
  const AffineMap to_physical = IndexToPhysical(probe.blocks);
  std::vector<Vec3d> axes;
  for (int a = 0; a < 3; ++a) {
    Vec3d axis{};
    axis[a] = 1;
    if (probe.blocks.size[a] > 1) axes.push_back(to_physical.Linear(axis));
  }
  const std::optional<AffineMap> nearest = NearestAffine(places, moves, axes);
  if (!nearest.has_value()) return std::nullopt;
  const Transform map(Compose(transform.affine(), *nearest));
  INTRAWARP_ASSIGN_OR_RETURN(const ResidualProbe seen, ProbeResidual(ctx, images.fixed, images.moving,
                                                                     images.fixed_mask, images.moving_mask, map));
  return PredictError(seen);
}

// An agreement of this many times chance is not chance.
constexpr double kClearlyRelatedChances = 4;

}  // namespace

bool ContradictsBound(const BoundedMoves& moves) {
  constexpr double kMayBe = 1 - kErrorQuantile;
  const auto blocks = static_cast<double>(moves.blocks);
  return static_cast<double>(moves.beyond) > kMayBe * blocks + 2 * std::sqrt(kMayBe * kErrorQuantile * blocks);
}

bool Contradicts(const DeformationEvidence& evidence) {
  const bool is_long = !evidence.may_lie_on_a_line && evidence.affine_agreement >= kAgreedAlready &&
                       evidence.deformation_mm > kContradictionNodes * evidence.node_mm;
  return is_long || ContradictsBound(evidence.bounded);
}

bool IsBelieved(const DeformationEvidence& evidence) {
  const MovedBlocks& moved = evidence.moved;
  const Unexplained& left = evidence.unexplained;
  if (moved.count < kLeastMovedBlocks) return true;
  const bool fits = left.after_everywhere <= kFewUnexplained;
  if (fits && left.left_in_most <= kLeftOfNearlyAll) return true;
  const bool is_seen = moved.foretold >= kLeastForetold || (fits && left.after <= kFarLess * left.before);
  return moved.gain >= kLeastGain && is_seen && !Contradicts(evidence);
}

MovedBlocks SumMovedBlocks(const ResidualProbe& before, const ResidualProbe& after, absl::Span<const Vec3d> ways) {
  const InNodes in_nodes(before);
  MovedBlocks moved;
  double way = 0, fall = 0, along = 0, squares = 0;
  for (size_t i = 0; i < ways.size(); ++i) {
    const BlockMatch &a = before.matches[i], &b = after.matches[i];
    const Vec3d u = in_nodes(ways[i]);
    if (a.matched == 0 || b.matched == 0 || !HasMoved(u)) continue;
    ++moved.count;
    way += std::min<double>(Length(u), kSearchRadius);
    fall += (PredictBlockError(a, before.node_mm).expected_mm - PredictBlockError(b, after.node_mm).expected_mm) /
            before.node_mm.x;
    along += Dot(u, OffsetOf(a.own));
    squares += Dot(u, u);
  }
  if (moved.count == 0) return moved;
  moved.gain = fall / way;
  moved.foretold = along / squares;
  return moved;
}

BoundedMoves CountBoundedMoves(const ResidualProbe& before, absl::Span<const Vec3d> ways) {
  BoundedMoves moves;
  for (size_t i = 0; i < ways.size(); ++i) {
    const BlockMatch& match = before.matches[i];
    if (match.matched == 0) continue;
    ++moves.blocks;
    const bool agrees = match.smoothed.reach <= 1;
    moves.beyond += agrees && Length(ways[i]) > PredictBlockError(match, before.node_mm).bound_mm;
  }
  return moves;
}

std::optional<AffineMap> NearestAffine(absl::Span<const Vec3d> places, absl::Span<const Vec3d> ways,
                                       absl::Span<const Vec3d> axes) {
  if (places.size() < kLeastBlocks) return std::nullopt;
  const Vec3d centre = MeanOfAll(places), shift = MeanOfAll(ways);
  const int n = static_cast<int>(axes.size());
  std::array<std::array<double, 3>, 3> normal{};
  std::array<std::array<double, 3>, 3> right{};  // one for each component of the ways
  for (size_t i = 0; i < places.size(); ++i) {
    for (int r = 0; r < n; ++r) {
      const double at = Dot(places[i] - centre, axes[r]);
      for (int c = 0; c < n; ++c) normal[r][c] += at * Dot(places[i] - centre, axes[c]);
      for (int k = 0; k < 3; ++k) right[k][r] += at * (ways[i][k] - shift[k]);
    }
  }
  AffineMap map = AffineMap::Identity();
  for (int k = 0; k < 3; ++k) {
    std::array<std::array<double, 3>, 3> m = normal;
    if (n > 0 && !Solve(n, m, right[k])) return std::nullopt;
    for (int r = 0; r < n; ++r) {
      for (int c = 0; c < 3; ++c) map.m[k][c] += right[k][r] * axes[r][c];
    }
  }
  // x + B (x - centre) + shift.
  for (int k = 0; k < 3; ++k) {
    double of_centre = 0;
    for (int c = 0; c < 3; ++c) of_centre += (map.m[k][c] - (k == c ? 1 : 0)) * centre[c];
    map.m[k][3] = shift[k] - of_centre;
  }
  return map;
}

absl::StatusOr<GateAnswer> JudgeDeformation(const ExecContext& ctx, const GateImages& images,
                                            const Transform& transform, const Probed& affine, const Probed& deformed,
                                            bool may_lie_on_a_line) {
  const ResidualProbe &before = affine.probe, &after = deformed.probe;
  const std::vector<Vec3d> centres = Centres(before.blocks);
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<Vec3d> ways, DeformationWays(ctx, transform, centres));
  GateAnswer answer;
  DeformationEvidence& evidence = answer.evidence;
  evidence.moved = SumMovedBlocks(before, after, ways);
  evidence.bounded = CountBoundedMoves(before, ways);
  evidence.deformation_mm = MeanLength(transform.affine(), after, ways);
  evidence.node_mm = std::min(before.node_mm.x, before.node_mm.y);
  evidence.affine_agreement = affine.error.agreement;
  evidence.may_lie_on_a_line = may_lie_on_a_line;
  if (evidence.moved.count >= kLeastMovedBlocks) {
    INTRAWARP_ASSIGN_OR_RETURN(evidence.unexplained,
                               MeasureUnexplained(ctx, images, transform, KindsOf(before, after, ways)));
  }
  answer.is_accepted = IsBelieved(evidence);
  answer.contradicts = !answer.is_accepted && Contradicts(evidence);
  answer.error = deformed.error;
  HoldAgainstAffine(affine.error, evidence.deformation_mm, answer.error);
  if (!answer.is_accepted || affine.error.agreement >= LeastAgreement(affine.error)) return answer;
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<ErrorEstimate> nearest,
                             EstimateOfNearestAffine(ctx, images, transform, after, centres, ways));
  if (!nearest.has_value() || nearest->agreement < kClearlyRelatedChances * nearest->chance) return answer;
  answer.error.affine_agreement = nearest->agreement;
  answer.error.affine_bound_mm = nearest->bound_mm;
  return answer;
}

absl::StatusOr<double> MeanDeformation(const ExecContext& ctx, const Transform& transform, const ResidualProbe& probe) {
  const std::vector<Vec3d> centres = Centres(probe.blocks);
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<Vec3d> ways, DeformationWays(ctx, transform, centres));
  return MeanLength(transform.affine(), probe, ways);
}

size_t MeanDeformationWorkspaceBytes(const Geometry& fixed) {
  return Arena::Rounded(3 * sizeof(double) * BlockCount(ProbeGrid(fixed).size));
}

}  // namespace intrawarp
