// SPDX-License-Identifier: Apache-2.0
// FieldMap: a transform T(x) = A(x + u(x)) as an immutable copy of the newest field, for points and poses of tools.
//
// u lies on a coarse grid and is read trilinearly; between the last node of the grid and the end of the domain it keeps
// the value of the border, and outside the domain it is 0. LPS mm. Immutable, hence thread-safe.
#ifndef INTRAWARP_CLIENT_IGTL_FIELD_MAP_H_
#define INTRAWARP_CLIENT_IGTL_FIELD_MAP_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/geometry/geometry.h"
#include "engine/geometry/vec.h"

namespace intrawarp::igtl {

class FieldMap {
 public:
  // `displacement`: T(x) - x at the nodes of `grid`, x y z interleaved. `domain`: the fixed image's grid, which the
  // nodes are part of. INVALID_ARGUMENT, naming the field, for another number of values, values that are not finite,
  // and a singular affine part.
  static absl::StatusOr<std::shared_ptr<const FieldMap>> Make(const Geometry& grid, const Geometry& domain,
                                                              const AffineMap& affine,
                                                              const std::vector<float>& displacement);

  const AffineMap& affine() const { return affine_; }

  Vec3d Map(const Vec3d& point) const;
  // T^-1, to a thousandth of a millimetre; nothing where the iteration does not get there (a field that folds) and in
  // the gap that a field can leave at the border of its domain. Where both a point of the domain and one outside are
  // mapped to this point, the answer is the point of the domain.
  std::optional<Vec3d> MapInverse(const Vec3d& point) const;

  // The pose at its mapped place, turned by the rotation that is nearest to the Jacobian there.
  AffineMap MapPose(const AffineMap& pose) const;
  std::optional<AffineMap> MapPoseInverse(const AffineMap& pose) const;

 private:
  FieldMap() = default;
  bool IsInside(const Vec3d& index) const;
  // u at an index of the grid; beyond the border, u at the border.
  Vec3d AtIndex(const Vec3d& index) const;
  Vec3d Deformation(const Vec3d& point) const;
  AffineMap Jacobian(const Vec3d& point) const;

  Geometry grid_;
  AffineMap to_index_;
  Vec3d last_index_;  // of the domain, in voxels of the grid
  Vec3d half_voxel_;  // of the domain, likewise
  AffineMap affine_;
  AffineMap affine_inverse_;
  std::vector<float> deformation_;  // u
};

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_FIELD_MAP_H_
