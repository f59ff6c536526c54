// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/error_grid.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/base/field_error.h"

namespace intrawarp::igtl {
namespace {

constexpr int kReach = 2;  // blocks

}  // namespace

absl::StatusOr<ErrorGrid> ErrorGrid::Make(const Geometry& geometry, std::vector<float> expected_mm,
                                          std::vector<float> bound_mm) {
  const auto blocks = static_cast<size_t>(geometry.voxels());
  if (expected_mm.size() != blocks || bound_mm.size() != blocks) {
    return FieldError(absl::StatusCode::kInvalidArgument, "error_map", "has another number of values than blocks");
  }
  ErrorGrid grid;
  grid.geometry_ = geometry;
  grid.to_index_ = PhysicalToIndex(geometry);
  grid.expected_mm_ = std::move(expected_mm);
  grid.bound_mm_ = std::move(bound_mm);
  return grid;
}

std::optional<PredictedError> ErrorGrid::At(const Vec3d& point) const {
  const Vec3d index = to_index_(point);
  int begin[3], end[3];
  for (int axis = 0; axis < 3; ++axis) {
    if (!(index[axis] > -kReach && index[axis] < geometry_.size[axis] - 1 + kReach)) return std::nullopt;
    const int nearest = static_cast<int>(std::lround(index[axis]));
    begin[axis] = std::max(0, nearest - kReach);
    end[axis] = std::min(geometry_.size[axis], nearest + kReach + 1);
  }
  std::optional<PredictedError> error;
  double least = std::numeric_limits<double>::infinity();
  for (int k = begin[2]; k < end[2]; ++k) {
    for (int j = begin[1]; j < end[1]; ++j) {
      for (int i = begin[0]; i < end[0]; ++i) {
        const int64_t block = (int64_t{k} * geometry_.size.y + j) * geometry_.size.x + i;
        const Vec3d away = index - Vec3d{double(i), double(j), double(k)};
        if (Dot(away, away) >= least || std::isnan(expected_mm_[block])) continue;
        least = Dot(away, away);
        error = {expected_mm_[block], bound_mm_[block]};
      }
    }
  }
  return error;
}

}  // namespace intrawarp::igtl
