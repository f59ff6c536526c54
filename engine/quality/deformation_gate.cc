// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/deformation_gate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/types/span.h"
#include "engine/base/status_macros.h"

namespace intrawarp {

absl::StatusOr<double> MeanDeformation(const ExecContext& ctx, const Transform& transform, const ResidualProbe& probe) {
  std::vector<double> points;
  for (const MatchedBlock& block : MatchedBlocks(probe)) {
    points.insert(points.end(), {block.centre.x, block.centre.y, block.centre.z});
  }
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
