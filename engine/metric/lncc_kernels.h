// SPDX-License-Identifier: Apache-2.0
// The formula and the parts that the CPU and the CUDA version of EvaluateLncc (lncc.h) share. Internal.
//
// With G the window (a product over the axes, zero outside the image and at voxels that are not samples), local
// sums S[q](j) = sum_i G(i - j) q(i), and W = S[1], the local moments at the sample j are
//   f_j = S[f] / W,  m_j = S[m] / W,  ff = S[f f] / W - f_j^2,  mm, fm likewise,  cc_j = fm^2 / (ff mm).
// The derivative of cc_j in m(i) is G(i - j) (A_j f(i) + B_j m(i) + C_j) with
//   A = 2 fm / (ff mm W),  B = -A fm / mm,  C = -A f_j - B m_j,
// (all 0 where the window is flat), so that the gradient by a voxel is
//   r(i) = -1/N (f(i) S[A](i) + m(i) S[B](i) + S[C](i)),
// and the curvature h(i) = -1/N S[B](i).
// Four passes: x and y of the six sums; z of the six, which gives A, B, C; x and y of these; z of these.
//
// Moments don't change when a constant is subtracted from the images, but their float32 sums do. The image is cut into
// tiles as deep as the z pass's run, whose sums are relative to their own mean intensities; the z pass takes those of
// the tiles above and below over to its own (ChangeShift). C, and f and m of the last pass, are relative to one mean.
#ifndef INTRAWARP_ENGINE_METRIC_LNCC_KERNELS_H_
#define INTRAWARP_ENGINE_METRIC_LNCC_KERNELS_H_

#include <cstdint>

#include "engine/base/host_device.h"
#include "engine/metric/lncc.h"
#include "engine/metric/stored_images.h"

namespace intrawarp {

inline constexpr int kMaxLnccRadius = 16;  // ceil(3 kMaxLnccSigma)
// A variance below this part of its mean square is lost in float32's rounding, and counts as flat.
inline constexpr float kLnccResolution = 2e-6f;
inline constexpr int kLnccChannels = 6;  // 1, f, m, ff, mm, fm

// weights[k]: at a distance of k voxels; zeros beyond the radius.
struct LnccWindow {
  int radius = 0;
  float weights[kMaxLnccRadius + 1] = {};
};
LnccWindow MakeLnccWindow(double sigma);

// Tiles of `tile` voxels. `shift` holds two float32 a tile: the mean of f and of m over the tile's samples, roughly.
struct LnccTiles {
  Int3 size, tile, count;
  INTRAWARP_HD int64_t Index(int x, int y, int z) const { return (int64_t{z} * count.y + y) * count.x + x; }
  INTRAWARP_HD int64_t total() const { return int64_t{count.x} * count.y * count.z; }
};
inline LnccTiles MakeLnccTiles(Int3 size, Int3 tile) {
  LnccTiles t{size, tile, {}};
  for (int a = 0; a < 3; ++a) t.count[a] = (size[a] + t.tile[a] - 1) / t.tile[a];
  return t;
}

// A tile's shift is the mean over every kLnccRowStep-th row of every kLnccPlaneStep-th plane.
inline constexpr int kLnccRowStep = 8;
inline constexpr int kLnccPlaneStep = 4;

INTRAWARP_DECLARE_ON_DEVICES(absl::Status EvaluateLncc(const ExecContext& ctx, const LnccTask& task, const int* skip,
                                                       float* voxel_gradient, MetricValue* value);
                             int64_t LnccWorkspaceBytes(Int3 size);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_LNCC_KERNELS_H_
