// SPDX-License-Identifier: Apache-2.0
// Geometry: a regular grid of voxels in physical space (LPS, millimetres).
//
//   p = origin + direction * diag(spacing) * (i, j, k)
//
// Voxel centres lie at integer indices; the grid's domain reaches half a voxel beyond them. The columns of `direction`
// are the unit vectors of the index axes; they are orthonormal and may be left-handed. size.z = 1 is a 2-D image.
// A plain value; thread-compatible.
#ifndef INTRAWARP_ENGINE_GEOMETRY_GEOMETRY_H_
#define INTRAWARP_ENGINE_GEOMETRY_GEOMETRY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "engine/geometry/vec.h"

namespace intrawarp {

struct Geometry {
  Int3 size{1, 1, 1};
  Vec3d spacing{1, 1, 1};
  Vec3d origin{0, 0, 0};
  // direction[r][c]: physical component r of index axis c.
  double direction[3][3] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}};

  int64_t voxels() const { return int64_t{size.x} * size.y * size.z; }
  bool is_2d() const { return size.z == 1; }
  double voxel_volume() const { return spacing.x * spacing.y * spacing.z; }

  friend bool operator==(const Geometry&, const Geometry&);
};

// No axis is longer than this, so that float32 rounds indices by less than a thousandth of a voxel.
inline constexpr int kMaxAxis = 16384;
// Tolerance on the orthonormality of directions: |D^T D - I| in every entry.
inline constexpr double kDirectionTolerance = 1e-3;

// INVALID_ARGUMENT, beginning with the name of the field at fault ("size: ...", "spacing: ...", "origin: ...",
// "direction: ..."), unless sizes are 1..kMaxAxis, spacings finite and in [1e-6, 1e6] mm, origins finite and within
// 1e7 mm, and directions orthonormal to kDirectionTolerance.
absl::Status ValidateGeometry(const Geometry& geometry);

// Index (i, j, k) to physical point, and back.
AffineMap IndexToPhysical(const Geometry& geometry);
AffineMap PhysicalToIndex(const Geometry& geometry);

// True for a map whose inverse would be noise: a determinant that is not finite, or below 1e-9 of the product of the
// lengths of its columns.
bool IsSingular(const AffineMap& map);

// The physical point at the middle of the grid's domain.
Vec3d Center(const Geometry& geometry);

// True when both describe the same grid: equal sizes, and corners within `tolerance_voxels` of each other.
bool SameGrid(const Geometry& a, const Geometry& b, double tolerance_voxels = 1e-2);

// "256x256x120" for messages.
std::string SizeString(const Geometry& geometry);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_GEOMETRY_GEOMETRY_H_
