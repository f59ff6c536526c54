// SPDX-License-Identifier: Apache-2.0
// Gaussian smoothing of a volume: separable, normalised, sampled kernel.
#ifndef INTRAWARP_ENGINE_IMAGE_SMOOTH_H_
#define INTRAWARP_ENGINE_IMAGE_SMOOTH_H_

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"

namespace intrawarp {

// Standard deviations in voxels along x, y, z; 0 leaves an axis alone. The kernel is cut at ceil(3 sigma) and
// normalised to sum 1; at the faces, where part of it falls outside, it is normalised over the rest. INVALID_ARGUMENT
// unless sigmas are finite and in [0, 64]. out.geometry equals volume.geometry; out.data may be volume.data.
// Stream-ordered.
absl::Status SmoothGaussian(const ExecContext& ctx, ConstVolumeView volume, Vec3d sigma, VolumeView out);
size_t SmoothGaussianWorkspaceBytes(const Geometry& geometry);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_SMOOTH_H_
