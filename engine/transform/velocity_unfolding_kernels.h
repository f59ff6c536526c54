// SPDX-License-Identifier: Apache-2.0
// The CPU and CUDA versions of the parts of an unfolding, and the arithmetic that they share. Internal to this room.
#ifndef INTRAWARP_ENGINE_TRANSFORM_VELOCITY_UNFOLDING_KERNELS_H_
#define INTRAWARP_ENGINE_TRANSFORM_VELOCITY_UNFOLDING_KERNELS_H_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/geometry.h"
#include "engine/transform/vector_field_kernels.h"
#include "engine/transform/velocity_unfolding.h"

namespace intrawarp {

// A derivative I + G whose rows of |G| sum to at most this has a determinant of at least (1 - this)^3, which is above
// kLeastCellDeterminant.
inline constexpr float kSurelyUnfolded = 0.75f;

// u at the corners of a cell, in voxels; bit a of the number is the side along axis a.
struct CellCorners {
  Vec3f at[8];
};

// The sum of a row of |G|, with the largest of the four differences along each axis.
INTRAWARP_HD inline float LargestRow(const CellCorners& c, int row) {
  float sum = 0;
  for (int a = 0; a < 3; ++a) {
    float largest = 0;
    for (int k = 0; k < 8; ++k) {
      const int bit = 1 << a;
      if ((k & bit) != 0) continue;
      const float d = fabsf(c.at[k | bit][row] - c.at[k][row]);
      // Written so that NaN stays.
      if (largest == largest && !(d <= largest)) largest = d;
    }
    sum += largest;
  }
  return sum;
}

INTRAWARP_HD inline Vec3d CellEdge(const CellCorners& c, int axis, int from) {
  const Vec3f d = c.at[from | 1 << axis] - c.at[from];
  Vec3d edge{d.x, d.y, d.z};
  edge[axis] += 1;
  return edge;
}

// Written so that NaN folds.
INTRAWARP_HD inline bool CellFolds(const CellCorners& c) {
  if (LargestRow(c, 0) <= kSurelyUnfolded && LargestRow(c, 1) <= kSurelyUnfolded &&
      LargestRow(c, 2) <= kSurelyUnfolded) {
    return false;
  }
  for (int i = 0; i < 4; ++i) {
    const Vec3d x = CellEdge(c, 0, 2 * i);
    for (int j = 0; j < 4; ++j) {
      const Vec3d y = CellEdge(c, 1, (j & 1) | (j & 2) << 1);
      const Vec3d across{x.y * y.z - x.z * y.y, x.z * y.x - x.x * y.z, x.x * y.y - x.y * y.x};
      for (int k = 0; k < 4; ++k) {
        if (!(Dot(across, CellEdge(c, 2, k)) >= kLeastCellDeterminant)) return true;
      }
    }
  }
  return false;
}

// Cells are numbered by their first voxel; those that begin at a face after which there is no voxel do not exist,
// unless the axis is one voxel long.
INTRAWARP_HD inline bool IsCell(Int3 size, Int3 i) {
  return (i.x < size.x - 1 || size.x == 1) && (i.y < size.y - 1 || size.y == 1) && (i.z < size.z - 1 || size.z == 1);
}

struct FoldCheck {
  const float* displacement = nullptr;  // mm
  Int3 size;
  AffineMapF to_index;
  // One byte a voxel: whether the cell that begins there folds; and how many do.
  uint8_t* folds = nullptr;
  unsigned long long* folded = nullptr;

  INTRAWARP_HD int64_t voxels() const { return int64_t{size.x} * size.y * size.z; }
  // u in voxels at the four corners of cells that begin in column x of row (y, z).
  INTRAWARP_HD void LoadColumn(int x, int y, int z, Vec3f (&column)[4]) const {
    const size_t row = size.x, plane = row * size.y;
    const float* const p = displacement + 3 * (z * plane + y * row + x);
    const size_t along_y = size.y > 1 ? 3 * row : 0, along_z = size.z > 1 ? 3 * plane : 0;
    column[0] = to_index.Linear(LoadVector(p));
    column[1] = to_index.Linear(LoadVector(p + along_y));
    column[2] = to_index.Linear(LoadVector(p + along_z));
    column[3] = to_index.Linear(LoadVector(p + along_y + along_z));
  }
};

INTRAWARP_HD inline bool CellFolds(const Vec3f (&low)[4], const Vec3f (&high)[4]) {
  CellCorners c;
  for (int k = 0; k < 4; ++k) {
    c.at[2 * k] = low[k];
    c.at[2 * k + 1] = high[k];
  }
  return CellFolds(c);
}

// The paths of cells under exp(sign v), in `steps` steps of Euler, each of a voxel at most.
struct FoldPaths {
  const uint8_t* folds = nullptr;
  const float* velocity = nullptr;  // mm
  Int3 size;
  AffineMapF to_index;
  float sign = 1;
  int steps = 1;
  // One byte a voxel; those around the paths become 1, the others stay.
  uint8_t* marks = nullptr;

  INTRAWARP_HD int64_t voxels() const { return int64_t{size.x} * size.y * size.z; }
};

// Calls mark(voxel) for those around the path of a point.
template <typename Mark>
INTRAWARP_HD void ForPath(const FoldPaths& t, Vec3f at, const Mark& mark) {
  const float h = t.sign / static_cast<float>(t.steps);
  for (int step = 0;; ++step) {
    const LinearAxis x = MakeLinearAxis(at.x, t.size.x), y = MakeLinearAxis(at.y, t.size.y),
                     z = MakeLinearAxis(at.z, t.size.z);
    for (int k = 0; k < 8; ++k) {
      const int64_t row = int64_t{k & 4 ? z.upper : z.lower} * t.size.y + (k & 2 ? y.upper : y.lower);
      mark(row * t.size.x + (k & 1 ? x.upper : x.lower));
    }
    if (step == t.steps) return;
    at = at + h * t.to_index.Linear(SampleVector(t.velocity, t.size, at));
  }
}

// For the corners of the cell that begins at `voxel`.
template <typename Mark>
INTRAWARP_HD void ForPathsOfCell(const FoldPaths& t, int64_t voxel, const Mark& mark) {
  const int64_t row = voxel / t.size.x;
  const int x = static_cast<int>(voxel - row * t.size.x), y = static_cast<int>(row % t.size.y),
            z = static_cast<int>(row / t.size.y);
  for (int k = 0; k < 8; ++k) {
    const Vec3f corner{static_cast<float>(x + (k & 1)), static_cast<float>(y + (k >> 1 & 1)),
                       static_cast<float>(z + (k >> 2))};
    ForPath(t, corner, mark);
  }
}

// A 3 x 3 x 3 neighbourhood, cut at the faces.
struct Neighbourhood {
  Int3 low, high;

  INTRAWARP_HD Neighbourhood(Int3 size, Int3 i) {
    for (int a = 0; a < 3; ++a) {
      low[a] = i[a] > 0 ? -1 : 0;
      high[a] = i[a] < size[a] - 1 ? 1 : 0;
    }
  }
};

// Whether a voxel or a neighbour is marked; `marks` points at it.
INTRAWARP_HD inline uint8_t AnyMarked(const uint8_t* marks, Int3 size, Int3 i) {
  const Neighbourhood n(size, i);
  const ptrdiff_t row = size.x, plane = row * size.y;
  for (int z = n.low.z; z <= n.high.z; ++z)
    for (int y = n.low.y; y <= n.high.y; ++y)
      for (int x = n.low.x; x <= n.high.x; ++x)
        if (marks[z * plane + y * row + x] != 0) return 1;
  return 0;
}

// The mean with the binomial weights 1 2 1 along each axis, a variance of half a voxel; `field` points at the voxel.
INTRAWARP_HD inline Vec3f BinomialMean(const float* field, Int3 size, Int3 i) {
  const Neighbourhood n(size, i);
  const ptrdiff_t row = size.x, plane = row * size.y;
  Vec3f sum;
  float weights = 0;
  for (int z = n.low.z; z <= n.high.z; ++z) {
    for (int y = n.low.y; y <= n.high.y; ++y) {
      for (int x = n.low.x; x <= n.high.x; ++x) {
        const float w = (x == 0 ? 2.0f : 1.0f) * (y == 0 ? 2.0f : 1.0f) * (z == 0 ? 2.0f : 1.0f);
        sum = sum + w * LoadVector(field + 3 * (z * plane + y * row + x));
        weights += w;
      }
    }
  }
  return (1 / weights) * sum;
}

// MarkFolds fills folds and *folded. SmoothMarked writes BinomialMean of `in` to the marked voxels of `out`, and
// nothing else. Stream-ordered.
INTRAWARP_DECLARE_ON_DEVICES(absl::Status MarkFolds(const ExecContext& ctx, const FoldCheck& task);
                             absl::Status MarkPaths(const ExecContext& ctx, const FoldPaths& task);
                             absl::Status Dilate(const ExecContext& ctx, const uint8_t* marks, Int3 size, uint8_t* out);
                             absl::Status SmoothMarked(const ExecContext& ctx, const float* in, const uint8_t* marks,
                                                       Int3 size, float* out);
                             absl::Status Halve(const ExecContext& ctx, int64_t floats, float* field);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_VELOCITY_UNFOLDING_KERNELS_H_
