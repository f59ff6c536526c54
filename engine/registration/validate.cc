// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/validate.h"

#include <cmath>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/metric/nmi.h"
#include "engine/registration/methods/method.h"
#include "engine/registration/stage/levels.h"

namespace intrawarp {
namespace {

// A linear part whose volume change is beyond this in either direction is taken for a mistake.
constexpr double kMaxVolumeChange = 1e3;
// 2-D planes count as parallel when their normals are within this of each other (cosine).
constexpr double kParallelCosine = 1 - 1e-4;
// The fewest pixels along either axis of a slice.
constexpr int kLeastSliceAxis = 8;

absl::Status Invalid(absl::string_view field, absl::string_view description) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, description);
}

absl::Status Unimplemented(absl::string_view field, absl::string_view description) {
  return FieldError(absl::StatusCode::kUnimplemented, field, description);
}

absl::Status Unmet(absl::string_view field, absl::string_view description) {
  return FieldError(absl::StatusCode::kFailedPrecondition, field, description);
}

// A deformable stage is followed by stages of its own method, and a search by ffd, too.
absl::Status ValidateOrder(const StageOptions& before, const StageOptions& stage) {
  if (!MethodOf(before).is_deformable || before.index() == stage.index()) return absl::OkStatus();
  const bool is_search = std::holds_alternative<SearchOptions>(before);
  if (is_search && std::holds_alternative<FfdOptions>(stage)) return absl::OkStatus();
  return Invalid("method", is_search ? "must be search or ffd after search"
                                     : "must be the method of the stage before, which is deformable");
}

absl::Status ValidateStages(const Geometry& fixed, const std::vector<StageOptions>& stages) {
  if (stages.empty() || stages.size() > kMaxStages) {
    return Invalid("stages", absl::StrCat(stages.size(), ", must be 1 to ", kMaxStages));
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    absl::Status valid = MethodOf(stages[i]).validate(stages[i], fixed);
    if (valid.ok() && i > 0) valid = ValidateOrder(stages[i - 1], stages[i]);
    if (!valid.ok()) return Within(absl::StrCat("stages[", i, "]"), valid);
  }
  return absl::OkStatus();
}

// Nobody asks for the stages of an automatic registration: where they do not fit the fixed image, the image is at
// fault.
absl::Status ValidateAutomaticStages(const RegistrationInput& input) {
  const Geometry& fixed = input.fixed->geometry();
  INTRAWARP_RETURN_IF_ERROR(ValidateSamples(input, "fixed", fixed.voxels()));
  const absl::Status valid = ValidateStages(fixed, input.stages);
  return valid.ok() ? valid : Unmet("fixed", absl::StrCat(SizeString(fixed), " voxels: ", valid.message()));
}

absl::Status ValidateInitial(const char* name, const AffineMap& initial) {
  for (const auto& row : initial.m) {
    for (double entry : row) {
      if (!std::isfinite(entry)) return Invalid(name, "an entry is not finite");
    }
  }
  const double determinant = std::abs(Determinant(initial));
  if (!(determinant >= 1 / kMaxVolumeChange && determinant <= kMaxVolumeChange)) {
    return Invalid(
        name, absl::StrCat("determinant ", determinant, ", must be ", 1 / kMaxVolumeChange, " to ", kMaxVolumeChange));
  }
  return absl::OkStatus();
}

absl::Status ValidateMask(const char* name, const PreparedImage& image, const PreparedImage* mask) {
  if (mask == nullptr || SameGrid(mask->geometry(), image.geometry())) return absl::OkStatus();
  return Invalid(name, absl::StrCat(SizeString(mask->geometry()), ", is not on the grid of its image, ",
                                    SizeString(image.geometry())));
}

absl::Status ValidateWeight(const char* name, const PreparedImage& image, const PreparedImage* weight) {
  if (weight == nullptr) return absl::OkStatus();
  INTRAWARP_RETURN_IF_ERROR(ValidateMask(name, image, weight));
  // Written so that NaN fails.
  const bool is_weight = weight->minimum() >= 0 && weight->maximum() <= 1;
  if (is_weight && weight->maximum() == 0) return Unmet(name, "selects no voxel");
  if (is_weight) return absl::OkStatus();
  return Invalid(name, absl::StrCat("values from ", weight->minimum(), " to ", weight->maximum(), ", must be 0 to 1"));
}

absl::Status ValidateContrast(const char* name, const PreparedImage& image) {
  if (image.statistics().maximum > image.statistics().minimum) return absl::OkStatus();
  return Unmet(name, "the image is constant");
}

// NGF takes central differences on every axis of the fixed image that is longer than one voxel.
absl::Status ValidateGradients(const std::vector<StageOptions>& stages, const Geometry& fixed) {
  const Int3 n = fixed.size;
  if (n.x != 2 && n.y != 2 && n.z != 2) return absl::OkStatus();
  for (const StageOptions& stage : stages) {
    if (MetricOf(stage) != MetricKind::kNgf) continue;
    return Unmet("fixed",
                 absl::StrCat("ngf needs gradients, and an axis of two voxels (", SizeString(fixed), ") has none"));
  }
  return absl::OkStatus();
}

// The demands on a slice that is registered to a volume.
absl::Status ValidateSlice(const Geometry& slice, const std::vector<StageOptions>& stages) {
  if (slice.size.x < kLeastSliceAxis || slice.size.y < kLeastSliceAxis) {
    return Unmet("fixed", absl::StrCat("a slice of ", SizeString(slice), " pixels, must have ", kLeastSliceAxis,
                                       " or more along both axes to find its place in a volume"));
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    if (!MethodOf(stages[i]).is_deformable) continue;
    return Unimplemented(absl::StrCat("stages[", i, "]"),
                         absl::StrCat(MethodName(stages[i]),
                                      " of a slice with a volume; a slice is registered by rigid and affine stages"));
  }
  return absl::OkStatus();
}

absl::Status ValidateDimensions(const Geometry& fixed, const Geometry& moving,
                                const std::vector<StageOptions>& stages) {
  if (!fixed.is_2d() && moving.is_2d()) {
    return Invalid("moving", "is a slice, and the fixed image a volume; exchange them: a slice is the fixed image");
  }
  if (IsSliceOf(fixed, moving)) return ValidateSlice(fixed, stages);
  if (!fixed.is_2d()) return absl::OkStatus();
  // Directions are of unit length to kDirectionTolerance only.
  double dot = 0, fixed2 = 0, moving2 = 0;
  for (int r = 0; r < 3; ++r) {
    dot += fixed.direction[r][2] * moving.direction[r][2];
    fixed2 += fixed.direction[r][2] * fixed.direction[r][2];
    moving2 += moving.direction[r][2] * moving.direction[r][2];
  }
  if (std::abs(dot) < kParallelCosine * std::sqrt(fixed2 * moving2)) {
    return Invalid("direction", "the planes of the 2-D images are not parallel");
  }
  return absl::OkStatus();
}

absl::Status ValidateStart(const RegistrationInput& input) {
  if (input.initial.has_value()) INTRAWARP_RETURN_IF_ERROR(ValidateInitial("initial", *input.initial));
  if (input.initial_transform == nullptr) return absl::OkStatus();
  if (input.initial.has_value()) return Invalid("initial_transform", "there is an initial matrix, too");
  const Transform& initial = *input.initial_transform;
  if (initial.has_displacement() && !initial.has_velocity()) {
    return Unimplemented("initial_transform", "a start from a displacement field is not in this version");
  }
  for (const StageOptions& stage : input.stages) {
    if (MethodOf(stage).starts_from(initial)) continue;
    return Unimplemented(
        "initial_transform",
        "a start of ffd from a velocity, or of log-demons from a control grid, is not in this version");
  }
  return ValidateInitial("initial_transform", input.initial_transform->affine());
}

// Nobody knows to which layer a landmark belongs, and the assignment of voxels looks at no mask of the moving image.
absl::Status ValidateSliding(const RegistrationInput& input) {
  const bool has_moving_mask = input.moving_mask != nullptr || input.moving_weight != nullptr;
  if (input.landmarks.empty() && !has_moving_mask && !input.find_missing_tissue) return absl::OkStatus();
  for (size_t i = 0; i < input.stages.size(); ++i) {
    const auto* ffd = std::get_if<FfdOptions>(&input.stages[i]);
    if (ffd == nullptr || !ffd->sliding) continue;
    return Within(absl::StrCat("stages[", i, "]"),
                  Unimplemented("sliding",
                                "together with landmarks, with a mask or weights of the moving image, or "
                                "with missing tissue it is not in this version"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateSamples(const RegistrationInput& input, absl::string_view field, int64_t samples) {
  for (const StageOptions& stage : input.stages) {
    if (MetricOf(stage) != MetricKind::kNmi || samples >= kNmiBins) continue;
    return Unmet(field,
                 absl::StrCat("nmi needs ", kNmiBins, " voxels or more, as many as its bins; there are ", samples));
  }
  return absl::OkStatus();
}

absl::Status ValidateRegistration(const RegistrationInput& input) {
  INTRAWARP_RETURN_IF_ERROR(input.automatic ? ValidateAutomaticStages(input)
                                            : ValidateStages(input.fixed->geometry(), input.stages));
  INTRAWARP_RETURN_IF_ERROR(ValidateStart(input));
  INTRAWARP_RETURN_IF_ERROR(ValidateMask("fixed_mask", *input.fixed, input.fixed_mask));
  INTRAWARP_RETURN_IF_ERROR(ValidateMask("moving_mask", *input.moving, input.moving_mask));
  INTRAWARP_RETURN_IF_ERROR(ValidateWeight("fixed_weight", *input.fixed, input.fixed_weight));
  INTRAWARP_RETURN_IF_ERROR(ValidateWeight("moving_weight", *input.moving, input.moving_weight));
  INTRAWARP_RETURN_IF_ERROR(ValidateDimensions(input.fixed->geometry(), input.moving->geometry(), input.stages));
  INTRAWARP_RETURN_IF_ERROR(ValidateLandmarks(input.landmarks));
  INTRAWARP_RETURN_IF_ERROR(ValidateSliding(input));
  if (input.find_missing_tissue && IsSliceToVolume(input)) {
    return Unimplemented("find_missing_tissue", "missing tissue of a slice in a volume is not in this version");
  }
  INTRAWARP_RETURN_IF_ERROR(ValidateGradients(input.stages, input.fixed->geometry()));
  INTRAWARP_RETURN_IF_ERROR(ValidateContrast("fixed", *input.fixed));
  INTRAWARP_RETURN_IF_ERROR(ValidateContrast("moving", *input.moving));
  INTRAWARP_RETURN_IF_ERROR(ValidateSamples(input, "fixed", input.fixed->geometry().voxels()));
  return ValidateSamples(input, "moving", input.moving->geometry().voxels());
}

}  // namespace intrawarp
