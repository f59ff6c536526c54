// SPDX-License-Identifier: Apache-2.0
// ErrorGrid: how far off a result may be at a place, from the map of the predicted error that comes with it. LPS mm of
// the fixed image's space. Immutable, hence thread-safe.
#ifndef INTRAWARP_CLIENT_IGTL_ERROR_GRID_H_
#define INTRAWARP_CLIENT_IGTL_ERROR_GRID_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/geometry/geometry.h"

namespace intrawarp::igtl {

struct PredictedError {
  double expected_mm = 0;
  double bound_mm = 0;
};

class ErrorGrid {
 public:
  // INVALID_ARGUMENT, naming the field, for another number of values than blocks.
  static absl::StatusOr<ErrorGrid> Make(const Geometry& geometry, std::vector<float> expected_mm,
                                        std::vector<float> bound_mm);

  // That of the nearest block with an estimate, at most two blocks away; nothing where there is none.
  std::optional<PredictedError> At(const Vec3d& point) const;

 private:
  ErrorGrid() = default;

  Geometry geometry_;
  AffineMap to_index_;
  std::vector<float> expected_mm_;
  std::vector<float> bound_mm_;
};

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_ERROR_GRID_H_
