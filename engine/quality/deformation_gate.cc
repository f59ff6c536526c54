// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/deformation_gate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "absl/types/span.h"
#include "engine/base/status_macros.h"

namespace intrawarp {

namespace {

// |T(x) - A(x)| at the centre of each block.
absl::StatusOr<std::vector<double>> Lengths(const ExecContext& ctx, const Transform& transform,
                                            const std::vector<MatchedBlock>& blocks) {
  std::vector<double> lengths(blocks.size());
  if (blocks.empty() || transform.is_affine()) return lengths;
  std::vector<double> mapped;
  for (const MatchedBlock& block : blocks) {
    mapped.insert(mapped.end(), {block.centre.x, block.centre.y, block.centre.z});
  }
  ArenaScope scope(ctx.arena());
  INTRAWARP_RETURN_IF_ERROR(MapPoints(ctx, transform, /*inverse=*/false, absl::MakeSpan(mapped)));
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Vec3d d = Vec3d{mapped[3 * i], mapped[3 * i + 1], mapped[3 * i + 2]} - transform.affine()(blocks[i].centre);
    lengths[i] = std::sqrt(Dot(d, d));
  }
  return lengths;
}

}  // namespace

absl::StatusOr<double> MeanDeformation(const ExecContext& ctx, const Transform& transform, const ResidualProbe& probe) {
  const std::vector<MatchedBlock> blocks = MatchedBlocks(probe);
  if (blocks.empty()) return 0.0;
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<double> lengths, Lengths(ctx, transform, blocks));
  return std::accumulate(lengths.begin(), lengths.end(), 0.0) / static_cast<double>(lengths.size());
}

absl::StatusOr<BoundedMoves> CountBoundedMoves(const ExecContext& ctx, const Transform& transform,
                                               const ResidualProbe& affine) {
  const std::vector<MatchedBlock> blocks = MatchedBlocks(affine);
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<double> lengths, Lengths(ctx, transform, blocks));
  BoundedMoves moves{static_cast<int64_t>(blocks.size()), 0};
  for (size_t i = 0; i < blocks.size(); ++i) {
    moves.beyond += lengths[i] > PredictBlockError(*blocks[i].match, affine.node_mm).bound_mm;
  }
  return moves;
}

bool ContradictsBound(const BoundedMoves& moves) {
  constexpr double kMayBe = 1 - kErrorQuantile;
  const auto blocks = static_cast<double>(moves.blocks);
  return static_cast<double>(moves.beyond) > kMayBe * blocks + 2 * std::sqrt(kMayBe * kErrorQuantile * blocks);
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
