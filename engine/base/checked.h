// SPDX-License-Identifier: Apache-2.0
// Arithmetic on sizes that came from outside: overflow is a status, not a wrap.
#ifndef INTRAWARP_ENGINE_BASE_CHECKED_H_
#define INTRAWARP_ENGINE_BASE_CHECKED_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace intrawarp {

// a * b, or OUT_OF_RANGE when the product does not fit.
inline absl::StatusOr<int64_t> CheckedMultiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return absl::OutOfRangeError("size overflows 64 bits");
  return product;
}

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_BASE_CHECKED_H_
