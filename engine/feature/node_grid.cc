// SPDX-License-Identifier: Apache-2.0
#include "engine/feature/node_grid.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace intrawarp {
namespace {

// The side in mm of a cubic (square, straight) node of which `nodes` fill the axes that are divided, no smaller than a
// voxel in the mean of those axes.
double NodeSide(const Geometry& fixed, const std::array<bool, 3>& divided, double nodes) {
  double domain = 1, voxel = 1;
  int axes = 0;
  for (int a = 0; a < 3; ++a) {
    if (!divided[a]) continue;
    domain *= fixed.size[a] * fixed.spacing[a];
    voxel *= fixed.spacing[a];
    ++axes;
  }
  return std::pow(std::max(domain / nodes, voxel), 1.0 / axes);
}

}  // namespace

Geometry Divided(const Geometry& grid, Int3 counts) {
  Geometry out = grid;
  Vec3d first{};
  for (int a = 0; a < 3; ++a) {
    const double factor = static_cast<double>(grid.size[a]) / counts[a];
    out.size[a] = counts[a];
    out.spacing[a] = grid.spacing[a] * factor;
    first[a] = 0.5 * factor - 0.5;
  }
  out.origin = IndexToPhysical(grid)(first);
  return out;
}

Int3 CubicCounts(const Geometry& grid, int64_t nodes_wanted) {
  const auto nodes = static_cast<double>(nodes_wanted);
  std::array<bool, 3> divided{true, true, !grid.is_2d()};
  double side = 0;
  // An axis shorter than a node's side leaves the nodes to the others, whose side is then larger.
  for (bool changed = true; changed;) {
    side = NodeSide(grid, divided, nodes);
    changed = false;
    for (int a = 0; a < 3; ++a) {
      const bool is_thin = divided[a] && grid.size[a] * grid.spacing[a] < side * (1 - 1e-9);
      if (is_thin) divided[a] = false;
      changed = changed || is_thin;
    }
  }
  Int3 counts{1, 1, 1};
  for (int a = 0; a < 3; ++a) {
    const double wanted = divided[a] ? std::round(grid.size[a] * grid.spacing[a] / side) : 1.0;
    counts[a] = static_cast<int>(std::clamp(wanted, 1.0, nodes));
  }
  return counts;
}

}  // namespace intrawarp
