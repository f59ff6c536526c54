// SPDX-License-Identifier: Apache-2.0
// The passes over the marks of extreme voxels, for host and device. Internal.
//
// Each pass writes only what belongs to its own voxel, and reads of others only what it does not write:
//   MarkExtremes  volume -> marks (kOrdinary, kExtreme)
//   core          marks -> scratch: 1 where a whole box of extremes is centred
//   thin          scratch -> marks: kExtreme becomes kThin where no box of extremes covers it
//   kind          marks -> scratch: what the voxel is to the last pass (InpaintKind)
//   fill          scratch, seen voxels -> painted voxels
#ifndef INTRAWARP_ENGINE_IMAGE_INPAINT_KERNELS_H_
#define INTRAWARP_ENGINE_IMAGE_INPAINT_KERNELS_H_

#include <cstdint>

#include "engine/base/host_device.h"
#include "engine/image/inpaint.h"

namespace intrawarp {

enum ExtremeMark : uint8_t { kOrdinary, kExtreme, kThin };
enum InpaintKind : uint8_t { kSeen, kPainted, kThick };

struct InpaintGrid {
  Int3 n;
  // Half the width of the box, and the reach of the mean, voxels.
  Int3 radius, reach;
  Vec3d spacing;
};
InpaintGrid InpaintGridOf(const Geometry& geometry);

// Voxels around another, cut at the faces of the grid; first and last are inside.
struct VoxelBox {
  Int3 first, last;
};
INTRAWARP_HD inline int ClampedIndex(int i, int n) { return i < 0 ? 0 : i < n ? i : n - 1; }
INTRAWARP_HD inline VoxelBox BoxAround(Int3 n, Int3 at, Int3 radius) {
  return {{ClampedIndex(at.x - radius.x, n.x), ClampedIndex(at.y - radius.y, n.y), ClampedIndex(at.z - radius.z, n.z)},
          {ClampedIndex(at.x + radius.x, n.x), ClampedIndex(at.y + radius.y, n.y), ClampedIndex(at.z + radius.z, n.z)}};
}
INTRAWARP_HD inline int64_t VoxelIndex(Int3 n, int x, int y, int z) { return (int64_t{z} * n.y + y) * n.x + x; }

INTRAWARP_HD inline bool IsInBox(const uint8_t* values, Int3 n, const VoxelBox& box, uint8_t value) {
  for (int z = box.first.z; z <= box.last.z; ++z) {
    for (int y = box.first.y; y <= box.last.y; ++y) {
      for (int x = box.first.x; x <= box.last.x; ++x) {
        if (values[VoxelIndex(n, x, y, z)] == value) return true;
      }
    }
  }
  return false;
}

INTRAWARP_HD inline uint8_t MarkOf(const ExtremeLimits& limits, float v) {
  return v < limits.low || v > limits.high ? kExtreme : kOrdinary;
}

INTRAWARP_HD inline uint8_t CoreAt(const InpaintGrid& g, const uint8_t* marks, Int3 at) {
  if (marks[VoxelIndex(g.n, at.x, at.y, at.z)] == kOrdinary) return 0;
  return !IsInBox(marks, g.n, BoxAround(g.n, at, g.radius), kOrdinary);
}

// The mark of a voxel as it is and where the cores are.
INTRAWARP_HD inline uint8_t ThinOrNot(const InpaintGrid& g, uint8_t mark, const uint8_t* cores, Int3 at) {
  if (mark == kOrdinary) return kOrdinary;
  return IsInBox(cores, g.n, BoxAround(g.n, at, g.radius), 1) ? kExtreme : kThin;
}

INTRAWARP_HD inline uint8_t KindAt(const InpaintGrid& g, const uint8_t* marks, Int3 at) {
  const uint8_t own = marks[VoxelIndex(g.n, at.x, at.y, at.z)];
  if (own != kOrdinary) return own == kThin ? kPainted : kThick;
  const bool is_beside = IsInBox(marks, g.n, BoxAround(g.n, at, {1, 0, 0}), kThin) ||
                         IsInBox(marks, g.n, BoxAround(g.n, at, {0, 1, 0}), kThin) ||
                         IsInBox(marks, g.n, BoxAround(g.n, at, {0, 0, 1}), kThin);
  return is_beside ? kPainted : kSeen;
}

// The value that a painted voxel takes.
INTRAWARP_HD inline float FilledIn(const InpaintGrid& g, const uint8_t* kinds, const float* volume, Int3 at) {
  const VoxelBox box = BoxAround(g.n, at, g.reach);
  double sum = 0, weights = 0;
  for (int z = box.first.z; z <= box.last.z; ++z) {
    for (int y = box.first.y; y <= box.last.y; ++y) {
      for (int x = box.first.x; x <= box.last.x; ++x) {
        const int64_t i = VoxelIndex(g.n, x, y, z);
        if (kinds[i] != kSeen) continue;
        const double dx = (x - at.x) * g.spacing.x, dy = (y - at.y) * g.spacing.y, dz = (z - at.z) * g.spacing.z;
        const double squared = dx * dx + dy * dy + dz * dz, weight = 1 / (squared * squared);
        sum += weight * volume[i];
        weights += weight;
      }
    }
  }
  return weights > 0 ? static_cast<float>(sum / weights) : volume[VoxelIndex(g.n, at.x, at.y, at.z)];
}

INTRAWARP_DECLARE_ON_DEVICES(absl::Status MarkExtremes(const ExecContext& ctx, const ExtremeLimits& limits,
                                                       ConstVolumeView volume, uint8_t* marks);
                             absl::Status InpaintThin(const ExecContext& ctx, const InpaintGrid& grid, uint8_t* marks,
                                                      uint8_t* scratch, VolumeView volume);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_INPAINT_KERNELS_H_
