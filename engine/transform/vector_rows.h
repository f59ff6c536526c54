// SPDX-License-Identifier: Apache-2.0
// The inner loops of the CPU operators on vector fields, in SIMD (Highway), for the best instruction set of the machine
// that they run on. Internal.
#ifndef INTRAWARP_ENGINE_TRANSFORM_VECTOR_ROWS_H_
#define INTRAWARP_ENGINE_TRANSFORM_VECTOR_ROWS_H_

#include <cstdint>

#include "engine/transform/vector_field_kernels.h"

namespace intrawarp::cpu {

// ComposeVoxel along row (y, z): `inner` and `out` point at its first voxel.
void ComposeRow(const float* inner, const float* outer, Int3 size, int y, int z, ComposeScales scales, float* out);

// io[i] += add[i] (add may be null) for i in [0, count); the largest |io[i]|.
float AddAndLargest(const float* add, int64_t count, float* io);
float LargestOf(const float* in, int64_t count);

}  // namespace intrawarp::cpu

#endif  // INTRAWARP_ENGINE_TRANSFORM_VECTOR_ROWS_H_
