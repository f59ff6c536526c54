// SPDX-License-Identifier: Apache-2.0
// The term of landmarks (landmark.h) for a control grid on top of an affine map, T(x) = A(x + u(x)), with its gradient.
#ifndef INTRAWARP_ENGINE_TRANSFORM_LANDMARK_PENALTY_H_
#define INTRAWARP_ENGINE_TRANSFORM_LANDMARK_PENALTY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"
#include "engine/transform/landmark.h"

namespace intrawarp {

struct PlacedLandmark;

// Landmarks on a control grid, in device memory of the arena. Without any, the term is 0.
struct GridLandmarks {
  const PlacedLandmark* placed = nullptr;
  // The pull of each on its place, three float32; scratch.
  float* pulls = nullptr;
  int count = 0;
  AffineMap affine;
  Geometry grid;
};

// Leaves out landmarks outside the domain of the grid, on which it has no influence. The memory, GridLandmarksBytes,
// stays taken from the arena. Waits for the stream.
absl::StatusOr<GridLandmarks> PlaceLandmarks(const ExecContext& ctx, absl::Span<const Landmark> landmarks,
                                             const AffineMap& affine, const Geometry& grid);
int64_t GridLandmarksBytes(int64_t landmarks);

// *value += the term at the control points `grid` (three float32 each, LPS mm), and gradient[i] += its derivative by
// component i, per mm; in device memory. Nothing happens once *skip is not 0 (null: never). Stream-ordered; the order
// of sums is fixed.
absl::Status AddLandmarkPenalty(const ExecContext& ctx, const GridLandmarks& landmarks, const float* grid,
                                const int* skip, float* gradient, double* value);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_LANDMARK_PENALTY_H_
