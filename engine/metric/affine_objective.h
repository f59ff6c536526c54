// SPDX-License-Identifier: Apache-2.0
// The registration objective of an affine map, with its gradient and Gauss-Newton Hessian. Derivatives are explicit and
// matrix-free (Tramnitzke 2014, chapter 2; ssd.h gives the full reference). SSD and NGF take one pass over the fixed
// image and store nothing per voxel; NMI takes one pass for the joint histogram and one for the sums; LNCC stores the
// warped image, and the derivative by each of its voxels.
//
// The map is given in index space: the moving index of the fixed voxel i is W (q, 1), where q = (i - centre) / radius
// with centre = (n - 1) / 2 and radius = max(n - 1, 1) / 2 per axis, so q lies in [-1, 1] and an entry of W is a
// displacement in moving voxels. W is 3 x 4, and its derivative is ordered row by row: W00 W01 W02 W03 W10 ... W23.
//
//   SSD  D = 1/N sum 1/2 (T - R)^2                   (ssd.h)
//   NGF  D = 1/N sum |v|^2 - <u, v>^2                 (ngf.h)
//   NMI  D = 2 - (H(R) + H(T)) / H(R, T)              (nmi.h)
//   LNCC D = 1 - 1/N sum n cc over boxes of n samples (lncc.h)
//
// with T the moving image at the mapped voxel, R the fixed image, u and v the normalised gradients of T and R, and N
// the weight of the samples that count: each weighs |v|^2 for NGF, and 1 for the others. A sample counts when its fixed
// voxel is in the mask and every point it needs (for NGF the neighbours of the central differences, too) lies inside
// both images and the moving mask.
//
// Where a mask has weights (ConstMaskView), the term of a sample and what it adds to N are multiplied by w, the weight
// of its fixed voxel times the weight of the moving voxel nearest to the mapped one: D = 1/N sum w ..., and NMI's joint
// histogram counts w. LNCC weighs by w in its windows, too (lncc.h), and its N stays the number of samples, by which
// its mean is multiplied.
//
// NGF's Hessian is 2 sum <u, v>^2 J^T J with J = n(R) x du/dW and n(R) the direction of g(R). This is the Gauss-Newton
// matrix of the equal sum of squares |u x v|^2 (up to terms of eta) where u and v are in line, and less where they are
// not, as the true Hessian is. Tramnitzke's eq. 31, the product of the derivative of r = <u, v> with itself, vanishes
// as the images come into line: there r is at its maximum, so steps would become too long just where they should be
// exact.
//
// NMI and LNCC give the derivative r(i) of D by the moving value of sample i, and a curvature h(i) in it that is never
// negative; both headers derive theirs. The gradient is the sum of r dT/dW, which is that of D without the change of N,
// and the Hessian the sum of h (dT/dW)^T (dT/dW). Where D is 1 the images say nothing of each other (one of them is
// constant there), and the samples weigh nothing.
#ifndef INTRAWARP_ENGINE_METRIC_AFFINE_OBJECTIVE_H_
#define INTRAWARP_ENGINE_METRIC_AFFINE_OBJECTIVE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"
#include "engine/metric/metric.h"

namespace intrawarp {

inline constexpr int kAffineParameters = 12;
inline constexpr int kAffineHessianEntries = kAffineParameters * (kAffineParameters + 1) / 2;  // 78

// The place of entry (row, column) in NormalEquations::hessian, row <= column.
INTRAWARP_HD constexpr int HessianEntry(int row, int column) {
  return row * kAffineParameters - row * (row - 1) / 2 + (column - row);
}

// Sums over the samples that count, not yet divided by N, which is `weight` (for NMI and LNCC N times D and its
// derivatives). `hessian` is the upper triangle, row by row (HessianEntry).
struct NormalEquations {
  double value = 0;
  double weight = 0;
  // The number of samples that count, whatever their weights.
  double samples = 0;
  double gradient[kAffineParameters] = {};
  double hessian[kAffineHessianEntries] = {};
};

// The images, masks and parameters of one level.
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
  // NMI and LNCC: of the whole images at the finest level.
  float fixed_minimum = 0, fixed_maximum = 1, moving_minimum = 0, moving_maximum = 1;
  double fixed_stddev = 1, moving_stddev = 1;
  // NMI: bins of each image, in [4, kNmiBins]; NmiBinsFor gives as many as the samples can fill.
  int nmi_bins = 64;
  // In voxels of the fixed image.
  double lncc_sigma = 2.5;
};

// q as a function of the fixed index, and back.
AffineMap IndexToNormalized(const Geometry& fixed);
AffineMap NormalizedToIndex(const Geometry& fixed);

// The sums at each W of `maps` into the same place of `sums`, on the context's device; waits for the stream. A map's
// sums are the same bits whatever the other maps are. On CUDA, SSD and NGF evaluate the maps side by side.
// INVALID_ARGUMENT when there are more than kMaxAffineMaps, a mask is not as large as its image, or a parameter is out
// of range. Workspace: AffineObjectiveWorkspaceBytes.
absl::Status EvaluateAffineObjectives(const ExecContext& ctx, const AffineObjective& objective,
                                      absl::Span<const AffineMap> maps, NormalEquations* sums);
inline constexpr int kMaxAffineMaps = 64;

// The same at one W.
absl::Status EvaluateAffineObjective(const ExecContext& ctx, const AffineObjective& objective, const AffineMap& w,
                                     NormalEquations* sums);

// Device memory that one call takes from the arena, for fixed images of at most `fixed` voxels.
int64_t AffineObjectiveWorkspaceBytes(MetricKind metric, Int3 fixed);
// The part of it that every metric takes.
inline constexpr int64_t kAffineSumsBytes = int64_t{2} << 20;

// The CPU is bit-identical for any number of cores.
INTRAWARP_DECLARE_ON_DEVICES(absl::Status EvaluateAffineObjectives(const ExecContext& ctx,
                                                                   const AffineObjective& objective,
                                                                   absl::Span<const AffineMap> maps,
                                                                   NormalEquations* sums);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_AFFINE_OBJECTIVE_H_
