// SPDX-License-Identifier: Apache-2.0
// ShownImage: an image as the page gets it: 16-bit voxels, or 8-bit ones within a window where it is large, fewer of
// them where it is larger still. ShownField: a displacement on a coarse grid.
//
// Plain values, immutable once made; the functions are thread-safe.
#ifndef INTRAWARP_SERVER_PAGE_SHOWN_IMAGE_H_
#define INTRAWARP_SERVER_PAGE_SHOWN_IMAGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/base/pixel_type.h"
#include "engine/geometry/geometry.h"
#include "server/page/page_json.h"
#include "wire/convert.h"

namespace intrawarp::server {

// Values, not stored numbers: what is shown from black to white, and what fits the voxels at all.
struct ShownRange {
  double black = 0, white = 1;
  double low = 0, high = 1;
};

struct ShownLimits {
  // More bytes of 16-bit voxels become 8-bit ones.
  int64_t word_bytes = int64_t{8} << 20;
  // More voxels become fewer: every second, third, ... of each axis.
  int64_t voxels = int64_t{16} << 20;
};
// For an image that is sent once.
inline constexpr ShownLimits kReferenceLimits{int64_t{64} << 20, int64_t{32} << 20};

struct ShownImage {
  Geometry grid;
  bool is_byte = false;
  // A voxel v stands for slope * v + intercept.
  double slope = 1, intercept = 0;
  ShownRange range;
  // int16 or uint8, x fastest.
  std::shared_ptr<const std::string> voxels;

  // Linear between voxels; nullopt outside the grid's domain.
  std::optional<double> At(Vec3d point) const;
  // `role`: "fixed" or "moving".
  Json ToJson(const char* role) const;
};

// The range of an image, from at most some 60,000 of its voxels: the percentiles 1 and 99 without what is darkest.
ShownRange RangeOf(const void* pixels, PixelType type, const Rescale& rescale, const Geometry& grid);
// `pixels` are grid.voxels() of the type; values beyond the range are cut to it.
ShownImage ShowImage(const void* pixels, PixelType type, const Rescale& rescale, const Geometry& grid,
                     const ShownRange& range, const ShownLimits& limits);

struct ShownField {
  Geometry grid;
  // mm a unit.
  double scale = 0;
  // int16, 3 a node.
  std::shared_ptr<const std::string> nodes;

  // T(p); linear between nodes, which reach to the borders of the fixed image.
  Vec3d Map(Vec3d point) const;
};

// A grid over the domain's voxel centres with a node at each corner, and no more than some 2 MB of nodes.
Geometry CoarseGrid(const Geometry& domain);
// `displacements`: 3 float32 a node.
ShownField ShowField(const float* displacements, const Geometry& grid);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_SHOWN_IMAGE_H_
