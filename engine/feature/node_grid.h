// SPDX-License-Identifier: Apache-2.0
// Grids of nodes over an image's domain, with nodes as long as wide. All functions are pure.
#ifndef INTRAWARP_ENGINE_FEATURE_NODE_GRID_H_
#define INTRAWARP_ENGINE_FEATURE_NODE_GRID_H_

#include <cstdint>

#include "engine/geometry/geometry.h"

namespace intrawarp {

// The grid over the domain of `grid` with `counts` voxels along its axes, each 1 or more.
Geometry Divided(const Geometry& grid, Int3 counts);

// The counts of cubic nodes (square ones in 2-D) over the domain of `grid`, so many that they are about `nodes`, but no
// smaller than a voxel in the mean of the axes. An axis shorter than a node has one node.
Int3 CubicCounts(const Geometry& grid, int64_t nodes);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_FEATURE_NODE_GRID_H_
