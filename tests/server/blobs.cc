// SPDX-License-Identifier: Apache-2.0
#include "tests/server/blobs.h"

#include <cmath>

namespace intrawarp::server {
namespace {

struct Blob {
  Vec3d at;
  double radius, height;
};

constexpr Blob kBlobs[] = {{{0, 0, 0}, 0.30, 100},           {{0.35, 0.10, 0.15}, 0.12, 160},
                           {{-0.30, 0.25, -0.1}, 0.15, 130}, {{0.05, -0.35, 0.22}, 0.10, 190},
                           {{-0.2, -0.25, -0.3}, 0.13, 90},  {{0.22, 0.3, -0.28}, 0.09, 170}};

double ValueAt(const Vec3d& p, double scale) {
  double value = 0;
  for (const Blob& blob : kBlobs) {
    const Vec3d d = p - scale * blob.at;
    value += blob.height * std::exp(-Dot(d, d) / (2 * scale * scale * blob.radius * blob.radius));
  }
  return value;
}

}  // namespace

std::vector<float> Blobs(const Geometry& grid, const Vec3d& center, double scale, const AffineMap& map) {
  const AffineMap to_physical = IndexToPhysical(grid);
  std::vector<float> voxels;
  voxels.reserve(grid.voxels());
  for (int z = 0; z < grid.size.z; ++z) {
    for (int y = 0; y < grid.size.y; ++y) {
      for (int x = 0; x < grid.size.x; ++x) {
        const Vec3d p = map(to_physical({double(x), double(y), double(z)}));
        voxels.push_back(static_cast<float>(ValueAt(p - center, scale)));
      }
    }
  }
  return voxels;
}

}  // namespace intrawarp::server
