// SPDX-License-Identifier: Apache-2.0
// MIND, a metric for images of different modalities: squared distances of MIND-SSC descriptors (feature/descriptor.h),
//
//   D = 1/N sum_x sum_c (m_c(T(x)) - f_c(x))^2
//
// with f_c and m_c the twelve channels of the descriptors of the fixed and of the moving image, in [0, 1]. It is the
// SSD (ssd.h) of twelve pairs of images, each interpolated and differentiated like an image; N counts a voxel once. The
// descriptors are of the images of a level, with neighbours kMindDistance voxels away, and stay as they are while the
// map changes.
//
// M. P. Heinrich et al., "Towards realtime multimodal fusion for image-guided interventions using self-similarities",
// MICCAI 2013.
#ifndef INTRAWARP_ENGINE_METRIC_MIND_H_
#define INTRAWARP_ENGINE_METRIC_MIND_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/feature/descriptor.h"
#include "engine/image/volume.h"

namespace intrawarp {

inline constexpr int kMindDistance = 2;

// The channels of an image as volumes on its grid, float32 in [0, 1], one behind the other. In device memory.
struct MindChannels {
  const float* data = nullptr;
  int64_t voxels = 0;

  const float* operator[](int channel) const { return data + channel * voxels; }
};

// Describes an image. The noise that raises the floor of its descriptors (kFloorNoises) is seen where the mask is not
// 0; `stddev` is of the whole image. Memory that stays taken from the arena: MindChannelBytes; taken meanwhile:
// MindWorkspaceBytes. Stream-ordered.
absl::StatusOr<MindChannels> DescribeChannels(const ExecContext& ctx, ConstVolumeView image, ConstMaskView mask,
                                              double stddev);
int64_t MindChannelBytes(const Geometry& image);
int64_t MindWorkspaceBytes(const Geometry& image);

INTRAWARP_DECLARE_ON_DEVICES(absl::Status SplitDescriptors(const ExecContext& ctx, const Descriptor* descriptors,
                                                           int64_t voxels, float* channels);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_MIND_H_
