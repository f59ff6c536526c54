// SPDX-License-Identifier: Apache-2.0
// ffd where tissue slides along tissue: organs along the wall of the chest, say. One smooth deformation smears the jump
// of the displacement over several control points, on both sides. Here the image has two layers, each with a smooth
// deformation of its own, and every voxel belongs to one of them.
//
//  1. A deformation that is there already (a search before, or else an ffd stage, has made it) shows which parts move
//     alike: its displacements are put into two groups (k-means), places with structure first.
//  2. An ffd stage for each layer, under a mask of the layer.
//  3. Each voxel takes the layer that explains its intensity better, so that the boundary between layers is short
//     (image/two_regions.h). Steps 2 and 3 repeat kSlidingRounds times.
//
// The result is a control grid with a node at each corner of the voxels: of the control points of its layer, so that
// the displacement jumps within two voxels. A jump along the boundary neither folds nor stretches; where the boundary,
// which has steps of a voxel, lies across the jump, the result is smoothed until it does not fold (fold_smoothing.h).
//
// Where the displacements of both groups differ by less than a voxel, or a layer has too little overlap, nothing
// slides, and ffd by itself gives the result. The fixed mask says which voxels have a part in all steps; masks of the
// moving image are refused (validate.cc), since nothing here looks at them.
#ifndef INTRAWARP_ENGINE_REGISTRATION_METHODS_SLIDING_H_
#define INTRAWARP_ENGINE_REGISTRATION_METHODS_SLIDING_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/vec.h"
#include "engine/image/pyramid.h"
#include "engine/registration/methods/method.h"

namespace intrawarp {

inline constexpr int kSlidingRounds = 4;

// The ffd stage by itself, and its objective, which evaluates on a grid of a voxel (method.h).
struct FfdFunctions {
  absl::StatusOr<StageResult> (*run)(const ExecContext& ctx, const StageTask& task);
  absl::StatusOr<std::optional<double>> (*objective)(const ExecContext& ctx, const RegistrationImages& images,
                                                     const StageOptions& options, const Transform& transform);
};

// A stage of FfdOptions with `sliding`. The report's last level belongs to the layers: its iterations are the rounds,
// and its values the metric before and after all of them. The report always has second_layer_fraction. A budget that
// ends it gives the layers of the last whole round, or what ffd by itself gives. Errors and checkpoints as Register
// (registration.h). Waits for the stream.
absl::StatusOr<StageResult> RunSliding(const ExecContext& ctx, const StageTask& task, const FfdFunctions& ffd);

// The bytes that RunSliding takes from the arena while no ffd stage runs, and beside one.
struct SlidingBytes {
  int64_t between = 0;
  int64_t beside = 0;
};
SlidingBytes SlidingWorkspaceBytes(const PreparedImage& fixed);

// Two groups of vectors, by k-means with weights from 0, an entry a vector: at first the vectors longer than the root
// mean square are the second group (true). Absent where a group has no weight, or their means are less than `least`
// apart.
std::optional<std::vector<bool>> TwoGroups(absl::Span<const Vec3f> vectors, absl::Span<const float> weights,
                                           double least);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_METHODS_SLIDING_H_
