// SPDX-License-Identifier: Apache-2.0
// The formula and the parts that the CPU and the CUDA version of EvaluateNgf (ngf.h) share with each other and with the
// affine objective's NGF (ngf_affine.cuh). Internal.
//
// With c_a(j) = -2 w(j) <u,v> (v_a - <u,v> u_a) / |g|_eta, the derivative of the value at j in the difference along
// axis a,
//   r(i) = 1/W sum_a (c_a(i - e_a) - c_a(i + e_a)) / (2 h_a).
// One pass finds it but for 1/W, which a second one multiplies by.
#ifndef INTRAWARP_ENGINE_METRIC_NGF_KERNELS_H_
#define INTRAWARP_ENGINE_METRIC_NGF_KERNELS_H_

#include <cstdint>

#include "engine/base/host_device.h"
#include "engine/metric/ngf.h"
#include "engine/metric/stored_images.h"

namespace intrawarp {

// NGF needs both neighbours on axes longer than one voxel.
INTRAWARP_HD constexpr bool HasNeighbors(int i, int n) { return n == 1 ? i == 0 : i >= 1 && i < n - 1; }

// Below this a squared gradient is nothing.
inline constexpr float kNgfTiny = 1e-30f;

struct NgfScales {
  // 1 / (2 spacing); 0 for an axis of one voxel.
  Vec3f half_inverse;
  float fixed_eta2, moving_eta2;
};
NgfScales MakeNgfScales(const NgfTask& task);

INTRAWARP_DECLARE_ON_DEVICES(absl::Status EvaluateNgf(const ExecContext& ctx, const NgfTask& task, const int* skip,
                                                      float* voxel_gradient, MetricValue* value);
                             int64_t NgfWorkspaceBytes(Int3 size);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_NGF_KERNELS_H_
