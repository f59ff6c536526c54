// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/residual_probe.h"

#include <algorithm>
#include <cmath>

#include "engine/base/status_macros.h"
#include "engine/feature/node_grid.h"
#include "engine/quality/residual_probe_kernels.h"

namespace intrawarp {
namespace {

constexpr int kNeighbourDistance = 1;
// Blocks of less variation, in variances of the image, have no structure.
constexpr double kLeastVariation = 1e-3;

// The descriptors of an image's samples on the grid of the probe, in the arena.
absl::StatusOr<DescriptorVolume> Describe(const ExecContext& ctx, const PreparedImage& image, const float* samples,
                                          const uint8_t* valid, const Geometry& grid) {
  INTRAWARP_ASSIGN_OR_RETURN(Descriptor * descriptors, ctx.arena().Allocate<Descriptor>(grid.voxels()));
  INTRAWARP_ASSIGN_OR_RETURN(float* noise, ctx.arena().Allocate<float>(1));
  INTRAWARP_RETURN_IF_ERROR(ComputeDescriptors(ctx, {samples, grid}, valid, kNeighbourDistance,
                                               DescriptorFloor(image.statistics().stddev), descriptors, noise));
  // Above 0, so that an image without any variation has no structure.
  const double variance = image.statistics().stddev * image.statistics().stddev;
  const auto least = static_cast<float>(std::max(kLeastVariation * variance, 1e-30));
  return DescriptorVolume{descriptors, valid, noise, least};
}

// The grid of blocks: block i covers nodes [i kBlockSide, (i + 1) kBlockSide).
Geometry BlockGrid(const Geometry& probe) {
  Geometry out = probe;
  out.size = BlockCounts(probe.size);
  Vec3d first{};
  for (int a = 0; a < 3; ++a) {
    const int side = probe.size[a] == 1 ? 1 : kBlockSide;
    out.spacing[a] = probe.spacing[a] * side;
    first[a] = 0.5 * (side - 1);
  }
  out.origin = IndexToPhysical(probe)(first);
  return out;
}

}  // namespace

Geometry ProbeGrid(const Geometry& fixed, int64_t nodes) {
  return Divided(fixed, CubicCounts(fixed, fixed.is_2d() ? kProbeNodes2d : nodes));
}

std::vector<MatchedBlock> MatchedBlocks(const ResidualProbe& probe) {
  const AffineMap to_physical = IndexToPhysical(probe.blocks);
  const Int3 n = probe.blocks.size;
  std::vector<MatchedBlock> blocks;
  for (int i = 0; i < static_cast<int>(probe.matches.size()); ++i) {
    if (probe.matches[i].matched == 0) continue;
    const Int3 block{i % n.x, i / n.x % n.y, i / n.x / n.y};
    blocks.push_back({to_physical(ToVec3d(block)), &probe.matches[i]});
  }
  return blocks;
}

absl::StatusOr<ProbeSamples> SampleImages(const ExecContext& ctx, const PreparedImage& fixed,
                                          const PreparedImage& moving, ConstMaskView fixed_mask,
                                          ConstMaskView moving_mask, const Transform& transform, const Geometry& grid) {
  ProbeSamples samples;
  INTRAWARP_ASSIGN_OR_RETURN(samples.fixed, ctx.arena().Allocate<float>(grid.voxels()));
  INTRAWARP_ASSIGN_OR_RETURN(samples.moving, ctx.arena().Allocate<float>(grid.voxels()));
  INTRAWARP_ASSIGN_OR_RETURN(samples.valid, ctx.arena().Allocate<uint8_t>(grid.voxels()));
  const double node_mm = std::min(grid.spacing.x, grid.spacing.y);
  const AffineMap to_physical = IndexToPhysical(grid);
  const ProbeSampling sampling{grid.size, to_physical, MakeForwardMap(transform, to_physical, AffineMap::Identity()),
                               MakeSampledImage(fixed, fixed_mask, node_mm),
                               MakeSampledImage(moving, moving_mask, node_mm)};
  INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, SampleProbe, sampling, samples));
  return samples;
}

absl::StatusOr<ResidualProbe> ProbeResidual(const ExecContext& ctx, const PreparedImage& fixed,
                                            const PreparedImage& moving, ConstMaskView fixed_mask,
                                            ConstMaskView moving_mask, const Transform& transform,
                                            int64_t nodes_wanted) {
  const Geometry grid = ProbeGrid(fixed.geometry(), nodes_wanted);
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const ProbeSamples samples,
                             SampleImages(ctx, fixed, moving, fixed_mask, moving_mask, transform, grid));
  INTRAWARP_ASSIGN_OR_RETURN(const DescriptorVolume fixed_descriptors,
                             Describe(ctx, fixed, samples.fixed, samples.valid, grid));
  INTRAWARP_ASSIGN_OR_RETURN(const DescriptorVolume moving_descriptors,
                             Describe(ctx, moving, samples.moving, samples.valid, grid));
  INTRAWARP_ASSIGN_OR_RETURN(BlockMatch * matches, ctx.arena().Allocate<BlockMatch>(BlockCount(grid.size)));
  ResidualProbe probe;
  probe.intensity_variance = fixed.statistics().stddev * fixed.statistics().stddev;
  INTRAWARP_RETURN_IF_ERROR(MatchBlocks(ctx, fixed_descriptors, moving_descriptors, grid.size, matches));
  probe.blocks = BlockGrid(grid);
  probe.node_mm = grid.spacing;
  probe.matches.resize(BlockCount(grid.size));
  INTRAWARP_RETURN_IF_ERROR(
      ctx.device().Copy(probe.matches.data(), matches, probe.matches.size() * sizeof(BlockMatch), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return probe;
}

size_t ResidualProbeWorkspaceBytes(const Geometry& fixed) {
  const Geometry grid = ProbeGrid(fixed);
  const size_t nodes = grid.voxels();
  return 2 * Arena::Rounded(nodes * sizeof(float)) + Arena::Rounded(nodes) +
         2 * (Arena::Rounded(nodes * sizeof(Descriptor)) + Arena::Rounded(sizeof(float))) +
         Arena::Rounded(BlockCount(grid.size) * sizeof(BlockMatch)) +
         std::max(DescriptorWorkspaceBytes(grid), MatchBlocksWorkspaceBytes(grid.size));
}

}  // namespace intrawarp
