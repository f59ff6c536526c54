// SPDX-License-Identifier: Apache-2.0
// The terms of MIND (mind.h) in the FFD objective on CUDA: all channels of a voxel at once, in steps of a channel.
#ifndef INTRAWARP_ENGINE_METRIC_MIND_FFD_CUH_
#define INTRAWARP_ENGINE_METRIC_MIND_FFD_CUH_

#include "engine/feature/descriptor.h"
#include "engine/metric/ffd_march.cuh"

namespace intrawarp::cuda {

// The eight descriptors around a position: the lowest one, and the way to the next along each axis, 0 past the last.
struct MovingCell {
  unsigned corner;
  unsigned step_x, step_y, step_z;
  float weight[3];
  // 1, or 0 where the image ends and the derivative is 0.
  float slope[3];
  // In a soft moving mask.
  float mask_weight = 1;
};

template <Masking kMasking>
__device__ inline bool FindEdgeCell(const FfdArgs& a, const MovingFrame& frame, Vec3f r, MovingCell* cell) {
  int lower[3], upper[3], nearest[3];
  bool interior[3];
  const Int3 n = a.moving_size;
  if (!EdgeAxis(r.x, frame.origin[0], n.x, &lower[0], &upper[0], &nearest[0], &cell->weight[0], &interior[0]) ||
      !EdgeAxis(r.y, frame.origin[1], n.y, &lower[1], &upper[1], &nearest[1], &cell->weight[1], &interior[1]) ||
      !EdgeAxis(r.z, frame.origin[2], n.z, &lower[2], &upper[2], &nearest[2], &cell->weight[2], &interior[2])) {
    return false;
  }
  const unsigned row = n.x, plane = row * n.y;
  if (kMasking != Masking::kNone && a.moving_mask != nullptr &&
      !IsInMask<kMasking>(a.moving_mask + (nearest[2] * plane + nearest[1] * row + nearest[0]), a.moving_weight,
                          &cell->mask_weight)) {
    return false;
  }
  cell->corner = lower[2] * plane + lower[1] * row + lower[0];
  cell->step_x = upper[0] - lower[0];
  cell->step_y = (upper[1] - lower[1]) * row;
  cell->step_z = (upper[2] - lower[2]) * plane;
#pragma unroll
  for (int k = 0; k < 3; ++k) cell->slope[k] = interior[k] ? 1.0f : 0.0f;
  return true;
}

// False where the position is not a sample, as SampleMoving says.
template <Masking kMasking>
__device__ inline bool FindCell(const FfdArgs& a, const MovingFrame& frame, Vec3f r, MovingCell* cell) {
  const float fx = __fadd_rd(r.x, kRounder), fy = __fadd_rd(r.y, kRounder), fz = __fadd_rd(r.z, kRounder);
  const unsigned ix = __float_as_uint(fx) + (frame.origin[0] - kRounderBits),
                 iy = __float_as_uint(fy) + (frame.origin[1] - kRounderBits),
                 iz = __float_as_uint(fz) + (frame.origin[2] - kRounderBits);
  const unsigned nx = a.moving_size.x, ny = a.moving_size.y, nz = a.moving_size.z;
  if (!(ix < nx - 1 && iy < ny - 1 && iz < nz - 1)) return FindEdgeCell<kMasking>(a, frame, r, cell);
  const float w[3] = {r.x - (fx - kRounder), r.y - (fy - kRounder), r.z - (fz - kRounder)};
  float weight = 1;
  if (kMasking != Masking::kNone && a.moving_mask != nullptr) {
    const unsigned mx = ix + (w[0] >= 0.5f), my = iy + (w[1] >= 0.5f), mz = iz + (w[2] >= 0.5f);
    if (!IsInMask<kMasking>(a.moving_mask + (mz * ny + my) * nx + mx, a.moving_weight, &weight)) return false;
  }
  *cell = {(iz * ny + iy) * nx + ix, 1, nx, ny * nx, {w[0], w[1], w[2]}, {1, 1, 1}, weight};
  return true;
}

// A byte b as the float 2^23 + b: differences of two are exact.
inline constexpr float kByteBase = 8388608.0f;
__device__ inline float ByteAboveBase(unsigned word, int byte) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 | byte));
}

// Adds sum_c (m_c - f_c) grad m_c to `force` and sum_c (m_c - f_c)^2 to `value`, for four channels: a word of each of
// the cell's corners (x fastest) and of the fixed descriptor. kWeighted: both times `weight`.
template <bool kWeighted>
__device__ inline void AddChannels(const unsigned (&corners)[8], unsigned fixed, const float (&w)[3], float weight,
                                   Vec3f* force, float* value) {
#pragma unroll
  for (int byte = 0; byte < 4; ++byte) {
    float c[4], d[4];
#pragma unroll
    for (int row = 0; row < 4; ++row) {
      const float low = ByteAboveBase(corners[2 * row], byte);
      d[row] = ByteAboveBase(corners[2 * row + 1], byte) - low;
      c[row] = fmaf(w[0], d[row], low - kByteBase);
    }
    const float dx0 = fmaf(w[1], d[1] - d[0], d[0]), dx1 = fmaf(w[1], d[3] - d[2], d[2]);
    const float dy0 = c[1] - c[0], dy1 = c[3] - c[2];
    const float c0 = fmaf(w[1], dy0, c[0]), c1 = fmaf(w[1], dy1, c[2]);
    const float r = fmaf(w[2], c1 - c0, c0) - (ByteAboveBase(fixed, byte) - kByteBase);
    const float weighted = kWeighted ? weight * r : r;
    *value = fmaf(weighted, r, *value);
    force->x = fmaf(weighted, fmaf(w[2], dx1 - dx0, dx0), force->x);
    force->y = fmaf(weighted, fmaf(w[2], dy1 - dy0, dy0), force->y);
    force->z = fmaf(weighted, c1 - c0, force->z);
  }
}

// The twelve channels of a descriptor, four a word.
__device__ inline uint4 LoadChannels(const Descriptor* descriptors, size_t place) {
  return __ldg(reinterpret_cast<const uint4*>(descriptors) + place);
}

// The force of a voxel with this fixed descriptor (sum_c (m_c - f_c) grad m_c, by the moving index), and its squared
// distance, which is added to `value`. kWeighted: both times `weight`.
template <bool kWeighted>
__device__ inline Vec3f MindForce(const FfdArgs& a, const MovingCell& cell, uint4 fixed, float weight, float* value) {
  uint4 corners[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const unsigned place = cell.corner + (k % 2) * cell.step_x + (k / 2 % 2) * cell.step_y + (k / 4) * cell.step_z;
    corners[k] = LoadChannels(a.moving_descriptors, place);
  }
  Vec3f force;
  unsigned word[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) word[k] = corners[k].x;
  AddChannels<kWeighted>(word, fixed.x, cell.weight, weight, &force, value);
#pragma unroll
  for (int k = 0; k < 8; ++k) word[k] = corners[k].y;
  AddChannels<kWeighted>(word, fixed.y, cell.weight, weight, &force, value);
#pragma unroll
  for (int k = 0; k < 8; ++k) word[k] = corners[k].z;
  AddChannels<kWeighted>(word, fixed.z, cell.weight, weight, &force, value);
  return {cell.slope[0] * force.x, cell.slope[1] * force.y, cell.slope[2] * force.z};
}

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_METRIC_MIND_FFD_CUH_
