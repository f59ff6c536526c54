// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/landmark_penalty.h"

#include <vector>

#include "engine/base/status_macros.h"
#include "engine/transform/landmark_penalty_kernels.h"

namespace intrawarp {

absl::StatusOr<GridLandmarks> PlaceLandmarks(const ExecContext& ctx, absl::Span<const Landmark> landmarks,
                                             const AffineMap& affine, const Geometry& grid) {
  const AffineMap to_index = PhysicalToIndex(grid);
  std::vector<PlacedLandmark> placed;
  for (const Landmark& landmark : landmarks) {
    PlacedLandmark at;
    if (!MakeSplineTaps<false>(grid.size, to_index(landmark.fixed), &at.taps)) continue;
    at.rest = affine(landmark.fixed) - landmark.moving;
    at.weight = kLandmarkWeight / (landmark.sigma_mm * landmark.sigma_mm);
    placed.push_back(at);
  }
  GridLandmarks result;
  result.affine = affine;
  result.grid = grid;
  result.count = static_cast<int>(placed.size());
  if (placed.empty()) return result;
  INTRAWARP_ASSIGN_OR_RETURN(PlacedLandmark* const on_device, ctx.arena().Allocate<PlacedLandmark>(result.count));
  INTRAWARP_ASSIGN_OR_RETURN(result.pulls, ctx.arena().Allocate<float>(3 * result.count));
  INTRAWARP_RETURN_IF_ERROR(
      ctx.device().Copy(on_device, placed.data(), placed.size() * sizeof(PlacedLandmark), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  result.placed = on_device;
  return result;
}

int64_t GridLandmarksBytes(int64_t landmarks) {
  return Arena::Rounded(landmarks * sizeof(PlacedLandmark)) + Arena::Rounded(3 * landmarks * sizeof(float));
}

absl::Status AddLandmarkPenalty(const ExecContext& ctx, const GridLandmarks& landmarks, const float* grid,
                                const int* skip, float* gradient, double* value) {
  if (landmarks.count == 0) return absl::OkStatus();
  LandmarkPenaltyTask task;
  task.placed = landmarks.placed;
  task.pulls = landmarks.pulls;
  task.count = landmarks.count;
  task.affine = landmarks.affine;
  task.grid = grid;
  task.size = landmarks.grid.size;
  task.skip = skip;
  task.gradient = gradient;
  task.value = value;
  return INTRAWARP_DISPATCH(ctx, AddLandmarkPenalty, task);
}

}  // namespace intrawarp
