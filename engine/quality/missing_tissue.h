// SPDX-License-Identifier: Apache-2.0
// Tissue that only one of two registered images shows: what was resected or ablated, a retractor, blood, gas.
//
// Both images are sampled at nodes on the fixed grid, the moving one through the transform, and medians of three nodes
// along each axis take out most of the noise. Wherever tissue is in both images, the intensities of one follow from the
// other's: for each intensity of one image, at the nodes around which that image is flattest, the median of the other's
// intensities, and how far most lie from it. A node is suspect when the fixed intensity is none that the warped image
// foretells there, or the warped intensity none that the fixed image foretells. What is left of the motion makes nodes
// suspect along every border, so that a hole begins only where no intensity within kReachMm foretells the node's, in a
// cube of kLeastWidthMm (an opening). From there it grows over suspect nodes that look like it, by kReachMm at most.
// Gaps belong to it (kGapMm, a closing), and pieces below kLeastVolumeMm3 are dropped. A median does not follow the
// minority that is missing.
//
// A difference below a 128th of the image's range of intensities is not seen, nor is a hole that looks like what lies
// beside its place in the other image: an ablation zone as dark as the tumour in it. Noise foretells everything, so
// that nothing is missing. Of unrelated images in empty space the whole bodies are.
#ifndef INTRAWARP_ENGINE_QUALITY_MISSING_TISSUE_H_
#define INTRAWARP_ENGINE_QUALITY_MISSING_TISSUE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/geometry.h"
#include "engine/image/pyramid.h"
#include "engine/image/volume.h"
#include "engine/quality/residual_probe.h"
#include "engine/transform/transform.h"

namespace intrawarp {

inline constexpr double kReachMm = 6;
inline constexpr double kLeastWidthMm = 8;
inline constexpr double kGapMm = 6;
inline constexpr double kLeastVolumeMm3 = 500;

// A plain value in host memory.
struct MissingTissue {
  // Cubic nodes over the fixed image's domain (ProbeGrid).
  Geometry grid;
  // One a node, x fastest: 1 where the tissue is missing. Empty: none is.
  std::vector<uint8_t> nodes;
  double volume_mm3 = 0;
  // The part of the nodes that both images cover.
  double fraction = 0;

  // Whether the node nearest to a point in LPS mm is missing; false outside the grid.
  bool Contains(Vec3d point) const;
};

// The images' samples at the nodes of a grid, x fastest, and whether both count there (not 0).
struct NodeSamples {
  absl::Span<const float> fixed, moving;
  absl::Span<const uint8_t> valid;
};

// Pure; on all cores; the same for any number of them. Of a plane the volume is an area in mm^2, and the least is
// kLeastVolumeMm3^(2/3).
MissingTissue FindMissingTissue(const Geometry& grid, const NodeSamples& samples);

// The same for two images (through their windows) and a transform. MeasureSimilarity (similarity.h) says what masks
// are. Waits for the stream. Workspace: MissingTissueWorkspaceBytes.
absl::StatusOr<MissingTissue> FindMissingTissue(const ExecContext& ctx, const PreparedImage& fixed,
                                                const PreparedImage& moving, ConstMaskView fixed_mask,
                                                ConstMaskView moving_mask, const Transform& transform,
                                                int64_t nodes = kProbeNodes);
size_t MissingTissueWorkspaceBytes(const Geometry& fixed);

// The missing nodes and all within `margin_mm` of one along every axis.
MissingTissue Widened(MissingTissue tissue, double margin_mm);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_QUALITY_MISSING_TISSUE_H_
