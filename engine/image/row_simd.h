// SPDX-License-Identifier: Apache-2.0
// The inner loops of the CPU operators that are written in SIMD (Highway), for the best instruction set of the machine
// that they run on. Internal.
#ifndef INTRAWARP_ENGINE_IMAGE_ROW_SIMD_H_
#define INTRAWARP_ENGINE_IMAGE_ROW_SIMD_H_

#include <cstddef>
#include <cstdint>

namespace intrawarp::cpu {

// out[x] = scale * sum of weights[k] * in[x + k * stride] over k in [low, high], for x in [0, count). `weights` points
// at the weight of k = 0.
void WeightedRows(const float* in, int64_t stride, const float* weights, int low, int high, float scale, int64_t count,
                  float* out);

}  // namespace intrawarp::cpu

#endif  // INTRAWARP_ENGINE_IMAGE_ROW_SIMD_H_
