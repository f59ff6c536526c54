// SPDX-License-Identifier: Apache-2.0
// Views of voxels in device memory, together with the grid they lie on. Dense, x fastest. Non-owning values.
#ifndef INTRAWARP_ENGINE_IMAGE_VOLUME_H_
#define INTRAWARP_ENGINE_IMAGE_VOLUME_H_

#include <cstdint>

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

// One byte per voxel; a voxel counts where it is not 0. A view without data means that every voxel counts.
struct ConstMaskView {
  const uint8_t* data = nullptr;
  Geometry geometry;
};
struct MaskView {
  uint8_t* data = nullptr;
  Geometry geometry;
  operator ConstMaskView() const { return {data, geometry}; }
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
