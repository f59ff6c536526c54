// SPDX-License-Identifier: Apache-2.0
// Checks and sizes that the operators on stored images (lncc.h, ngf.h) share. Internal.
#ifndef INTRAWARP_ENGINE_METRIC_STORED_IMAGES_H_
#define INTRAWARP_ENGINE_METRIC_STORED_IMAGES_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/image/volume.h"

namespace intrawarp {

inline int64_t Voxels(Int3 n) { return int64_t{n.x} * n.y * n.z; }

inline absl::Status ValidateImageSize(Int3 size) {
  for (int a = 0; a < 3; ++a) {
    if (size[a] < 1 || size[a] > kMaxAxis) {
      return absl::InvalidArgumentError(absl::StrCat("size: ", size[a], " is not in [1, ", kMaxAxis, "]"));
    }
  }
  return absl::OkStatus();
}

// INVALID_ARGUMENT unless v is finite and at least 0.
inline absl::Status ValidateNonNegative(const char* name, double v) {
  if (v >= 0 && std::isfinite(v)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", v, " is negative or not finite"));
}

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_STORED_IMAGES_H_
