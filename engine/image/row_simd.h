// SPDX-License-Identifier: Apache-2.0
// The inner loops of the CPU operators that are written in SIMD (Highway), for the best instruction set of the machine
// that they run on. Where one adds up, the order depends on that instruction set and on the length of the row.
// Internal.
#ifndef INTRAWARP_ENGINE_IMAGE_ROW_SIMD_H_
#define INTRAWARP_ENGINE_IMAGE_ROW_SIMD_H_

#include <cstddef>
#include <cstdint>

#include "engine/image/warp_kernels.h"

namespace intrawarp::cpu {

// out[x] = scale * sum of weights[k] * in[x + k * stride] over k in [low, high], for x in [0, count). `weights` points
// at the weight of k = 0.
void WeightedRows(const float* in, int64_t stride, const float* weights, int low, int high, float scale, int64_t count,
                  float* out);

// A run's range, and the sums of the differences from `shift` and of their squares. NaN shows in the sums.
struct RangeAndSums {
  float minimum, maximum;
  double sum, squares;
};
RangeAndSums SumRun(const float* in, int64_t count, double shift);

// The mass of a row (see MassOf), and the sum of mass times x.
struct RowMass {
  double mass, moment;
};
RowMass SumRowMass(const float* in, int count, double background, double threshold);

// The sum of InteriorMagnitude over `count` neighbouring voxels.
double SumRowMagnitudes(const float* in, int count, const size_t (&stride)[3], const AffineMapF& to_physical);

// Linear samples of a row: out[x] = moving at index(x) + displacement_map.Linear(u(x)), or the fill. `displacement` is
// that of the row's first voxel, or null. The moving image has less than 2^31 voxels.
void WarpLinearRow(const WarpTask& task, const IndexRow& index, const float* displacement, int count, float* out);

// The same with cubic samples, of a moving image of any size.
void WarpCubicRow(const WarpTask& task, const IndexRow& index, const float* displacement, int count, float* out);

}  // namespace intrawarp::cpu

#endif  // INTRAWARP_ENGINE_IMAGE_ROW_SIMD_H_
