// SPDX-License-Identifier: Apache-2.0
#include "server/registration/registration_options.h"

#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/rpc/rpc_support.h"
#include "server/rpc/wire.h"

namespace intrawarp::server {
namespace {

// Unset: the method's default.
absl::StatusOr<std::optional<MetricKind>> MetricFromProto(v1::Metric metric) {
  switch (metric) {
    case v1::METRIC_UNSPECIFIED:
      return std::nullopt;
    case v1::METRIC_SSD:
      return MetricKind::kSsd;
    case v1::METRIC_NGF:
      return MetricKind::kNgf;
    case v1::METRIC_NMI:
      return MetricKind::kNmi;
    case v1::METRIC_LNCC:
      return MetricKind::kLncc;
    default:
      return absl::InvalidArgumentError(absl::StrCat("metric: ", static_cast<int>(metric), " is not a metric"));
  }
}

absl::StatusOr<DescentMethod> OptimizerFromProto(v1::Optimizer optimizer) {
  switch (optimizer) {
    case v1::OPTIMIZER_UNSPECIFIED:
    case v1::OPTIMIZER_LBFGS:
      return DescentMethod::kLbfgs;
    case v1::OPTIMIZER_CONJUGATE_GRADIENT:
      return DescentMethod::kConjugateGradient;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer: ", static_cast<int>(optimizer), " is not an optimizer"));
  }
}

absl::StatusOr<VelocityUpdate> UpdateFromProto(v1::VelocityUpdate from) {
  switch (from) {
    case v1::VELOCITY_UPDATE_ADD:
      return VelocityUpdate::kAdd;
    case v1::VELOCITY_UPDATE_UNSPECIFIED:
    case v1::VELOCITY_UPDATE_COMPOSE:
      return VelocityUpdate::kCompose;
    case v1::VELOCITY_UPDATE_BCH:
      return VelocityUpdate::kBch;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("velocity_update: ", static_cast<int>(from), " is not an update of the velocity"));
  }
}

absl::Status RefuseOptionsOfFfd(const v1::Stage& from) {
  for (const auto& [given, name] :
       {std::pair(from.spacing_vox() != 0, "spacing_vox"), std::pair(from.has_bending_weight(), "bending_weight"),
        std::pair(from.has_elasticity_weight(), "elasticity_weight"),
        std::pair(from.has_jacobian_weight(), "jacobian_weight"),
        std::pair(from.optimizer() != v1::OPTIMIZER_UNSPECIFIED, "optimizer")}) {
    if (given) return absl::InvalidArgumentError(absl::StrCat(name, ": is for FFD alone"));
  }
  return absl::OkStatus();
}

absl::Status RefuseOptionsOfLogDemons(const v1::Stage& from) {
  for (const auto& [given, name] :
       {std::pair(from.has_fluid_sigma(), "fluid_sigma"), std::pair(from.has_diffusion_sigma(), "diffusion_sigma"),
        std::pair(from.has_max_step(), "max_step"),
        std::pair(from.velocity_update() != v1::VELOCITY_UPDATE_UNSPECIFIED, "velocity_update"),
        std::pair(from.symmetric(), "symmetric"), std::pair(from.match_intensities(), "match_intensities")}) {
    if (given) return absl::InvalidArgumentError(absl::StrCat(name, ": is for LOG_DEMONS alone"));
  }
  return absl::OkStatus();
}

// 0 on the wire is unset.
absl::StatusOr<std::optional<int>> CountFromProto(const char* field, int value, int most) {
  if (value < 0 || value > most) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": is ", value, ", must be 0 to ", most));
  }
  return value == 0 ? std::nullopt : std::optional(value);
}

template <typename Options>
absl::StatusOr<Options> EffortFromProto(const v1::Stage& from) {
  Options to;
  INTRAWARP_ASSIGN_OR_RETURN(to.levels, CountFromProto("levels", from.levels(), kMaxLevels));
  INTRAWARP_ASSIGN_OR_RETURN(to.iterations, CountFromProto("iterations", from.iterations(), kMaxIterations));
  return to;
}

template <typename Options>
absl::StatusOr<StageOptions> AffineFromProto(const v1::Stage& from) {
  INTRAWARP_RETURN_IF_ERROR(RefuseOptionsOfFfd(from));
  INTRAWARP_RETURN_IF_ERROR(RefuseOptionsOfLogDemons(from));
  INTRAWARP_ASSIGN_OR_RETURN(Options to, EffortFromProto<Options>(from));
  INTRAWARP_ASSIGN_OR_RETURN(to.metric, MetricFromProto(from.metric()));
  return to;
}

absl::StatusOr<StageOptions> FfdFromProto(const v1::Stage& from) {
  INTRAWARP_RETURN_IF_ERROR(RefuseOptionsOfLogDemons(from));
  INTRAWARP_ASSIGN_OR_RETURN(FfdOptions to, EffortFromProto<FfdOptions>(from));
  INTRAWARP_ASSIGN_OR_RETURN(to.metric, MetricFromProto(from.metric()));
  if (from.spacing_vox() != 0) to.spacing_vox = from.spacing_vox();
  if (from.has_bending_weight()) to.bending_weight = from.bending_weight();
  if (from.has_elasticity_weight()) to.elasticity_weight = from.elasticity_weight();
  if (from.has_jacobian_weight()) to.jacobian_weight = from.jacobian_weight();
  INTRAWARP_ASSIGN_OR_RETURN(to.optimizer, OptimizerFromProto(from.optimizer()));
  return to;
}

absl::StatusOr<StageOptions> LogDemonsFromProto(const v1::Stage& from) {
  INTRAWARP_RETURN_IF_ERROR(RefuseOptionsOfFfd(from));
  INTRAWARP_ASSIGN_OR_RETURN(LogDemonsOptions to, EffortFromProto<LogDemonsOptions>(from));
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<MetricKind> metric, MetricFromProto(from.metric()));
  if (metric.value_or(MetricKind::kSsd) != MetricKind::kSsd) {
    return absl::UnimplementedError("metric: log-demons takes ssd alone");
  }
  if (from.has_fluid_sigma()) to.fluid_sigma = from.fluid_sigma();
  if (from.has_diffusion_sigma()) to.diffusion_sigma = from.diffusion_sigma();
  if (from.has_max_step()) to.max_step = from.max_step();
  INTRAWARP_ASSIGN_OR_RETURN(to.update, UpdateFromProto(from.velocity_update()));
  to.symmetric = from.symmetric();
  to.match_intensities = from.match_intensities();
  return to;
}

absl::StatusOr<StageOptions> StageFromProto(const v1::Stage& from) {
  switch (from.method()) {
    case v1::METHOD_RIGID:
      return AffineFromProto<RigidOptions>(from);
    case v1::METHOD_AFFINE:
      return AffineFromProto<AffineOptions>(from);
    case v1::METHOD_FFD:
      return FfdFromProto(from);
    case v1::METHOD_LOG_DEMONS:
      return LogDemonsFromProto(from);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("method: ", static_cast<int>(from.method()), " is not a method"));
  }
}

absl::StatusOr<std::vector<StageOptions>> StagesFromProto(const v1::RegistrationOptions& options) {
  if (options.stages_size() < 1 || options.stages_size() > kMaxStages) {
    return absl::InvalidArgumentError(
        absl::StrCat("stages: ", options.stages_size(), " are given, must be 1 to ", kMaxStages));
  }
  std::vector<StageOptions> stages;
  for (int i = 0; i < options.stages_size(); ++i) {
    absl::StatusOr<StageOptions> stage = StageFromProto(options.stages(i));
    if (!stage.ok()) return Within(absl::StrCat("stages[", i, "]"), stage.status());
    stages.push_back(*stage);
  }
  return stages;
}

absl::Status InitialFromProto(const v1::RegistrationOptions& options, const TransformStore& transforms,
                              RegistrationPlan* plan) {
  if (options.has_initial_matrix()) {
    absl::StatusOr<AffineMap> map = InvertibleMatrixFromProto(options.initial_matrix());
    if (!map.ok()) return Within("initial_matrix", map.status());
    plan->initial = *map;
    return absl::OkStatus();
  }
  // An empty name is as good as none, which is what proto3 clients that copy fields send.
  if (options.initial_transform().empty()) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(std::string id, ParseTransformName(options.initial_transform(), "initial_transform"));
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<const StoredTransform> stored, transforms.Find(id));
  const bool has_native_form = stored->transform.has_control_grid() || stored->transform.has_velocity();
  if (stored->transform.has_displacement() && !has_native_form) {
    return absl::UnimplementedError("initial_transform: a start from a displacement field is not in this version");
  }
  if (has_native_form) {
    plan->initial_transform = std::move(stored);
  } else {
    plan->initial = stored->transform.affine();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RegistrationPlan> ResolveOptions(const v1::RegistrationOptions& options, const VolumeStore& volumes,
                                                const TransformStore& transforms) {
  RegistrationPlan plan;
  INTRAWARP_ASSIGN_OR_RETURN(plan.stages, StagesFromProto(options));
  if (!options.fixed_mask().empty()) {
    INTRAWARP_ASSIGN_OR_RETURN(plan.fixed_mask, FindVolume(volumes, options.fixed_mask(), "fixed_mask"));
  }
  if (!options.moving_mask().empty()) {
    INTRAWARP_ASSIGN_OR_RETURN(plan.moving_mask, FindVolume(volumes, options.moving_mask(), "moving_mask"));
  }
  INTRAWARP_RETURN_IF_ERROR(InitialFromProto(options, transforms, &plan));
  if (options.has_budget()) {
    INTRAWARP_ASSIGN_OR_RETURN(plan.budget, DurationFromProto(options.budget(), "budget"));
    if (plan.budget->count() == 0) return absl::InvalidArgumentError("budget: must be above 0");
  }
  plan.best_effort = options.best_effort();
  return plan;
}

absl::StatusOr<FieldRequest> ResolveField(const v1::FieldRequest& field, const RegistrationPlan& plan) {
  absl::StatusOr<FieldRequest> request = FieldRequestFromProto(field);
  if (!request.ok()) return Prefixed(request.status(), "field");
  const StageOptions& last = plan.stages.back();
  if (request->form == FieldForm::kControlPoints && !std::holds_alternative<FfdOptions>(last)) {
    return absl::InvalidArgumentError("field.encoding: CONTROL_POINTS come from FFD as the last stage");
  }
  if (request->form == FieldForm::kVelocity && !std::holds_alternative<LogDemonsOptions>(last)) {
    return absl::InvalidArgumentError("field.encoding: VELOCITY comes from LOG_DEMONS as the last stage");
  }
  return request;
}

RegistrationInput MakeRegistrationInput(const RegistrationPlan& plan, const PreparedImage& fixed,
                                        const PreparedImage& moving) {
  RegistrationInput input;
  input.fixed = &fixed;
  input.moving = &moving;
  if (plan.fixed_mask != nullptr) input.fixed_mask = &plan.fixed_mask->image;
  if (plan.moving_mask != nullptr) input.moving_mask = &plan.moving_mask->image;
  input.stages = plan.stages;
  input.initial = plan.initial;
  if (plan.initial_transform != nullptr) input.initial_transform = &plan.initial_transform->transform;
  return input;
}

absl::Status InRequest(const absl::Status& status) {
  for (const char* field : {"stages", "fixed_mask", "moving_mask", "initial", "budget"}) {
    if (absl::StartsWith(status.message(), field)) return Within("options", status);
  }
  return status;
}

absl::StatusOr<std::shared_ptr<const StoredVolume>> FindVolume(const VolumeStore& volumes, const std::string& name,
                                                               absl::string_view field) {
  INTRAWARP_ASSIGN_OR_RETURN(std::string id, ParseVolumeName(name, field));
  return volumes.Find(id);
}

absl::StatusOr<AffineMap> InvertibleMatrixFromProto(const v1::Matrix& from) {
  INTRAWARP_ASSIGN_OR_RETURN(AffineMap map, MatrixFromProto(from));
  if (IsSingular(map)) return absl::InvalidArgumentError("values: the matrix is singular");
  return map;
}

}  // namespace intrawarp::server
