// SPDX-License-Identifier: Apache-2.0
// Registration of two prepared images: a pipeline of stages, each starting from the result of the one before.
#ifndef INTRAWARP_ENGINE_REGISTRATION_REGISTRATION_H_
#define INTRAWARP_ENGINE_REGISTRATION_REGISTRATION_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/image/pyramid.h"
#include "engine/quality/missing_tissue.h"
#include "engine/registration/choose/choice.h"
#include "engine/registration/stage/coarse_hook.h"
#include "engine/registration/stage/stage.h"
#include "engine/registration/start/slice_pose.h"
#include "engine/registration/start/starts.h"
#include "engine/transform/landmark.h"
#include "engine/transform/transform.h"

namespace intrawarp {

struct RegistrationInput {
  const PreparedImage* fixed = nullptr;
  const PreparedImage* moving = nullptr;
  // On their images' grids; a mask voxel counts where the image is not 0. Null: no mask.
  const PreparedImage* fixed_mask = nullptr;
  const PreparedImage* moving_mask = nullptr;
  std::vector<StageOptions> stages;
  // Fixed to moving, LPS mm. Unset: the winner of a search among header alignment, the centres of mass and rotations
  // about them (starts.h).
  std::optional<AffineMap> initial;
  // A start instead of `initial`: its affine part starts the first stage; its control grid or velocity is continued by
  // the first deformable stage, whose method must be the one that made it (ffd.h, log_demons.h). Null: none.
  const Transform* initial_transform = nullptr;
  // Called at most once: before the finest level of the last stage, when that is deformable and runs another level
  // before. It changes no bit of the result. Not called with `automatic`, where a deformation may be taken out again.
  // Unset: no coarse transform is wanted.
  std::optional<CoarseHook> coarse = std::nullopt;
  // Metrics and weights of `stages`, which are AutomaticStages(), are chosen by the images (automatic.h).
  bool automatic = false;
  // Before the registration, looks for tissue that only one image shows (missing_tissue.h) at the result of a discrete
  // search (search.h) from the same start, and leaves it out. Where nothing is missing the result is the same, bit for
  // bit. Not for a slice in a volume.
  bool find_missing_tissue = false;
  // Missing nodes of the fixed image's domain, which count in no metric; on a ProbeGrid of the fixed image. Null: none.
  const MissingTissue* left_out = nullptr;
  // Pairs of points that belong together, in addition to what the images say (transform/landmark.h).
  std::vector<Landmark> landmarks = {};
  // With `automatic`: a deformation that the gate rejects (deformation_gate.h) is the answer all the same. Deformations
  // of named stages are judged by the caller.
  bool keep_deformation = false;
  // On their images' grids, 0 to 1, kept as 255ths (image/volume.h): how much each voxel counts in what a stage
  // optimises. A mask and missing tissue still leave voxels out. The overlap, the intensity relation and the verdict
  // count every voxel whose weight is above 0 alike. Null: all are 1.
  const PreparedImage* fixed_weight = nullptr;
  const PreparedImage* moving_weight = nullptr;
};

struct RegistrationResult {
  // With a control grid after an ffd stage, a velocity after a log-demons stage; its memory is freed in the order of
  // the context's stream. Its domain is the fixed image's grid.
  Transform transform{AffineMap::Identity()};
  StopReason stop_reason = StopReason::kConverged;
  std::vector<StageReport> stages;
  // The search of the start; absent where one was given. A first stage that is deformable starts from header alignment
  // (or the centres of mass) as proposed where that won, and any other first stage from the winner as optimised.
  std::optional<StartReport> starts;
  // The objective of the last stage at the finest level is clearly above that at the start of the first stage, or is
  // undefined (too little overlap) where the start had one.
  bool worse_than_start = false;
  // For a slice in a volume: how well the last metric sees its pose at the result. Absent where the objective is
  // undefined there, and for other images.
  std::optional<SlicePose> slice_pose;
  // With `automatic`: what was chosen, and why.
  std::optional<Choice> choice;
  // With find_missing_tissue: what is missing, without the margin that was left out with it. Absent where the search
  // has no result, or a budget ended it.
  std::optional<MissingTissue> missing_tissue;
};

// Whether the images are a slice and a volume. Then every stage is rigid or affine (affine.h), and `automatic` is
// refused. AutomaticSliceStages() take its place: a rigid stage with NMI.
bool IsSliceToVolume(const RegistrationInput& input);
std::vector<StageOptions> AutomaticSliceStages();

// An automatic registration as stages: an affine one, a search and two of ffd, of whose results the better remains,
// with metrics that every input allows. The last gives the form of its result.
std::vector<StageOptions> AutomaticStages();
// Pipelines that together run all that an automatic registration may try on such a fixed image: the affine metrics
// (after a rigid one with the metric of the search of a start, where that is another), and one deformation each. They
// are valid wherever AutomaticStages() are, and RegistrationWorkspaceBytes suffices for them.
std::vector<std::vector<StageOptions>> AutomaticPipelines(const Geometry& fixed);

// Device memory that Register takes from the arena of a context on `device`, for a valid input.
int64_t RegistrationWorkspaceBytes(const Device& device, const RegistrationInput& input);
// Device memory that the result's transform holds at most, for valid stages and a fixed image on `fixed`; a little less
// when a budget ends an ffd stage early. `automatic` is as in RegistrationInput.
int64_t RegistrationResultBytes(const std::vector<StageOptions>& stages, bool automatic, const Geometry& fixed);
int64_t RegistrationResultBytes(const RegistrationInput& input);
// The same after one stage.
int64_t StageResultBytes(const StageOptions& stage, const Geometry& fixed);
// Device memory that all transforms of Register hold at the same time, at most. At the end of a named stage there are
// its result and the one that it started from.
int64_t RegistrationMemoryBytes(const std::vector<StageOptions>& stages, bool automatic, bool find_missing_tissue,
                                const Geometry& fixed);
int64_t RegistrationMemoryBytes(const RegistrationInput& input);

// Validates the input (validate.h) and runs the stages on the images through their windows (image/window.h). Looks at
// ctx.Checkpoint between iterations (on CUDA every few): kStop returns the best so far with stop_reason kBudget,
// kCancel returns CANCELLED. A stage without time is left out, but a deformable one still gives its native form
// (control grid, velocity) of what it would have started from. FAILED_PRECONDITION when the images (or masks) do not
// overlap enough, a mask selects nothing, or the objective is undefined (affine.h). Waits for the stream.
absl::StatusOr<RegistrationResult> Register(const ExecContext& ctx, const RegistrationInput& input);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_REGISTRATION_H_
