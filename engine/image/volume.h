// SPDX-License-Identifier: Apache-2.0
// Views of voxels in device memory, together with the grid they lie on. Dense, x fastest. Non-owning values.
#ifndef INTRAWARP_ENGINE_IMAGE_VOLUME_H_
#define INTRAWARP_ENGINE_IMAGE_VOLUME_H_

#include <cstdint>

#include "engine/base/host_device.h"
#include "engine/geometry/geometry.h"

namespace intrawarp {

// One float32 per voxel.
struct ConstVolumeView {
  const float* data = nullptr;
  Geometry geometry;
};
struct VolumeView {
  float* data = nullptr;
  Geometry geometry;
  operator ConstVolumeView() const { return {data, geometry}; }
};

// A byte of a mask as a weight from 0 to 1: 1 for every byte but 0 of a mask whose voxels count or do not, and
// byte / 255 with `weight_per_unit` = kWeightPerUnit.
inline constexpr float kWeightPerUnit = 1.0f / 255;
INTRAWARP_HD inline float MaskWeight(uint8_t byte, float weight_per_unit) {
  const float weight = byte * weight_per_unit;
  return weight < 1 ? weight : 1.0f;
}

// One byte per voxel; a voxel counts where it is not 0, by its weight (MaskWeight). A view without data means that
// every voxel counts fully.
struct ConstMaskView {
  const uint8_t* data = nullptr;
  Geometry geometry;
  float weight_per_unit = 1;
};
struct MaskView {
  uint8_t* data = nullptr;
  Geometry geometry;
  float weight_per_unit = 1;
  operator ConstMaskView() const { return {data, geometry, weight_per_unit}; }
};

// Three float32 per voxel, x y z interleaved: a displacement T(p) - p in LPS millimetres at each voxel centre p.
struct ConstFieldView {
  const float* data = nullptr;
  Geometry geometry;
};
struct FieldView {
  float* data = nullptr;
  Geometry geometry;
  operator ConstFieldView() const { return {data, geometry}; }
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_VOLUME_H_
