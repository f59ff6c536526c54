// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/deformation_ways.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "engine/base/status_macros.h"

namespace intrawarp {
namespace {

// The orthogonal factor of the linear part of a map, which is not singular: X <- (X + X^-T) / 2 until it stays.
AffineMap Orthogonal(AffineMap x) {
  constexpr int kMostSteps = 60;
  for (int step = 0; step < kMostSteps; ++step) {
    const AffineMap inverse = Inverse(x);
    double change = 0;
    AffineMap next = x;
    for (int r = 0; r < 3; ++r) {
      for (int c = 0; c < 3; ++c) {
        next.m[r][c] = 0.5 * (x.m[r][c] + inverse.m[c][r]);
        change = std::max(change, std::abs(next.m[r][c] - x.m[r][c]));
      }
    }
    x = next;
    if (!(change > 1e-12)) break;
  }
  return x;
}

Vec3d Mean(absl::Span<const Vec3d> points) {
  Vec3d sum;
  for (const Vec3d& p : points) sum = sum + p;
  return (1.0 / static_cast<double>(points.size())) * sum;
}

// The cofactors of the linear part M, det(M) M^-T also where M is singular. For M = Q S with a rotation Q they are Q
// cof(S): M with its cofactors added has the same rotation, and a plane of places has its normal.
AffineMap WithCofactors(const AffineMap& x) {
  AffineMap out = x;
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 3; ++c) {
      const int r1 = (r + 1) % 3, r2 = (r + 2) % 3, c1 = (c + 1) % 3, c2 = (c + 2) % 3;
      out.m[r][c] += x.m[r1][c1] * x.m[r2][c2] - x.m[r1][c2] * x.m[r2][c1];
    }
  }
  return out;
}

// The half of the points, or one more, that lies nearest to their mean.
std::vector<Vec3d> NearerHalf(std::vector<Vec3d> points) {
  if (points.empty()) return points;
  const Vec3d middle = Mean(points);
  const auto distance = [&](const Vec3d& p) { return Dot(p - middle, p - middle); };
  const size_t half = (points.size() + 1) / 2;
  std::nth_element(points.begin(), points.begin() + static_cast<int64_t>(half - 1), points.end(),
                   [&](const Vec3d& a, const Vec3d& b) { return distance(a) < distance(b); });
  points.resize(half);
  return points;
}

// sum (q - mean q) (p - mean p)^T over its scale.
AffineMap Covariance(absl::Span<const Vec3d> places, absl::Span<const Vec3d> ways) {
  const Vec3d middle = Mean(places), way = Mean(ways);
  AffineMap sum{};
  Vec3d spread;
  for (size_t i = 0; i < places.size(); ++i) {
    const Vec3d p = places[i] - middle, q = p + ways[i] - way;
    for (int r = 0; r < 3; ++r) {
      for (int c = 0; c < 3; ++c) sum.m[r][c] += q[r] * p[c];
      spread[r] += p[r] * p[r];
    }
  }
  const double scale = std::max({spread.x, spread.y, spread.z});
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 3; ++c) sum.m[r][c] /= scale;
  }
  return sum;
}

}  // namespace

absl::StatusOr<std::vector<Vec3d>> DeformationWays(const ExecContext& ctx, const Transform& transform,
                                                   absl::Span<const Vec3d> places) {
  std::vector<Vec3d> ways(places.size());
  if (places.empty() || transform.is_affine()) return ways;
  std::vector<double> mapped;
  mapped.reserve(3 * places.size());
  for (const Vec3d place : places) mapped.insert(mapped.end(), {place.x, place.y, place.z});
  ArenaScope scope(ctx.arena());
  INTRAWARP_RETURN_IF_ERROR(MapPoints(ctx, transform, /*inverse=*/false, absl::MakeSpan(mapped)));
  const AffineMap back = Inverse(transform.affine());
  for (size_t i = 0; i < places.size(); ++i) {
    ways[i] = back({mapped[3 * i], mapped[3 * i + 1], mapped[3 * i + 2]}) - places[i];
  }
  return ways;
}

double TurnDegrees(absl::Span<const Vec3d> places, absl::Span<const Vec3d> ways) {
  constexpr size_t kLeastPlaces = 4;
  if (places.size() < kLeastPlaces) return 0;
  constexpr double kSingular = 1e-9;
  const AffineMap covariance = Covariance(places, ways);
  // Written so that NaN has no rotation; below 0 the places are mirrored.
  if (!(Determinant(covariance) > -kSingular)) return 0;
  const AffineMap whole = WithCofactors(covariance);
  if (!(Determinant(whole) > kSingular)) return 0;
  const AffineMap rotation = Orthogonal(whole);
  const double cosine = 0.5 * (rotation.m[0][0] + rotation.m[1][1] + rotation.m[2][2] - 1);
  return std::acos(std::clamp(cosine, -1.0, 1.0)) * 180 / M_PI;
}

absl::StatusOr<double> DeformationTurn(const ExecContext& ctx, const Transform& transform, const ResidualProbe& probe) {
  std::vector<Vec3d> matched;
  for (const MatchedBlock& block : MatchedBlocks(probe)) matched.push_back(block.centre);
  const std::vector<Vec3d> places = NearerHalf(std::move(matched));
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<Vec3d> ways, DeformationWays(ctx, transform, places));
  return TurnDegrees(places, ways);
}

}  // namespace intrawarp
