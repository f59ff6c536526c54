// SPDX-License-Identifier: Apache-2.0
// MIND-SSC: a local descriptor of an image that is the same in every modality (Heinrich et al. 2013, "Towards realtime
// multimodal fusion for image-guided interventions using self-similarities", eq. 2 to 4).
//
// The six neighbours n of voxel x at `distance` voxels are paired, opposite ones excepted, which gives 12 channels.
// Channel (a, b) measures S_ab = the mean of (I(y + n_a) - I(y + n_b))^2 over the 3 x 3 x 3 voxels y around x; with
// m_ab = S_ab - min S and the variation v = mean of m, its value is exp(-m_ab / max(v, floor)), here in steps of 1/255.
// The floor takes noise out of places without structure: their channels are all near 1.
//
// A neighbour outside the image is the nearest voxel inside, on each axis. S_ab is the mean of
// q(y) = (I(y) - I(y + n_b - n_a))^2 around x + n_a, so that 6 mean volumes serve 12 channels; at a face this clamps
// x + n_a before it clamps y.
#ifndef INTRAWARP_ENGINE_FEATURE_DESCRIPTOR_H_
#define INTRAWARP_ENGINE_FEATURE_DESCRIPTOR_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"

namespace intrawarp {

inline constexpr int kDescriptorChannels = 12;

struct alignas(16) Descriptor {
  uint8_t channel[kDescriptorChannels];
  // v, in squared intensities.
  float variation;
};

// The noise of an image shows where it has no structure: there v is about the mean of what noise alone makes it. It is
// estimated as the kNoiseQuantile quantile of v over the valid voxels, 0 without any; an image with structure nearly
// everywhere is taken for a noisier one than it is.
inline constexpr double kNoiseQuantile = 0.1;
// The floor is so many times the noise, unless `floor` is more.
inline constexpr float kFloorNoises = 4;

// The least floor for an image of this standard deviation, above 0: a thousandth of its variance.
float DescriptorFloor(double stddev);

// One descriptor a voxel, and the noise in squared intensities at `noise`, in device memory. `floor`, in squared
// intensities, is above 0. Byte i of `valid` is not 0 where voxel i counts for the noise. Voxels are finite.
// Stream-ordered. CPU and CUDA agree to one step of a channel and to float32 rounding of variation and noise.
absl::Status ComputeDescriptors(const ExecContext& ctx, ConstVolumeView image, const uint8_t* valid, int distance,
                                float floor, Descriptor* out, float* noise);
size_t DescriptorWorkspaceBytes(const Geometry& geometry);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_FEATURE_DESCRIPTOR_H_
