// SPDX-License-Identifier: Apache-2.0
// Image gradients by central differences.
#ifndef INTRAWARP_ENGINE_IMAGE_GRADIENT_H_
#define INTRAWARP_ENGINE_IMAGE_GRADIENT_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"

namespace intrawarp {

// Gradient in LPS, intensity per millimetre: central differences along each index axis (one-sided at the faces, 0 along
// an axis of one voxel), turned into physical directions. out.geometry equals volume.geometry. Stream-ordered.
absl::Status Gradient(const ExecContext& ctx, ConstVolumeView volume, FieldView out);

// The mean of the gradient's magnitude (intensity per mm) over the voxels that have two neighbours on every axis longer
// than one voxel (0 when there are none); fixed-order reduction in float64. Waits for the stream.
absl::StatusOr<double> MeanGradientMagnitude(const ExecContext& ctx, ConstVolumeView volume);
size_t MeanGradientWorkspaceBytes(const Geometry& geometry);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_GRADIENT_H_
