// SPDX-License-Identifier: Apache-2.0
// The CPU and CUDA versions of the operators of encode.h. Internal to this room.
#ifndef INTRAWARP_ENGINE_TRANSFORM_ENCODE_KERNELS_H_
#define INTRAWARP_ENGINE_TRANSFORM_ENCODE_KERNELS_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/transform/encode.h"

namespace intrawarp {

INTRAWARP_HD inline int16_t ToInt16(float value, float units_per_mm) {
  const float units = rintf(value * units_per_mm);
  return static_cast<int16_t>(fminf(fmaxf(units, -32767.0f), 32767.0f));
}

// *largest (device memory) = max |values[i]|, count > 0.
INTRAWARP_DECLARE_ON_DEVICES(absl::Status LargestMagnitude(const ExecContext& ctx, const float* values, int64_t count,
                                                           float* largest);
                             absl::Status EncodeComponents(const ExecContext& ctx, const float* values, int64_t count,
                                                           const ComponentEncoding& encoding, void* out);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_ENCODE_KERNELS_H_
