// SPDX-License-Identifier: Apache-2.0
#include "server/registration/stage_messages.h"

#include <optional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

// An enum value that this version does not know.
absl::Status Unknown(absl::string_view field, int value) {
  return FieldError(absl::StatusCode::kUnimplemented, field, absl::StrCat("value ", value, " is not in this version"));
}

// nullopt: the method's default.
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
    case v1::METRIC_MIND:
      return MetricKind::kMind;
    default:
      return Unknown("metric", metric);
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
      return Unknown("optimizer", optimizer);
  }
}

v1::Optimizer OptimizerToProto(DescentMethod optimizer) {
  return optimizer == DescentMethod::kLbfgs ? v1::OPTIMIZER_LBFGS : v1::OPTIMIZER_CONJUGATE_GRADIENT;
}

absl::StatusOr<VelocityUpdate> UpdateFromProto(v1::VelocityUpdate update) {
  switch (update) {
    case v1::VELOCITY_UPDATE_ADD:
      return VelocityUpdate::kAdd;
    case v1::VELOCITY_UPDATE_UNSPECIFIED:
    case v1::VELOCITY_UPDATE_COMPOSE:
      return VelocityUpdate::kCompose;
    case v1::VELOCITY_UPDATE_BCH:
      return VelocityUpdate::kBch;
    default:
      return Unknown("velocity_update", update);
  }
}

v1::VelocityUpdate UpdateToProto(VelocityUpdate update) {
  switch (update) {
    case VelocityUpdate::kAdd:
      return v1::VELOCITY_UPDATE_ADD;
    case VelocityUpdate::kCompose:
      return v1::VELOCITY_UPDATE_COMPOSE;
    case VelocityUpdate::kBch:
      return v1::VELOCITY_UPDATE_BCH;
  }
  return v1::VELOCITY_UPDATE_UNSPECIFIED;
}

absl::StatusOr<std::optional<VelocityGrid>> VelocityGridFromProto(v1::VelocityGrid grid) {
  switch (grid) {
    case v1::VELOCITY_GRID_UNSPECIFIED:
      return std::nullopt;
    case v1::VELOCITY_GRID_FULL:
      return VelocityGrid::kFull;
    case v1::VELOCITY_GRID_HALF:
      return VelocityGrid::kHalf;
    default:
      return Unknown("velocity_grid", grid);
  }
}

// levels and iterations, which every method has.
template <typename Message, typename Options>
void EffortFromProto(const Message& from, Options& to) {
  if (from.has_levels()) to.levels = from.levels();
  if (from.has_iterations()) to.iterations = from.iterations();
}

template <typename Options, typename Message>
void EffortToProto(const Options& from, Message& to) {
  if (from.levels) to.set_levels(*from.levels);
  if (from.iterations) to.set_iterations(*from.iterations);
}

template <typename Options, typename Message>
absl::StatusOr<StageOptions> LinearFromProto(const Message& from) {
  Options to;
  EffortFromProto(from, to);
  INTRAWARP_ASSIGN_OR_RETURN(to.metric, MetricFromProto(from.metric()));
  return to;
}

absl::StatusOr<StageOptions> FfdFromProto(const v1::FfdStage& from) {
  FfdOptions to;
  EffortFromProto(from, to);
  INTRAWARP_ASSIGN_OR_RETURN(to.metric, MetricFromProto(from.metric()));
  if (from.has_spacing_vox()) to.spacing_vox = from.spacing_vox();
  if (from.has_bending_weight()) to.bending_weight = from.bending_weight();
  if (from.has_elasticity_weight()) to.elasticity_weight = from.elasticity_weight();
  if (from.has_jacobian_weight()) to.jacobian_weight = from.jacobian_weight();
  if (from.has_total_variation_weight()) to.total_variation_weight = from.total_variation_weight();
  INTRAWARP_ASSIGN_OR_RETURN(to.optimizer, OptimizerFromProto(from.optimizer()));
  to.sliding = from.sliding();
  return to;
}

absl::StatusOr<StageOptions> LogDemonsFromProto(const v1::LogDemonsStage& from) {
  LogDemonsOptions to;
  EffortFromProto(from, to);
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<MetricKind> metric, MetricFromProto(from.metric()));
  if (metric.value_or(MetricKind::kSsd) != MetricKind::kSsd) {
    return FieldError(absl::StatusCode::kUnimplemented, "metric", "log-demons takes SSD alone");
  }
  if (from.has_fluid_sigma()) to.fluid_sigma = from.fluid_sigma();
  if (from.has_diffusion_sigma()) to.diffusion_sigma = from.diffusion_sigma();
  if (from.has_max_step()) to.max_step = from.max_step();
  if (from.has_weak_gradient()) to.weak_gradient = from.weak_gradient();
  INTRAWARP_ASSIGN_OR_RETURN(to.update, UpdateFromProto(from.velocity_update()));
  to.symmetric = from.symmetric();
  if (from.has_match_intensities()) to.match_intensities = from.match_intensities();
  INTRAWARP_ASSIGN_OR_RETURN(to.velocity_grid, VelocityGridFromProto(from.velocity_grid()));
  if (from.has_finest_iterations()) to.finest_iterations = from.finest_iterations();
  return to;
}

StageOptions SearchFromProto(const v1::SearchStage& from) {
  SearchOptions to;
  if (from.has_node_mm()) to.node_mm = from.node_mm();
  if (from.has_range_mm()) to.range_mm = from.range_mm();
  return to;
}

struct ToMessage {
  v1::Stage& stage;

  void operator()(const RigidOptions& from) const { Linear(from, *stage.mutable_rigid()); }
  void operator()(const AffineOptions& from) const { Linear(from, *stage.mutable_affine()); }
  void operator()(const FfdOptions& from) const {
    v1::FfdStage& to = *stage.mutable_ffd();
    Linear(from, to);
    if (from.spacing_vox) to.set_spacing_vox(*from.spacing_vox);
    if (from.bending_weight) to.set_bending_weight(*from.bending_weight);
    if (from.elasticity_weight) to.set_elasticity_weight(*from.elasticity_weight);
    if (from.jacobian_weight) to.set_jacobian_weight(*from.jacobian_weight);
    if (from.total_variation_weight) to.set_total_variation_weight(*from.total_variation_weight);
    to.set_optimizer(OptimizerToProto(from.optimizer));
    to.set_sliding(from.sliding);
  }
  void operator()(const LogDemonsOptions& from) const {
    v1::LogDemonsStage& to = *stage.mutable_log_demons();
    EffortToProto(from, to);
    to.set_metric(v1::METRIC_SSD);
    if (from.fluid_sigma) to.set_fluid_sigma(*from.fluid_sigma);
    if (from.diffusion_sigma) to.set_diffusion_sigma(*from.diffusion_sigma);
    if (from.max_step) to.set_max_step(*from.max_step);
    if (from.weak_gradient) to.set_weak_gradient(*from.weak_gradient);
    to.set_velocity_update(UpdateToProto(from.update));
    to.set_symmetric(from.symmetric);
    if (from.match_intensities) to.set_match_intensities(*from.match_intensities);
    if (from.finest_iterations) to.set_finest_iterations(*from.finest_iterations);
    if (from.velocity_grid) {
      to.set_velocity_grid(*from.velocity_grid == VelocityGrid::kHalf ? v1::VELOCITY_GRID_HALF
                                                                      : v1::VELOCITY_GRID_FULL);
    }
  }
  void operator()(const SearchOptions& from) const {
    v1::SearchStage& to = *stage.mutable_search();
    if (from.node_mm) to.set_node_mm(*from.node_mm);
    if (from.range_mm) to.set_range_mm(*from.range_mm);
  }

  template <typename Options, typename Message>
  void Linear(const Options& from, Message& to) const {
    EffortToProto(from, to);
    if (from.metric) to.set_metric(MetricToProto(*from.metric));
  }
};

absl::StatusOr<StageOptions> MethodFromProto(const v1::Stage& from) {
  switch (from.method_case()) {
    case v1::Stage::kRigid:
      return LinearFromProto<RigidOptions>(from.rigid());
    case v1::Stage::kAffine:
      return LinearFromProto<AffineOptions>(from.affine());
    case v1::Stage::kFfd:
      return FfdFromProto(from.ffd());
    case v1::Stage::kLogDemons:
      return LogDemonsFromProto(from.log_demons());
    case v1::Stage::kSearch:
      return SearchFromProto(from.search());
    case v1::Stage::METHOD_NOT_SET:
      break;
  }
  return InvalidField("method", "is not set, or is not one of this version");
}

}  // namespace

v1::Metric MetricToProto(MetricKind metric) {
  switch (metric) {
    case MetricKind::kSsd:
      return v1::METRIC_SSD;
    case MetricKind::kNmi:
      return v1::METRIC_NMI;
    case MetricKind::kLncc:
      return v1::METRIC_LNCC;
    case MetricKind::kNgf:
      return v1::METRIC_NGF;
    case MetricKind::kMind:
      return v1::METRIC_MIND;
  }
  return v1::METRIC_UNSPECIFIED;
}

absl::StatusOr<StageOptions> StageFromProto(const v1::Stage& from) {
  absl::StatusOr<StageOptions> stage = MethodFromProto(from);
  if (stage.ok() || from.method_case() == v1::Stage::METHOD_NOT_SET) return stage;
  return Within(v1::Stage::descriptor()->FindFieldByNumber(from.method_case())->name(), stage.status());
}

v1::Stage StageToProto(const StageOptions& from) {
  v1::Stage to;
  std::visit(ToMessage{to}, from);
  return to;
}

}  // namespace intrawarp::server
