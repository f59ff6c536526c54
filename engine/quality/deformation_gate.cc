// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/deformation_gate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/types/span.h"
#include "engine/base/status_macros.h"

namespace intrawarp {
namespace {

// x y z of the centres of the matched blocks, LPS mm.
std::vector<double> MatchedCentres(const ResidualProbe& probe) {
  const AffineMap to_physical = IndexToPhysical(probe.blocks);
  std::vector<double> points;
  int64_t block = 0;
  for (int z = 0; z < probe.blocks.size.z; ++z) {
    for (int y = 0; y < probe.blocks.size.y; ++y) {
      for (int x = 0; x < probe.blocks.size.x; ++x, ++block) {
        if (probe.matches[block].matched == 0) continue;
        const Vec3d p = to_physical({static_cast<double>(x), static_cast<double>(y), static_cast<double>(z)});
        points.insert(points.end(), {p.x, p.y, p.z});
      }
    }
  }
  return points;
}

}  // namespace

absl::StatusOr<double> MeanDeformation(const ExecContext& ctx, const Transform& transform, const ResidualProbe& probe) {
  const std::vector<double> points = MatchedCentres(probe);
  if (points.empty() || transform.is_affine()) return 0.0;
  std::vector<double> mapped = points;
  ArenaScope scope(ctx.arena());
  INTRAWARP_RETURN_IF_ERROR(MapPoints(ctx, transform, /*inverse=*/false, absl::MakeSpan(mapped)));
  double sum = 0;
  for (size_t i = 0; i < points.size(); i += 3) {
    const Vec3d affine = transform.affine()({points[i], points[i + 1], points[i + 2]});
    const Vec3d d = Vec3d{mapped[i], mapped[i + 1], mapped[i + 2]} - affine;
    sum += std::sqrt(Dot(d, d));
  }
  return 3 * sum / static_cast<double>(points.size());
}

size_t MeanDeformationWorkspaceBytes(const Geometry& fixed) {
  return Arena::Rounded(3 * sizeof(double) * BlockCount(ProbeGrid(fixed).size));
}

double GainOf(const DeformationEvidence& evidence) {
  const double way = std::min(evidence.deformation_mm, kSearchRadius * evidence.node_mm);
  if (way < 0.5 * evidence.node_mm) return 1;
  return (evidence.affine_expected_mm - evidence.expected_mm) / way;
}

}  // namespace intrawarp
