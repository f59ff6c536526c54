// SPDX-License-Identifier: Apache-2.0
// The CPU and CUDA versions of the measures in jacobian.h, and the per-voxel arithmetic that they share. Internal to
// this room. Partial results belong to pieces of the grid and are added in their order, so that a result depends on the
// grid only.
#ifndef INTRAWARP_ENGINE_QUALITY_JACOBIAN_KERNELS_H_
#define INTRAWARP_ENGINE_QUALITY_JACOBIAN_KERNELS_H_

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/transform/displacement.h"

namespace intrawarp {

// Voxels in memory order that share one partial result.
inline constexpr int kSumPieceVoxels = 2048;
inline constexpr int64_t SumPieces(int64_t voxels) { return (voxels + kSumPieceVoxels - 1) / kSumPieceVoxels; }

struct JacobianInput {
  Int3 size;
  const float* displacement = nullptr;
  Int3 displacement_size;
  // The displacement lies on the fixed grid itself.
  bool same_grid = false;
  AffineMap to_domain;
  // Physical to fixed index; its linear part is the gradient of the index.
  AffineMap to_index;
  double affine_determinant = 1;
  // Unless null: det(I + grad u) at the fixed voxels; nothing but the determinant of A counts beside it.
  const float* determinant = nullptr;

  INTRAWARP_HD Vec3d Displacement(Int3 v) const {
    if (!same_grid) return SampleDisplacement(displacement, displacement_size, to_domain(ToVec3d(v)));
    const float* u = displacement + 3 * ((static_cast<size_t>(v.z) * size.y + v.y) * size.x + v.x);
    return {u[0], u[1], u[2]};
  }
};

// det(grad T) at a fixed voxel.
INTRAWARP_HD inline double JacobianAt(const JacobianInput& in, Int3 voxel) {
  if (in.determinant != nullptr) {
    const size_t place = (static_cast<size_t>(voxel.z) * in.size.y + voxel.y) * in.size.x + voxel.x;
    return in.affine_determinant * in.determinant[place];
  }
  AffineMap gradient = AffineMap::Identity();
  for (int a = 0; a < 3; ++a) {
    if (in.size[a] == 1) continue;
    Int3 low = voxel, high = voxel;
    low[a] = voxel[a] > 0 ? voxel[a] - 1 : 0;
    high[a] = voxel[a] < in.size[a] - 1 ? voxel[a] + 1 : voxel[a];
    const double per_voxel = high[a] - low[a] == 2 ? 0.5 : 1.0;
    const Vec3d difference = per_voxel * (in.Displacement(high) - in.Displacement(low));
    for (int r = 0; r < 3; ++r)
      for (int c = 0; c < 3; ++c) gradient.m[r][c] += difference[r] * in.to_index.m[a][c];
  }
  return in.affine_determinant * Determinant(gradient);
}

struct JacobianSums {
  double minimum = DBL_MAX, maximum = -DBL_MAX;
  int64_t nonpositive = 0;

  INTRAWARP_HD void Add(const JacobianSums& o) {
    minimum = fmin(minimum, o.minimum);
    maximum = fmax(maximum, o.maximum);
    nonpositive += o.nonpositive;
  }
  INTRAWARP_HD void Add(double determinant) {
    minimum = fmin(minimum, determinant);
    maximum = fmax(maximum, determinant);
    // Written so that NaN counts.
    nonpositive += !(determinant > 0);
  }
};

INTRAWARP_HD inline void AddAt(const JacobianInput& in, Int3 voxel, JacobianSums* sums) {
  sums->Add(JacobianAt(in, voxel));
}

// exp(v) and exp(-v) as displacements in mm on one grid.
struct InverseInput {
  const float* forward = nullptr;
  const float* backward = nullptr;
  Int3 size;
  AffineMap to_index;
};

struct InverseSums {
  double distance = 0, maximum = 0;
  int64_t count = 0;

  INTRAWARP_HD void Add(const InverseSums& o) {
    distance += o.distance;
    maximum = fmax(maximum, o.maximum);
    count += o.count;
  }
};

// Adds |backward(forward(voxel)) - voxel|, unless forward leaves the domain.
INTRAWARP_HD inline void AddAt(const InverseInput& in, Int3 voxel, InverseSums* sums) {
  const float* u = in.forward + 3 * ((static_cast<size_t>(voxel.z) * in.size.y + voxel.y) * in.size.x + voxel.x);
  const Vec3d there{u[0], u[1], u[2]};
  const Vec3d index = ToVec3d(voxel) + in.to_index.Linear(there);
  for (int a = 0; a < 3; ++a)
    if (!(index[a] >= -0.5 && index[a] <= in.size[a] - 0.5)) return;
  const Vec3d difference = there + SampleDisplacement(in.backward, in.size, index);
  const double distance = sqrt(Dot(difference, difference));
  sums->Add({distance, distance, 1});
}

// Fill *total (in device memory, with one partial a piece beside it). Stream-ordered.
INTRAWARP_DECLARE_ON_DEVICES(absl::Status SumJacobian(const ExecContext& ctx, const JacobianInput& in,
                                                      JacobianSums* partial, JacobianSums* total);
                             absl::Status SumInverse(const ExecContext& ctx, const InverseInput& in,
                                                     InverseSums* partial, InverseSums* total);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_QUALITY_JACOBIAN_KERNELS_H_
