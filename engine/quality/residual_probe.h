// SPDX-License-Identifier: Apache-2.0
// The probe sees what is left to move after a registration, without its metric and its optimiser: descriptors
// (descriptor.h) of the fixed and of the warped moving image are matched block by block (block_match.h) around the
// result.
#ifndef INTRAWARP_ENGINE_QUALITY_RESIDUAL_PROBE_H_
#define INTRAWARP_ENGINE_QUALITY_RESIDUAL_PROBE_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/image/pyramid.h"
#include "engine/quality/block_match.h"
#include "engine/transform/transform.h"

namespace intrawarp {

// The grid of the probe: the fixed image's domain with cubic nodes (square ones in 2-D), so many that they are about
// `nodes` (kProbeNodes2d), but no finer than the image. The cost of a probe is in proportion; its errors are in nodes.
inline constexpr int64_t kProbeNodes = 400000;
inline constexpr int64_t kFrameProbeNodes = 100000;
inline constexpr int64_t kProbeNodes2d = 74 * 74;
Geometry ProbeGrid(const Geometry& fixed, int64_t nodes = kProbeNodes);

struct ResidualProbe {
  // The grid of the blocks: its voxels are blocks, their centres the blocks' centres, ends included.
  Geometry blocks;
  // mm a node on each axis.
  Vec3d node_mm;
  // One a block.
  std::vector<BlockMatch> matches;
  // The fixed image's variance in squared intensities, the unit of variations.
  double intensity_variance = 0;
};

// The matched blocks, x fastest, with their centres in LPS mm. The probe must outlive them.
struct MatchedBlock {
  Vec3d centre;
  const BlockMatch* match = nullptr;
};
std::vector<MatchedBlock> MatchedBlocks(const ResidualProbe& probe);

// Waits for the stream. Masks are as for MeasureSimilarity (similarity.h), `nodes` at most kProbeNodes. Workspace:
// ResidualProbeWorkspaceBytes.
absl::StatusOr<ResidualProbe> ProbeResidual(const ExecContext& ctx, const PreparedImage& fixed,
                                            const PreparedImage& moving, ConstMaskView fixed_mask,
                                            ConstMaskView moving_mask, const Transform& transform,
                                            int64_t nodes = kProbeNodes);
size_t ResidualProbeWorkspaceBytes(const Geometry& fixed);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_QUALITY_RESIDUAL_PROBE_H_
