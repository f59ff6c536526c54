// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/registration.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/registration/affine.h"
#include "engine/registration/mask_levels.h"

namespace intrawarp {
namespace {

// A linear part whose volume change is beyond this in either direction is taken for a mistake.
constexpr double kMaxVolumeChange = 1e3;
// Objectives (about 1 at a bad start) closer than this are as good as each other: a registration that starts at a
// minimum ends within its tolerances of it, on either side.
constexpr double kWorse = 1e-5;
// 2-D planes count as parallel when their normals are within this of each other (cosine).
constexpr double kParallelCosine = 1 - 1e-4;

absl::Status ValidateAffineStage(const StageOptions& stage) {
  if (stage.metric != MetricKind::kSsd && stage.metric != MetricKind::kNgf) {
    return absl::UnimplementedError("metric: rigid and affine stages take ssd and ngf");
  }
  for (const auto& [given, name] :
       {std::pair(stage.spacing_vox != 0, "spacing_vox"), std::pair(stage.bending_weight.has_value(), "bending_weight"),
        std::pair(stage.elasticity_weight.has_value(), "elasticity_weight"),
        std::pair(stage.jacobian_weight.has_value(), "jacobian_weight"),
        std::pair(stage.optimizer != DescentMethod::kLbfgs, "optimizer")}) {
    if (given) return absl::InvalidArgumentError(absl::StrCat(name, ": is for ffd alone"));
  }
  return absl::OkStatus();
}

absl::Status ValidateStage(const StageOptions& stage) {
  if (stage.levels < 0 || stage.levels > kMaxLevels) {
    return absl::InvalidArgumentError(absl::StrCat("levels: must be 0 to ", kMaxLevels));
  }
  if (stage.iterations < 0 || stage.iterations > kMaxIterations) {
    return absl::InvalidArgumentError(absl::StrCat("iterations: must be 0 to ", kMaxIterations));
  }
  if (stage.method == Method::kFfd) return absl::UnimplementedError("method: ffd is not in this version");
  return ValidateAffineStage(stage);
}

absl::Status ValidateStages(const std::vector<StageOptions>& stages) {
  if (stages.empty() || stages.size() > kMaxStages) {
    return absl::InvalidArgumentError(absl::StrCat("stages: ", stages.size(), ", must be 1 to ", kMaxStages));
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    const absl::Status valid = ValidateStage(stages[i]);
    if (!valid.ok()) return absl::Status(valid.code(), absl::StrCat("stages[", i, "].", valid.message()));
  }
  return absl::OkStatus();
}

absl::Status ValidateInitial(const char* name, const AffineMap& initial) {
  for (const auto& row : initial.m) {
    for (double entry : row) {
      if (!std::isfinite(entry)) return absl::InvalidArgumentError(absl::StrCat(name, ": an entry is not finite"));
    }
  }
  const double determinant = std::abs(Determinant(initial));
  if (!(determinant >= 1 / kMaxVolumeChange && determinant <= kMaxVolumeChange)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": determinant ", determinant, ", must be ",
                                                   1 / kMaxVolumeChange, " to ", kMaxVolumeChange));
  }
  return absl::OkStatus();
}

absl::Status ValidateMask(const char* name, const PreparedImage& image, const PreparedImage* mask) {
  if (mask == nullptr || SameGrid(mask->geometry(), image.geometry())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", SizeString(mask->geometry()),
                                                 ", is not on the grid of its image, ", SizeString(image.geometry())));
}

absl::Status ValidateContrast(const char* name, const PreparedImage& image) {
  if (image.statistics().maximum > image.statistics().minimum) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(name, ": the image is constant"));
}

// NGF takes central differences on every axis of the fixed image that is longer than one voxel.
absl::Status ValidateGradients(const std::vector<StageOptions>& stages, const Geometry& fixed) {
  const Int3 n = fixed.size;
  if (n.x != 2 && n.y != 2 && n.z != 2) return absl::OkStatus();
  for (const StageOptions& stage : stages) {
    if (stage.metric != MetricKind::kNgf) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("fixed: ngf needs gradients, and an axis of two voxels (", SizeString(fixed), ") has none"));
  }
  return absl::OkStatus();
}

absl::Status ValidateDimensions(const Geometry& fixed, const Geometry& moving) {
  if (fixed.is_2d() != moving.is_2d()) {
    return absl::UnimplementedError("registration of a 2-D image with a 3-D one");
  }
  if (!fixed.is_2d()) return absl::OkStatus();
  // Directions are of unit length to kDirectionTolerance only.
  double dot = 0, fixed2 = 0, moving2 = 0;
  for (int r = 0; r < 3; ++r) {
    dot += fixed.direction[r][2] * moving.direction[r][2];
    fixed2 += fixed.direction[r][2] * fixed.direction[r][2];
    moving2 += moving.direction[r][2] * moving.direction[r][2];
  }
  if (std::abs(dot) < kParallelCosine * std::sqrt(fixed2 * moving2)) {
    return absl::InvalidArgumentError("direction: the planes of the 2-D images are not parallel");
  }
  return absl::OkStatus();
}

absl::Status ValidateStart(const RegistrationInput& input) {
  if (input.initial.has_value()) INTRAWARP_RETURN_IF_ERROR(ValidateInitial("initial", *input.initial));
  if (input.initial_transform == nullptr) return absl::OkStatus();
  if (input.initial.has_value())
    return absl::InvalidArgumentError("initial_transform: there is an initial matrix, too");
  if (input.initial_transform->has_displacement()) {
    return absl::UnimplementedError("initial_transform: a start from a displacement field is not in this version");
  }
  return ValidateInitial("initial_transform", input.initial_transform->affine());
}

// Header alignment, and the translation that brings the centres of mass together.
std::vector<AffineMap> Starts(const RegistrationInput& input) {
  if (input.initial.has_value()) return {*input.initial};
  if (input.initial_transform != nullptr) return {input.initial_transform->affine()};
  AffineMap shift = AffineMap::Identity();
  const Vec3d d = input.moving->statistics().center_of_mass - input.fixed->statistics().center_of_mass;
  for (int r = 0; r < 3; ++r) shift.m[r][3] = d[r];
  return {AffineMap::Identity(), shift};
}

}  // namespace

absl::Status ValidateRegistration(const RegistrationInput& input) {
  INTRAWARP_RETURN_IF_ERROR(ValidateStages(input.stages));
  INTRAWARP_RETURN_IF_ERROR(ValidateStart(input));
  INTRAWARP_RETURN_IF_ERROR(ValidateMask("fixed_mask", *input.fixed, input.fixed_mask));
  INTRAWARP_RETURN_IF_ERROR(ValidateMask("moving_mask", *input.moving, input.moving_mask));
  INTRAWARP_RETURN_IF_ERROR(ValidateDimensions(input.fixed->geometry(), input.moving->geometry()));
  INTRAWARP_RETURN_IF_ERROR(ValidateGradients(input.stages, input.fixed->geometry()));
  INTRAWARP_RETURN_IF_ERROR(ValidateContrast("fixed", *input.fixed));
  return ValidateContrast("moving", *input.moving);
}

int64_t RegistrationWorkspaceBytes(const RegistrationInput& input) {
  int64_t bytes = AffineStageWorkspaceBytes();
  if (input.fixed_mask != nullptr) bytes += MaskLevelsWorkspaceBytes(*input.fixed);
  if (input.moving_mask != nullptr) bytes += MaskLevelsWorkspaceBytes(*input.moving);
  return bytes;
}

absl::StatusOr<RegistrationResult> Register(const ExecContext& ctx, const RegistrationInput& input) {
  INTRAWARP_RETURN_IF_ERROR(ValidateRegistration(input));
  ArenaScope scope(ctx.arena());
  AffineImages images{input.fixed, input.moving, {}, {}};
  INTRAWARP_ASSIGN_OR_RETURN(images.fixed_masks, BuildMaskLevels(ctx, "fixed_mask", *input.fixed, input.fixed_mask));
  INTRAWARP_ASSIGN_OR_RETURN(images.moving_masks,
                             BuildMaskLevels(ctx, "moving_mask", *input.moving, input.moving_mask));
  RegistrationResult result;
  std::vector<AffineMap> starts = Starts(input);
  std::optional<AffineMap> first_start;
  std::optional<double> after;
  for (size_t i = 0; i < input.stages.size(); ++i) {
    INTRAWARP_ASSIGN_OR_RETURN(AffineStageResult stage,
                               RunAffineStage(ctx, images, input.stages[i], static_cast<int>(i), starts));
    if (!first_start.has_value()) first_start = stage.start;
    after = stage.value;
    result.transform = Transform(stage.transform, input.fixed->geometry());
    result.stop_reason = stage.report.stop_reason;
    result.stages.push_back(std::move(stage.report));
    starts = {stage.transform};
    if (result.stop_reason == StopReason::kBudget) break;
  }
  const MetricKind metric = result.stages.back().metric;
  if (!after.has_value()) {
    INTRAWARP_ASSIGN_OR_RETURN(after, FinestObjective(ctx, images, metric, result.transform.affine()));
  }
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<double> before, FinestObjective(ctx, images, metric, *first_start));
  result.worse_than_start = before.has_value() && (!after.has_value() || *after > *before + kWorse * (1 + *before));
  return result;
}

}  // namespace intrawarp
