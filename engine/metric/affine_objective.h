// SPDX-License-Identifier: Apache-2.0
// The registration objective of an affine map, with its gradient and Gauss-Newton Hessian, in one pass over the fixed
// image (seed 003, chapter 2): explicit and matrix-free, nothing stored per voxel.
//
// The map is given in index space: the moving index of the fixed voxel i is W (q, 1), where q = (i - centre) / radius
// with centre = (n - 1) / 2 and radius = max(n - 1, 1) / 2 per axis, so q lies in [-1, 1] and an entry of W is a
// displacement in moving voxels. W is 3 x 4, and its derivative is ordered row by row: W00 W01 W02 W03 W10 ... W23.
//
//   SSD  D = 1/N sum 1/2 (T - R)^2                                  (eq. 7)
//   NGF  D = 1/N sum |v|^2 - <u, v>^2,  u = g(T) / |g(T)|_eta,  v = g(R) / |g(R)|_eta      (eq. 10, see below)
//
// with T the moving image at the mapped voxel, R the fixed image, g central differences on the fixed grid,
// |.|_eta = sqrt(|.|^2 + eta^2), and N the weight of the samples that count: each weighs 1 for SSD, |v|^2 for NGF. A
// sample counts when its fixed voxel is in the mask and every point it needs (for NGF those of the central differences,
// too, on all axes longer than one voxel) lies inside both images and moving mask.
//
// The seed's NGF sums 1 - <u, v>^2 over a fixed domain. The sum over |v|^2 - <u, v>^2 differs from it by what does not
// depend on W, and has the same gradient; but normalised by the overlap it does not fall when flat surroundings (where
// the seed's term is 1, above any mean) leave the overlap, which would pull the map towards just that.
//
// The Hessian of NGF is not the seed's (eq. 31, the product of the derivative of r = <u, v> with itself), which
// vanishes as the images come into line (there r is at its maximum), so that steps become too long just where they
// should be exact. It is 2 sum <u, v>^2 J^T J with J = n(R) x du/dW, n(R) the direction of g(R): the Gauss-Newton
// matrix of the equal sum of squares |u x v|^2 (up to terms of eta) where u and v are in line, and less where they are
// not, as the true one is.
#ifndef INTRAWARP_ENGINE_METRIC_AFFINE_OBJECTIVE_H_
#define INTRAWARP_ENGINE_METRIC_AFFINE_OBJECTIVE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"
#include "engine/metric/metric_kind.h"

namespace intrawarp {

inline constexpr int kAffineParameters = 12;
inline constexpr int kAffineHessianEntries = kAffineParameters * (kAffineParameters + 1) / 2;  // 78

// Where NormalEquations::hessian holds entry (row, column), row <= column.
INTRAWARP_HD constexpr int HessianEntry(int row, int column) {
  return row * kAffineParameters - row * (row - 1) / 2 + (column - row);
}

// Sums over the samples that count, not yet divided by N, which is `weight`. `hessian` is the upper triangle, row by
// row (HessianEntry).
struct NormalEquations {
  double value = 0;
  double weight = 0;
  // How many samples count.
  double samples = 0;
  double gradient[kAffineParameters] = {};
  double hessian[kAffineHessianEntries] = {};
};

// What is registered, at one level.
struct AffineObjective {
  MetricKind metric = MetricKind::kSsd;
  ConstVolumeView fixed;
  ConstVolumeView moving;
  ConstMaskView fixed_mask;
  ConstMaskView moving_mask;
  // NGF: eta of each image, intensity per mm.
  double fixed_edge = 0;
  double moving_edge = 0;
  // SSD: intensities are multiplied by this, so that values do not depend on their unit.
  double intensity_scale = 1;
};

// q as a function of the fixed index, and back.
AffineMap IndexToNormalized(const Geometry& fixed);
AffineMap NormalizedToIndex(const Geometry& fixed);

// The sums at W, on the context's device; waits for the stream. INVALID_ARGUMENT when a mask is not as large as its
// image. Workspace: AffineObjectiveWorkspaceBytes.
absl::Status EvaluateAffineObjective(const ExecContext& ctx, const AffineObjective& objective, const AffineMap& w,
                                     NormalEquations* sums);

// Device memory that one evaluation takes from the arena, whatever the images' size.
constexpr int64_t AffineObjectiveWorkspaceBytes() { return int64_t{2} << 20; }

namespace cpu {
// Bit-identical for any number of cores; takes no workspace.
absl::Status EvaluateAffineObjective(const ExecContext& ctx, const AffineObjective& objective, const AffineMap& w,
                                     NormalEquations* sums);
}  // namespace cpu

namespace cuda {
absl::Status EvaluateAffineObjective(const ExecContext& ctx, const AffineObjective& objective, const AffineMap& w,
                                     NormalEquations* sums);
}  // namespace cuda

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_AFFINE_OBJECTIVE_H_
