// SPDX-License-Identifier: Apache-2.0
// Normalised gradient fields, a metric for images of different modalities whose edges correspond, as an operator on
// stored images.
//
//   D = 1/W sum w (|v|^2 - <u, v>^2),   u = g(m) / |g(m)|_eta,   v = g(f) / |g(f)|_eta,   W = sum w |v|^2
//
// with w the sample's weight (soft_mask.h), g the central differences per mm on the fixed grid, and |.|_eta =
// sqrt(|.|^2 + eta^2) (Haber and Modersitzki 2006; Tramnitzke 2014, eq. 10). A sample needs all neighbours of the
// differences to be samples, on all axes longer than one voxel.
//
// Those sources sum 1 - <u, v>^2 over a fixed domain. The sum over |v|^2 - <u, v>^2 differs from theirs by a constant
// and has the same gradient. Normalised by the overlap it does not fall when flat surroundings leave the overlap: there
// 1 - <u, v>^2 is 1, above any mean, which would pull the map towards a smaller overlap.
//
// E. Haber and J. Modersitzki, "Intensity gradient based registration and fusion of multi-modal images", MICCAI 2006.
// F. Tramnitzke, "GPU Based Affine Linear Image Registration", Master's thesis, Universitaet zu Luebeck, 2014.
#ifndef INTRAWARP_ENGINE_METRIC_NGF_H_
#define INTRAWARP_ENGINE_METRIC_NGF_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"
#include "engine/metric/metric.h"

namespace intrawarp {

// The fixed image f and the warped moving image m on the same grid, in device memory. m is NaN where a voxel is no
// sample (it has no source, or is masked); f is finite.
struct NgfTask {
  const float* fixed = nullptr;
  const float* warped = nullptr;
  Int3 size;
  // In mm.
  Vec3d spacing;
  // eta of each image, intensity per mm.
  double fixed_edge = 0, moving_edge = 0;
  // The weight of each voxel, from 0 to 1 and above 0 for samples; null: 1 for all.
  const float* weights = nullptr;
};

// Writes D to *value, and dD/dm(i) for every voxel i to `voxel_gradient`, 0 where m(i) has no influence; both in device
// memory. `voxel_gradient` may be null: only the value. D is NaN without a sample, or where all samples together have
// no fixed gradient (W is 0); MetricValue::samples counts those whose neighbours are samples, too. Stream-ordered;
// fixed order of summation. `skip` as in FfdEvaluator. INVALID_ARGUMENT for a size that no image has, and for
// parameters out of range, by name. Workspace: NgfWorkspaceBytes.
absl::Status EvaluateNgf(const ExecContext& ctx, const NgfTask& task, const int* skip, float* voxel_gradient,
                         MetricValue* value);
int64_t NgfWorkspaceBytes(Int3 size);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_NGF_H_
