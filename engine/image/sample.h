// SPDX-License-Identifier: Apache-2.0
// Sampling a volume between its voxels, for host and device; the one definition that every operator composes.
//
// An index is inside when it lies in the grid's domain, [-0.5, n - 0.5] on each axis. Between the outermost voxel
// centres and the domain's edge the value is that of the edge (the index is clamped), and the derivative across the
// edge is 0.
#ifndef INTRAWARP_ENGINE_IMAGE_SAMPLE_H_
#define INTRAWARP_ENGINE_IMAGE_SAMPLE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "engine/base/host_device.h"
#include "engine/geometry/vec.h"
#include "engine/image/bspline.h"

namespace intrawarp {

INTRAWARP_HD inline bool IsInside(Int3 size, Vec3f index) {
  // Written so that NaN is outside.
  return index.x >= -0.5f && index.x <= size.x - 0.5f && index.y >= -0.5f && index.y <= size.y - 0.5f &&
         index.z >= -0.5f && index.z <= size.z - 0.5f;
}

// One axis of a linear interpolation: the two voxels and the weight of the second.
struct LinearAxis {
  int lower, upper;
  float weight;
  // False where the index was clamped, so that the derivative is 0.
  bool interior;
};

INTRAWARP_HD inline LinearAxis MakeLinearAxis(float index, int n) {
  const float clamped = fminf(fmaxf(index, 0.0f), static_cast<float>(n - 1));
  const int lower = static_cast<int>(clamped) < n - 1 ? static_cast<int>(clamped) : (n > 1 ? n - 2 : 0);
  return {lower, n > 1 ? lower + 1 : lower, clamped - static_cast<float>(lower), clamped == index && n > 1};
}

// Trilinear value at an index inside the domain.
INTRAWARP_HD inline float SampleLinear(const float* data, Int3 size, Vec3f index) {
  const LinearAxis x = MakeLinearAxis(index.x, size.x), y = MakeLinearAxis(index.y, size.y),
                   z = MakeLinearAxis(index.z, size.z);
  const size_t row = size.x, plane = row * size.y;
  const float* r00 = data + z.lower * plane + y.lower * row;
  const float* r01 = data + z.lower * plane + y.upper * row;
  const float* r10 = data + z.upper * plane + y.lower * row;
  const float* r11 = data + z.upper * plane + y.upper * row;
  const float c00 = r00[x.lower] + x.weight * (r00[x.upper] - r00[x.lower]);
  const float c01 = r01[x.lower] + x.weight * (r01[x.upper] - r01[x.lower]);
  const float c10 = r10[x.lower] + x.weight * (r10[x.upper] - r10[x.lower]);
  const float c11 = r11[x.lower] + x.weight * (r11[x.upper] - r11[x.lower]);
  const float c0 = c00 + y.weight * (c01 - c00);
  const float c1 = c10 + y.weight * (c11 - c10);
  return c0 + z.weight * (c1 - c0);
}

// Trilinear value, and its exact derivative per index unit, at an index inside the domain.
INTRAWARP_HD inline float SampleLinearGradient(const float* data, Int3 size, Vec3f index, Vec3f* gradient) {
  const LinearAxis x = MakeLinearAxis(index.x, size.x), y = MakeLinearAxis(index.y, size.y),
                   z = MakeLinearAxis(index.z, size.z);
  const size_t row = size.x, plane = row * size.y;
  const float* r00 = data + z.lower * plane + y.lower * row;
  const float* r01 = data + z.lower * plane + y.upper * row;
  const float* r10 = data + z.upper * plane + y.lower * row;
  const float* r11 = data + z.upper * plane + y.upper * row;
  const float d00 = r00[x.upper] - r00[x.lower], d01 = r01[x.upper] - r01[x.lower];
  const float d10 = r10[x.upper] - r10[x.lower], d11 = r11[x.upper] - r11[x.lower];
  const float c00 = r00[x.lower] + x.weight * d00, c01 = r01[x.lower] + x.weight * d01;
  const float c10 = r10[x.lower] + x.weight * d10, c11 = r11[x.lower] + x.weight * d11;
  const float dx0 = d00 + y.weight * (d01 - d00), dx1 = d10 + y.weight * (d11 - d10);
  const float dy0 = c01 - c00, dy1 = c11 - c10;
  const float c0 = c00 + y.weight * dy0, c1 = c10 + y.weight * dy1;
  gradient->x = x.interior ? dx0 + z.weight * (dx1 - dx0) : 0.0f;
  gradient->y = y.interior ? dy0 + z.weight * (dy1 - dy0) : 0.0f;
  gradient->z = z.interior ? c1 - c0 : 0.0f;
  return c0 + z.weight * (c1 - c0);
}

// One axis of a cubic interpolation: the four coefficients, mirrored about the outermost voxels, and their weights.
struct CubicAxis {
  int at[4];
  float weights[4];
};

INTRAWARP_HD inline CubicAxis MakeCubicAxis(float index, int n) {
  const LinearAxis linear = MakeLinearAxis(index, n);
  CubicAxis axis;
  BsplineWeights(linear.weight, axis.weights);
  axis.at[0] = linear.lower > 0 ? linear.lower - 1 : linear.upper;
  axis.at[1] = linear.lower;
  axis.at[2] = linear.upper;
  axis.at[3] = linear.upper + 1 < n ? linear.upper + 1 : linear.lower;
  return axis;
}

// Value of the cubic B-spline with the given coefficients (bspline_filter.h) at an index inside the domain. An axis of
// one voxel is constant.
INTRAWARP_HD inline float SampleCubic(const float* coefficients, Int3 size, Vec3f index) {
  const CubicAxis x = MakeCubicAxis(index.x, size.x), y = MakeCubicAxis(index.y, size.y),
                  z = MakeCubicAxis(index.z, size.z);
  const size_t row = size.x, plane = row * size.y;
  float sum = 0;
  for (int k = 0; k < (size.z > 1 ? 4 : 1); ++k) {
    float along_y = 0;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int j = 0; j < 4; ++j) {
      const float* r = coefficients + z.at[k] * plane + y.at[j] * row;
      along_y += y.weights[j] * (x.weights[0] * r[x.at[0]] + x.weights[1] * r[x.at[1]] + x.weights[2] * r[x.at[2]] +
                                 x.weights[3] * r[x.at[3]]);
    }
    sum += size.z > 1 ? z.weights[k] * along_y : along_y;
  }
  return sum;
}

// The voxel nearest to an index inside the domain; halves round up.
INTRAWARP_HD inline size_t NearestOffset(Int3 size, Vec3f index) {
  const int x = static_cast<int>(floorf(index.x + 0.5f)), y = static_cast<int>(floorf(index.y + 0.5f)),
            z = static_cast<int>(floorf(index.z + 0.5f));
  const int cx = x < 0        ? 0
                 : x < size.x ? x
                              : size.x - 1,
            cy = y < 0        ? 0
                 : y < size.y ? y
                              : size.y - 1,
            cz = z < 0        ? 0
                 : z < size.z ? z
                              : size.z - 1;
  return (static_cast<size_t>(cz) * size.y + cy) * size.x + cx;
}

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_SAMPLE_H_
