// SPDX-License-Identifier: Apache-2.0
// MIND, a metric for images of different modalities: squared distances of MIND-SSC descriptors (feature/descriptor.h),
//
//   D = 1/N sum_x w(x) sum_c (m_c(T(x)) - f_c(x))^2
//
// with f_c and m_c the twelve channels of the descriptors of the fixed and of the moving image, in [0, 1]. It is the
// SSD (ssd.h) of twelve pairs of images, each interpolated and differentiated like an image; N adds up a voxel's weight
// once. The descriptors are of the images of a level, with neighbours kMindDistance voxels away, and stay as they are
// while the map changes. The channels of the moving image are in the order that suits the map which evaluations start
// near (channel_order.h), so quarter turns and reflections between the grids do not count. The descriptors of a turned
// image do not turn with the map: the least D lies where a good part of a turn in between is missing
// (docs/design/decisions.md, "MIND does not judge a rigid or affine map"). CUDA takes all channels in one pass
// (mind_ffd.cuh), the CPU one after the other (mind_channels.h).
//
// M. P. Heinrich et al., "Towards realtime multimodal fusion for image-guided interventions using self-similarities",
// MICCAI 2013.
#ifndef INTRAWARP_ENGINE_METRIC_MIND_H_
#define INTRAWARP_ENGINE_METRIC_MIND_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/feature/channel_order.h"
#include "engine/feature/descriptor.h"
#include "engine/image/volume.h"

namespace intrawarp {

inline constexpr int kMindDistance = 2;
// A channel of a descriptor is in so many steps from 0 to 1.
inline constexpr float kChannelSteps = 255;

// The descriptors of an image, one a voxel, their channels in `order`. The noise that raises their floor (kFloorNoises)
// is seen where the mask is not 0; `stddev` is of the whole image. Memory that stays taken from the arena:
// MindDescriptorBytes; taken meanwhile: MindWorkspaceBytes. Stream-ordered.
absl::StatusOr<const Descriptor*> DescribeImage(const ExecContext& ctx, ConstVolumeView image, ConstMaskView mask,
                                                double stddev, const ChannelOrder& order = {});
int64_t MindDescriptorBytes(const Geometry& image);
int64_t MindWorkspaceBytes(const Geometry& image);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_MIND_H_
