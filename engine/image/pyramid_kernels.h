// SPDX-License-Identifier: Apache-2.0
// The two versions of the downsampling operators, and the weights that they share. Internal.
#ifndef INTRAWARP_ENGINE_IMAGE_PYRAMID_KERNELS_H_
#define INTRAWARP_ENGINE_IMAGE_PYRAMID_KERNELS_H_

#include <cstdint>

#include "engine/base/host_device.h"
#include "engine/image/pyramid.h"

namespace intrawarp {

// One axis of a box average: n in voxels on m out voxels of the same length in all. In units of 1 / m in voxels, in
// voxel i covers [i m, (i + 1) m) and out voxel j covers [j n, (j + 1) n); with axes of at most kMaxAxis all of it fits
// an int.
struct BoxAxis {
  int n, m;

  INTRAWARP_HD int first(int j) const { return j * n / m; }
  INTRAWARP_HD int last(int j) const { return ((j + 1) * n - 1) / m; }
  // The length that voxels i and j share; adds up to n over the i of one j.
  INTRAWARP_HD int overlap(int i, int j) const {
    const int begin_i = i * m, begin_j = j * n, end_i = begin_i + m, end_j = begin_j + n;
    return (end_i < end_j ? end_i : end_j) - (begin_i > begin_j ? begin_i : begin_j);
  }
  bool halved() const { return n == 2 * m; }
  bool kept() const { return n == m; }
};

struct Boxes {
  BoxAxis x, y, z;

  Boxes(Int3 in, Int3 out) : x{in.x, out.x}, y{in.y, out.y}, z{in.z, out.z} {}
  // Every axis is halved exactly or left alone: a mean of whole voxels.
  bool whole() const { return (x.halved() || x.kept()) && (y.halved() || y.kept()) && (z.halved() || z.kept()); }
  // The sum of the weights of a box.
  INTRAWARP_HD int64_t total() const { return int64_t{x.n} * y.n * z.n; }
};

// Sums over a box of a mask: the part of box.total() that counts, and the integral of the bytes over it.
struct MaskSums {
  int64_t counted = 0;
  int64_t bytes = 0;

  // The byte of a box that counts when at least half of it does: 1, or the rounded mean of weights.
  INTRAWARP_HD uint8_t ByteOf(const Boxes& box, bool has_weights) const {
    if (2 * counted < box.total()) return 0;
    return has_weights ? static_cast<uint8_t>((2 * bytes + counted) / (2 * counted)) : 1;
  }
};

inline bool HasWeights(ConstMaskView mask) { return mask.weight_per_unit != 1; }

INTRAWARP_DECLARE_ON_DEVICES(absl::Status Downsample(const ExecContext& ctx, ConstVolumeView in, VolumeView out);
                             absl::Status DownsampleMask(const ExecContext& ctx, ConstMaskView in, MaskView out);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_PYRAMID_KERNELS_H_
