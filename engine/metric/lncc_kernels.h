// SPDX-License-Identifier: Apache-2.0
// The formula and the parts that the CPU and the CUDA version of EvaluateLncc (lncc.h) share. Internal.
//
// With P[q](I) the sum of w q over the samples of box I, w a sample's weight, G the window over boxes (a product over
// the axes, zero outside the image), local sums S[q](J) = sum_I G(I - J) P[q](I), and W = S[1], the local moments at
// the box J are
//   f_J = S[f] / W,  m_J = S[m] / W,  ff = S[f f] / W - f_J^2,  mm, fm likewise,  cc_J = fm^2 / (ff mm).
// The derivative of n_J cc_J in m(i), i in the box I, is w(i) G(I - J) (A_J f(i) + B_J m(i) + C_J) with
//   A = 2 n_J fm / (ff mm W),  B = -A fm / mm,  C = -A f_J - B m_J,
// (all 0 where the window is flat), so that the gradient by a voxel is
//   r(i) = -1/N w(i) (f(i) T[A](I) + m(i) T[B](I) + T[C](I)),  T[A](I) = sum_J G(I - J) A_J,
// and the curvature h(i) = -1/N w(i) T[B](I).
// Five passes: the six sums of boxes; x and y of their windows; z of these, which gives A, B, C; x and y of the windows
// of A, B, C; z of these, with r of the voxels.
//
// Moments don't change when a constant is subtracted from the images, but their float32 sums do. The image is cut into
// tiles of boxes as deep as the z pass's run, whose sums are relative to their own mean intensities; the z pass takes
// the sums of the tiles above and below over to its own (ChangeShift). C, and f and m of the last pass, are relative to
// one mean.
#ifndef INTRAWARP_ENGINE_METRIC_LNCC_KERNELS_H_
#define INTRAWARP_ENGINE_METRIC_LNCC_KERNELS_H_

#include <cmath>
#include <cstdint>

#include "engine/base/host_device.h"
#include "engine/metric/lncc.h"
#include "engine/metric/stored_images.h"

namespace intrawarp {

// The standard deviation of the window over boxes: a box of two voxels has a variance of a quarter.
inline double LnccBoxSigma(double sigma) { return 0.5 * std::sqrt(sigma * sigma - 0.25); }
inline constexpr int kMaxLnccRadius = 8;  // ceil(3 LnccBoxSigma(kMaxLnccSigma))
// A variance below this part of its mean square is lost in float32's rounding, and counts as flat.
inline constexpr float kLnccResolution = 2e-6f;
inline constexpr int kLnccChannels = 6;  // 1, f, m, ff, mm, fm

// Boxes of an image.
INTRAWARP_HD constexpr Int3 LnccBoxes(Int3 size) { return {(size.x + 1) / 2, (size.y + 1) / 2, (size.z + 1) / 2}; }

// weights[k]: at a distance of k boxes; zeros beyond the radius.
struct LnccWindow {
  int radius = 0;
  float weights[kMaxLnccRadius + 1] = {};
};
LnccWindow MakeLnccWindow(double sigma);  // sigma of voxels

// Tiles of `tile` boxes. `shift` holds two float32 a tile: the mean of f and of m over the tile's samples, roughly.
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

// A tile's shift is the mean over every kLnccRowStep-th row of voxels of every kLnccPlaneStep-th plane.
inline constexpr int kLnccRowStep = 8;
inline constexpr int kLnccPlaneStep = 4;

INTRAWARP_DECLARE_ON_DEVICES(absl::Status EvaluateLncc(const ExecContext& ctx, const LnccTask& task, const int* skip,
                                                       float* voxel_gradient, MetricValue* value);
                             int64_t LnccWorkspaceBytes(Int3 size);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_LNCC_KERNELS_H_
