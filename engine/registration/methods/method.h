// SPDX-License-Identifier: Apache-2.0
// The methods of registration, each as a table of functions. A new method is a file with its table (`kFfdMethod` of
// ffd.h, for example), its options in stage.h, and an entry in method.cc. Thread safety: all tables are constants.
// Internal.
#ifndef INTRAWARP_ENGINE_REGISTRATION_METHODS_METHOD_H_
#define INTRAWARP_ENGINE_REGISTRATION_METHODS_METHOD_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/device/exec_context.h"
#include "engine/image/pyramid.h"
#include "engine/registration/stage/coarse_hook.h"
#include "engine/registration/stage/levels.h"
#include "engine/registration/stage/stage.h"
#include "engine/transform/transform.h"

namespace intrawarp {

// How long a stage of ffd looks, by what it continues: as long as one that continues nothing; an earlier stage of its
// registration; another registration, as a frame does.
enum class Effort { kWhole, kAfterStage, kAfterRegistration };

// One stage of a pipeline, ready to run.
struct StageTask {
  const RegistrationImages& images;
  // The options of the method, resolved.
  const StageOptions& options;
  // The stage's place in the pipeline, for Progress.
  int index = 0;
  // Where to start; fixed to moving, LPS mm.
  AffineMap start = AffineMap::Identity();
  // The transform that a deformable stage continues when it has the stage's native form (control grid, velocity); null:
  // none.
  const Transform* initial = nullptr;
  // With `initial`.
  Effort effort = Effort::kWhole;
  // A deformable stage of several levels calls it before the finest one, unless it was stopped; null: nobody asks.
  const CoarseHook* coarse = nullptr;
};

struct StageResult {
  // Its domain is the fixed image's grid; its memory is freed in the order of the context's stream.
  Transform transform{AffineMap::Identity()};
  // The method's objective (see Method) of the transform, when the run has it at hand.
  std::optional<double> value;
  StageReport report;
};

// Every function takes options of its method. All but validate and resolved take them resolved.
struct Method {
  // The name that users know, "ffd" for example.
  absl::string_view name;
  // The result is more than a matrix. A deformable stage is followed by stages of its own method alone, and answers
  // with its native form even when it has no time to run.
  bool is_deformable;
  // The options with nothing set.
  StageOptions unset;

  // Whether a stage may start from `transform`: it is affine, has the native form, or only its affine part is used.
  bool (*starts_from)(const Transform& transform);
  // Finds what is wrong before work starts. INVALID_ARGUMENT: a value out of range; UNIMPLEMENTED: a metric that the
  // method lacks. Both name their field ("levels").
  absl::Status (*validate)(const StageOptions& options, const Geometry& fixed);
  // Fills in the defaults, but for those that masks, images and starts decide: levels, and efforts and the matching of
  // log-demons.
  StageOptions (*resolved)(const StageOptions& options, const Geometry& fixed);
  // Device memory that run and objective take from the arena.
  int64_t (*workspace_bytes)(const Device& device, const PreparedImage& fixed, const PreparedImage& moving,
                             const StageOptions& options);
  // The bytes that run has taken from the arena when it calls task.coarse. The transform of the call holds no more
  // device memory than the result's. Null for a method that is not deformable.
  int64_t (*coarse_bytes)(const PreparedImage& fixed, const StageOptions& options);
  // Device memory that the result's transform holds at most.
  int64_t (*result_bytes)(const Geometry& fixed, const StageOptions& options);
  // Device memory that run's transforms hold at the same time, at most: the result, and others on the way to it.
  int64_t (*held_bytes)(const Geometry& fixed, const StageOptions& options);
  // Errors and checkpoints as Register (registration.h). Waits for the stream.
  absl::StatusOr<StageResult> (*run)(const ExecContext& ctx, const StageTask& task);
  // The metric at the finest level, without penalties and landmarks, in a unit where a bad start is about 1; absent
  // where it is undefined (too little overlap, for example). Waits for the stream.
  absl::StatusOr<std::optional<double>> (*objective)(const ExecContext& ctx, const RegistrationImages& images,
                                                     const StageOptions& options, const Transform& transform);
};

// Every method, in the order of the alternatives of StageOptions.
absl::Span<const Method* const> Methods();

const Method& MethodOf(const StageOptions& options);

// The options with levels set, where the method has them.
StageOptions WithLevels(StageOptions options, int levels);

// UNIMPLEMENTED "metric: ..." for mind, which rigid and affine do not have yet.
absl::Status ValidateMetric(std::optional<MetricKind> metric);
// INVALID_ARGUMENT "levels: ..." and "iterations: ..." when a value that is set is out of the limits of stage.h.
absl::Status ValidateEffort(std::optional<int> levels, std::optional<int> iterations);
// INVALID_ARGUMENT naming `field` when `value` is set and not in [low, high].
absl::Status ValidateRange(absl::string_view field, std::optional<double> value, double low, double high);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_METHODS_METHOD_H_
