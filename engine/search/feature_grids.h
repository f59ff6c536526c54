// SPDX-License-Identifier: Apache-2.0
// Where a discrete search takes place: nodes over the fixed image's domain, voxels within them for descriptors, and the
// reach of displacements; and the descriptors of an image there.
#ifndef INTRAWARP_ENGINE_SEARCH_FEATURE_GRIDS_H_
#define INTRAWARP_ENGINE_SEARCH_FEATURE_GRIDS_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/feature/pooled_descriptor.h"
#include "engine/geometry/geometry.h"
#include "engine/image/pyramid.h"
#include "engine/transform/transform.h"

namespace intrawarp {

struct SearchLayout {
  // Cubic nodes (square ones in 2-D). An axis shorter than a node has one node.
  Geometry nodes;
  // Nodes times `block` over the same domain: at most kMostBlock voxels a node on each axis, and about as fine as the
  // image where that is coarser.
  Geometry voxels;
  Int3 block;
  // In nodes.
  Int3 reach;
};

inline constexpr int kMostBlock = 4;
// Without a wish the nodes are about so many.
inline constexpr int64_t kSearchNodes = 32000, kSearchNodes2d = 64 * 64;
// More than that is refused.
inline constexpr int64_t kMostSearchNodes = 262144;
// Without a wish displacements reach this far, but at most kDefaultReach nodes.
inline constexpr double kDefaultRangeMm = 48;
inline constexpr int kDefaultReach = 8;

// `node_mm`: the side of a node; `range_mm`: the longest displacement on each axis. INVALID_ARGUMENT "node_mm: ..." and
// "range_mm: ...": not finite, not above 0, more nodes than kMostSearchNodes, or more than kMostReach nodes away.
absl::StatusOr<SearchLayout> LayOutSearch(const Geometry& fixed, std::optional<double> node_mm,
                                          std::optional<double> range_mm);

// The descriptors of layout.nodes for `image` at T(p). Unless `weights` is null, the mask has weights, and so have the
// nodes (PoolDescriptors). Stream-ordered. Workspace: DescribeNodesWorkspaceBytes.
absl::Status DescribeNodes(const ExecContext& ctx, const PreparedImage& image, ConstMaskView mask,
                           const Transform& transform, const SearchLayout& layout, PooledDescriptor* out,
                           uint8_t* weights = nullptr);
int64_t DescribeNodesWorkspaceBytes(const SearchLayout& layout);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SEARCH_FEATURE_GRIDS_H_
