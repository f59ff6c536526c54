// SPDX-License-Identifier: Apache-2.0
// The parts that the operators on vector fields share on both devices. Internal.
#ifndef INTRAWARP_ENGINE_TRANSFORM_VECTOR_FIELD_KERNELS_H_
#define INTRAWARP_ENGINE_TRANSFORM_VECTOR_FIELD_KERNELS_H_

#include <cmath>
#include <cstddef>

#include "engine/base/host_device.h"
#include "engine/image/sample.h"
#include "engine/image/smooth_kernels.h"
#include "engine/transform/vector_field.h"

namespace intrawarp {

INTRAWARP_HD inline Vec3f LoadVector(const float* p) { return {p[0], p[1], p[2]}; }
INTRAWARP_HD inline void StoreVector(Vec3f v, float* p) {
  p[0] = v.x;
  p[1] = v.y;
  p[2] = v.z;
}

// Trilinear at an index; clamped to the outermost voxels.
INTRAWARP_HD inline Vec3f SampleVector(const float* field, Int3 size, Vec3f index) {
  const LinearAxis x = MakeLinearAxis(index.x, size.x), y = MakeLinearAxis(index.y, size.y),
                   z = MakeLinearAxis(index.z, size.z);
  const size_t row = size_t{3} * size.x, plane = row * size.y;
  const float* const r00 = field + z.lower * plane + y.lower * row;
  const float* const r01 = field + z.lower * plane + y.upper * row;
  const float* const r10 = field + z.upper * plane + y.lower * row;
  const float* const r11 = field + z.upper * plane + y.upper * row;
  const int low = 3 * x.lower, high = 3 * x.upper;
  float out[3];
  for (int c = 0; c < 3; ++c) {
    const float c00 = r00[low + c] + x.weight * (r00[high + c] - r00[low + c]);
    const float c01 = r01[low + c] + x.weight * (r01[high + c] - r01[low + c]);
    const float c10 = r10[low + c] + x.weight * (r10[high + c] - r10[low + c]);
    const float c11 = r11[low + c] + x.weight * (r11[high + c] - r11[low + c]);
    const float c0 = c00 + y.weight * (c01 - c00);
    const float c1 = c10 + y.weight * (c11 - c10);
    out[c] = c0 + z.weight * (c1 - c0);
  }
  return {out[0], out[1], out[2]};
}

// out(x) = inner * a(x) + outer * b(x + position * a(x)).
struct ComposeScales {
  float inner = 1, position = 1, outer = 1;
};
// The first step of an exponential, of length h: a and b are the velocity.
INTRAWARP_HD inline ComposeScales MidpointScales(float h) { return {0, 0.5f * h, h}; }

INTRAWARP_HD inline Vec3f ComposeVoxel(Vec3f a, const float* b, Int3 size, Vec3f at, ComposeScales s) {
  const Vec3f sample = SampleVector(b, size, at + s.position * a);
  return s.inner * a + s.outer * sample;
}

// N of an exponential.
INTRAWARP_HD inline int Squarings(float largest, float factor, int limit) {
  float step = fabsf(factor) * largest;
  int n = 0;
  while (n < limit && step > kExponentialStep) {
    step *= 0.5f;
    ++n;
  }
  return n;
}

// A difference along an axis: between the neighbours `low` and `high` (offsets in voxels from x), times `scale`.
struct DifferenceAxis {
  int low, high;
  float scale;
};
INTRAWARP_HD inline DifferenceAxis MakeDifferenceAxis(int i, int n) {
  const int low = i > 0 ? -1 : 0, high = i < n - 1 ? 1 : 0;
  return {low, high, high - low == 2 ? 0.5f : 1.0f};
}

// Derivatives of a field at voxel i, per voxel along each axis; `field` points at the voxel.
struct VectorGradient {
  Vec3f along[3];
};
INTRAWARP_HD inline VectorGradient GradientAt(const float* field, Int3 size, Int3 i) {
  const ptrdiff_t stride[3] = {3, ptrdiff_t{3} * size.x, ptrdiff_t{3} * size.x * size.y};
  VectorGradient g;
  for (int a = 0; a < 3; ++a) {
    const DifferenceAxis d = MakeDifferenceAxis(i[a], size[a]);
    g.along[a] = d.scale * (LoadVector(field + d.high * stride[a]) - LoadVector(field + d.low * stride[a]));
  }
  return g;
}

INTRAWARP_HD inline Vec3f BchVoxel(const float* v, const float* u, Int3 size, Int3 i) {
  const VectorGradient dv = GradientAt(v, size, i), du = GradientAt(u, size, i);
  const Vec3f at_v = LoadVector(v), at_u = LoadVector(u);
  const Vec3f dv_u = at_u.x * dv.along[0] + at_u.y * dv.along[1] + at_u.z * dv.along[2];
  const Vec3f du_v = at_v.x * du.along[0] + at_v.y * du.along[1] + at_v.z * du.along[2];
  return at_v + at_u + 0.5f * (dv_u - du_v);
}

INTRAWARP_HD inline float EnergyVoxel(const float* field, Int3 size, Int3 i) {
  const VectorGradient g = GradientAt(field, size, i);
  return Dot(g.along[0], g.along[0]) + Dot(g.along[1], g.along[1]) + Dot(g.along[2], g.along[2]);
}

// From an index of one grid to another over the same domain, and vectors back.
struct GridScale {
  Vec3f ratio;  // in voxels / out voxels

  INTRAWARP_HD Vec3f Index(Int3 i) const {
    return {(i.x + 0.5f) * ratio.x - 0.5f, (i.y + 0.5f) * ratio.y - 0.5f, (i.z + 0.5f) * ratio.z - 0.5f};
  }
  INTRAWARP_HD Vec3f Vector(Vec3f v) const { return {v.x / ratio.x, v.y / ratio.y, v.z / ratio.z}; }
};

INTRAWARP_HD inline GridScale MakeGridScale(Int3 in_size, Int3 out_size) {
  GridScale scale;
  for (int a = 0; a < 3; ++a) scale.ratio[a] = static_cast<float>(in_size[a]) / static_cast<float>(out_size[a]);
  return scale;
}

// The factor that makes a vector of its numerator. Below the least denominator (in the variances of an image that it is
// made of) it is 0: there is neither gradient nor difference.
inline constexpr float kLeastDenominator = 1e-9f;
INTRAWARP_HD inline float QuotientFactor(float denominator) {
  return denominator > kLeastDenominator ? 1.0f / denominator : 0.0f;
}

// One pass of a smoothing, then `add` and `largest` as in SmoothVectorField. `in` is not `out`.
struct SmoothPass {
  const float* in = nullptr;
  float* out = nullptr;
  const float* add = nullptr;
  float* largest = nullptr;
  const int* skip = nullptr;
  Int3 size;
  int axis = 0;
};

INTRAWARP_DECLARE_ON_DEVICES(
    absl::Status SmoothVectorAxis(const ExecContext& ctx, const SmoothPass& pass, const GaussianKernel& kernel);
    absl::Status ComposeVectorFields(const ExecContext& ctx, const float* inner, const float* outer, Int3 size,
                                     float* out, const int* skip);
    absl::Status LargestComponent(const ExecContext& ctx, const float* field, Int3 size, float* largest,
                                  const int* skip);
    absl::Status ExponentiateVectorField(const ExecContext& ctx, const float* velocity, Int3 size, float factor,
                                         const float* largest, int max_squarings, float* out, float* other,
                                         const int* skip);
    absl::Status BchUpdate(const ExecContext& ctx, const float* v, const float* u, Int3 size, float* out,
                           const int* skip);
    absl::Status HarmonicEnergy(const ExecContext& ctx, const float* field, Int3 size, double* partial, double* energy,
                                const int* skip);
    absl::Status ResampleVectorField(const ExecContext& ctx, const float* in, Int3 in_size, const GridScale& scale,
                                     float* out, Int3 out_size);
    absl::Status MapVectors(const ExecContext& ctx, const AffineMapF& map, Int3 size, float* field);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_VECTOR_FIELD_KERNELS_H_
