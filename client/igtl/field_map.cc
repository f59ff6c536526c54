// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/field_map.h"

#include <algorithm>
#include <cmath>

#include "engine/base/field_error.h"

namespace intrawarp::igtl {
namespace {

constexpr int kInverseIterations = 100;
constexpr double kInverseToleranceMm = 1e-3;
constexpr double kJacobianStepMm = 0.5;
constexpr int kPolarIterations = 20;

// The rotation that is nearest to a linear map: R <- (R + R^-T) / 2 (Higham, 1986).
AffineMap NearestRotation(AffineMap r) {
  for (int i = 0; i < kPolarIterations; ++i) {
    if (!(std::abs(Determinant(r)) > 1e-12)) return AffineMap::Identity();
    const AffineMap inverse = Inverse(r);
    for (int row = 0; row < 3; ++row) {
      for (int column = 0; column < 3; ++column) r.m[row][column] = 0.5 * (r.m[row][column] + inverse.m[column][row]);
    }
  }
  return r;
}

AffineMap Turned(const AffineMap& rotation, const AffineMap& pose, const Vec3d& position) {
  AffineMap turned = Compose(rotation, pose);
  for (int row = 0; row < 3; ++row) turned.m[row][3] = position[row];
  return turned;
}

Vec3d PositionOf(const AffineMap& pose) { return {pose.m[0][3], pose.m[1][3], pose.m[2][3]}; }

}  // namespace

absl::StatusOr<std::shared_ptr<const FieldMap>> FieldMap::Make(const Geometry& grid, const Geometry& domain,
                                                               const AffineMap& affine,
                                                               const std::vector<float>& displacement) {
  const auto invalid = [](const char* field, const char* what) {
    return FieldError(absl::StatusCode::kInvalidArgument, field, what);
  };
  if (static_cast<int64_t>(displacement.size()) != 3 * grid.voxels()) {
    return invalid("field", "has another number of values than its grid");
  }
  if (IsSingular(affine)) return invalid("affine", "is singular");
  const std::shared_ptr<FieldMap> map(new FieldMap);
  map->grid_ = grid;
  map->to_index_ = PhysicalToIndex(grid);
  for (int axis = 0; axis < 3; ++axis) {
    const double scale = domain.spacing[axis] / grid.spacing[axis];
    map->last_index_[axis] = (domain.size[axis] - 1) * scale;
    map->half_voxel_[axis] = 0.5 * scale;
  }
  map->affine_ = affine;
  map->affine_inverse_ = Inverse(affine);
  map->deformation_.resize(displacement.size());
  const AffineMap to_physical = IndexToPhysical(grid);
  size_t at = 0;
  for (int k = 0; k < grid.size.z; ++k) {
    for (int j = 0; j < grid.size.y; ++j) {
      for (int i = 0; i < grid.size.x; ++i, at += 3) {
        const Vec3d x = to_physical(Vec3d{double(i), double(j), double(k)});
        const Vec3d d = {displacement[at], displacement[at + 1], displacement[at + 2]};
        const Vec3d u = map->affine_inverse_(x + d) - x;
        if (!std::isfinite(u.x) || !std::isfinite(u.y) || !std::isfinite(u.z)) return invalid("field", "is not finite");
        for (int axis = 0; axis < 3; ++axis) map->deformation_[at + axis] = static_cast<float>(u[axis]);
      }
    }
  }
  return std::shared_ptr<const FieldMap>(map);
}

bool FieldMap::IsInside(const Vec3d& index) const {
  for (int axis = 0; axis < 3; ++axis) {
    // A plane is as thick as its spacing.
    if (!(index[axis] >= -half_voxel_[axis] && index[axis] <= last_index_[axis] + half_voxel_[axis])) return false;
  }
  return true;
}

Vec3d FieldMap::Deformation(const Vec3d& point) const {
  const Vec3d index = to_index_(point);
  return IsInside(index) ? AtIndex(index) : Vec3d{};
}

Vec3d FieldMap::AtIndex(const Vec3d& index) const {
  int64_t low[3];
  double part[3];
  for (int axis = 0; axis < 3; ++axis) {
    const int last = grid_.size[axis] - 1;
    const double inside = std::clamp(index[axis], 0.0, double(last));
    low[axis] = std::min<int64_t>(static_cast<int64_t>(inside), std::max(0, last - 1));
    part[axis] = inside - static_cast<double>(low[axis]);
  }
  const int64_t strides[3] = {1, grid_.size.x, int64_t{grid_.size.x} * grid_.size.y};
  Vec3d sum;
  for (int corner = 0; corner < 8; ++corner) {
    double weight = 1;
    int64_t voxel = 0;
    for (int axis = 0; axis < 3; ++axis) {
      const bool high = (corner >> axis & 1) != 0;
      weight *= high ? part[axis] : 1 - part[axis];
      voxel += (low[axis] + (high ? 1 : 0)) * strides[axis];
    }
    if (weight == 0) continue;
    const float* u = &deformation_[3 * voxel];
    sum = sum + weight * Vec3d{u[0], u[1], u[2]};
  }
  return sum;
}

Vec3d FieldMap::Map(const Vec3d& point) const { return affine_(point + Deformation(point)); }

std::optional<Vec3d> FieldMap::MapInverse(const Vec3d& point) const {
  const Vec3d wanted = affine_inverse_(point);
  Vec3d x = wanted;
  for (int i = 0; i < kInverseIterations; ++i) {
    const Vec3d index = to_index_(x);
    if (!std::isfinite(index.x + index.y + index.z)) return std::nullopt;
    const Vec3d rest = wanted - (x + AtIndex(index));
    if (Dot(rest, rest) < kInverseToleranceMm * kInverseToleranceMm) {
      if (IsInside(index)) return x;
      break;
    }
    x = x + rest;
  }
  if (IsInside(to_index_(wanted))) return std::nullopt;
  return wanted;
}

AffineMap FieldMap::Jacobian(const Vec3d& point) const {
  AffineMap jacobian;
  for (int axis = 0; axis < 3; ++axis) {
    Vec3d step;
    step[axis] = kJacobianStepMm;
    const Vec3d slope = (0.5 / kJacobianStepMm) * (Map(point + step) - Map(point - step));
    for (int row = 0; row < 3; ++row) jacobian.m[row][axis] = slope[row];
  }
  return jacobian;
}

AffineMap FieldMap::MapPose(const AffineMap& pose) const {
  const Vec3d position = PositionOf(pose);
  return Turned(NearestRotation(Jacobian(position)), pose, Map(position));
}

std::optional<AffineMap> FieldMap::MapPoseInverse(const AffineMap& pose) const {
  const std::optional<Vec3d> position = MapInverse(PositionOf(pose));
  if (!position) return std::nullopt;
  return Turned(Inverse(NearestRotation(Jacobian(*position))), pose, *position);
}

}  // namespace intrawarp::igtl
