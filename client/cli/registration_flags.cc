// SPDX-License-Identifier: Apache-2.0
#include "client/cli/registration_flags.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/report_json.h"
#include "engine/base/status_macros.h"

namespace intrawarp::cli {
namespace {

constexpr const char* kFfdFlags[] = {"spacing_vox", "bending_weight", "elasticity_weight", "jacobian_weight",
                                     "optimizer"};
constexpr const char* kDemonsFlags[] = {"fluid_sigma",     "diffusion_sigma", "max_step",
                                        "velocity_update", "symmetric",       "match_intensities"};

v1::Method MethodFromName(const std::string& name) {
  for (v1::Method method : {v1::METHOD_RIGID, v1::METHOD_AFFINE, v1::METHOD_FFD, v1::METHOD_LOG_DEMONS}) {
    if (MethodName(method) == name) return method;
  }
  return v1::METHOD_UNSPECIFIED;
}

v1::Metric MetricFromName(const std::string& name) {
  for (v1::Metric metric : {v1::METRIC_SSD, v1::METRIC_NGF, v1::METRIC_NMI, v1::METRIC_LNCC}) {
    if (MetricName(metric) == name) return metric;
  }
  return v1::METRIC_UNSPECIFIED;
}

bool IsAffine(v1::Method method) { return method == v1::METHOD_RIGID || method == v1::METHOD_AFFINE; }

absl::StatusOr<std::vector<v1::Method>> ParseMethods(const std::string& list) {
  std::vector<v1::Method> methods;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(list, ','))) {
    const v1::Method method = MethodFromName(name);
    if (method == v1::METHOD_UNSPECIFIED) {
      return absl::InvalidArgumentError(
          absl::StrCat("--method: must list rigid, affine, ffd or log-demons: '", name, "'"));
    }
    methods.push_back(method);
  }
  return methods;
}

absl::Status CheckUsed(const ParsedFlags& flags, const std::string& name, bool used, const std::string& by) {
  if (!flags.Has(name) || used) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", name, ": only ", by, " uses it"));
}

void SetFfdOptions(const ParsedFlags& flags, v1::Stage* stage) {
  if (flags.Has("spacing_vox")) stage->set_spacing_vox(flags.Number("spacing_vox"));
  if (flags.Has("bending_weight")) stage->set_bending_weight(flags.Number("bending_weight"));
  if (flags.Has("elasticity_weight")) stage->set_elasticity_weight(flags.Number("elasticity_weight"));
  if (flags.Has("jacobian_weight")) stage->set_jacobian_weight(flags.Number("jacobian_weight"));
  if (flags.Has("optimizer")) {
    stage->set_optimizer(flags.String("optimizer") == "cg" ? v1::OPTIMIZER_CONJUGATE_GRADIENT : v1::OPTIMIZER_LBFGS);
  }
}

v1::VelocityUpdate UpdateFromName(const std::string& name) {
  if (name == "add") return v1::VELOCITY_UPDATE_ADD;
  return name == "bch" ? v1::VELOCITY_UPDATE_BCH : v1::VELOCITY_UPDATE_COMPOSE;
}

void SetDemonsOptions(const ParsedFlags& flags, v1::Stage* stage) {
  if (flags.Has("fluid_sigma")) stage->set_fluid_sigma(flags.Number("fluid_sigma"));
  if (flags.Has("diffusion_sigma")) stage->set_diffusion_sigma(flags.Number("diffusion_sigma"));
  if (flags.Has("max_step")) stage->set_max_step(flags.Number("max_step"));
  if (flags.Has("velocity_update")) stage->set_velocity_update(UpdateFromName(flags.String("velocity_update")));
  stage->set_symmetric(flags.Has("symmetric"));
  stage->set_match_intensities(flags.Has("match_intensities"));
}

// Whether a method compares intensities directly when nothing else is said.
bool DefaultsToSsd(v1::Method method, const ParsedFlags& flags) {
  return IsAffine(method) || (method == v1::METHOD_LOG_DEMONS && !flags.Has("match_intensities"));
}

}  // namespace

std::vector<FlagSpec> RegistrationFlagSpecs(bool method_required) {
  constexpr double kMaxInt = 1e9, kMaxSigma = 64;
  return {
      {.name = "method",
       .placeholder = "M[,M...]",
       .help = "stages in order: rigid, affine, ffd, log-demons",
       .required = method_required},
      {.name = "metric",
       .placeholder = "ssd|ngf|nmi|lncc",
       .help = "of the last stage; default: ssd for rigid, affine and log-demons, nmi for ffd",
       .choices = {"ssd", "ngf", "nmi", "lncc"}},
      {.name = "levels",
       .type = FlagType::kInteger,
       .placeholder = "N",
       .help = "pyramid levels; default: as many as the images allow; of log-demons from a velocity, 2",
       .minimum = 1,
       .maximum = kMaxInt},
      {.name = "iterations",
       .type = FlagType::kInteger,
       .placeholder = "N",
       .help = "at most, on each level",
       .minimum = 1,
       .maximum = kMaxInt},
      {.name = "spacing_vox",
       .type = FlagType::kNumber,
       .placeholder = "N",
       .help = "control-point spacing of ffd in voxels",
       .minimum = 1,
       .maximum = kMaxInt},
      {.name = "bending_weight",
       .type = FlagType::kNumber,
       .placeholder = "W",
       .help = "weight of the bending energy of ffd",
       .minimum = 0},
      {.name = "elasticity_weight",
       .type = FlagType::kNumber,
       .placeholder = "W",
       .help = "weight of the linear elasticity of ffd",
       .minimum = 0},
      {.name = "jacobian_weight",
       .type = FlagType::kNumber,
       .placeholder = "W",
       .help = "weight of the penalty on volume that shrinks below a half, of ffd",
       .minimum = 0},
      {.name = "optimizer", .placeholder = "lbfgs|cg", .help = "of ffd; default lbfgs", .choices = {"lbfgs", "cg"}},
      {.name = "fluid_sigma",
       .type = FlagType::kNumber,
       .placeholder = "S",
       .help = "smooths the updates of log-demons: standard deviation in voxels; default 2",
       .minimum = 0,
       .maximum = kMaxSigma},
      {.name = "diffusion_sigma",
       .type = FlagType::kNumber,
       .placeholder = "S",
       .help = "smooths the velocity of log-demons: standard deviation in voxels; default 0.7",
       .minimum = 0,
       .maximum = kMaxSigma},
      {.name = "max_step",
       .type = FlagType::kNumber,
       .placeholder = "N",
       .help = "longest update of log-demons before it is smoothed, in voxels; default 2",
       .minimum = 0.001,
       .maximum = 100},
      {.name = "velocity_update",
       .placeholder = "add|compose|bch",
       .help = "how an update changes the velocity of log-demons; default compose",
       .choices = {"add", "compose", "bch"}},
      {.name = "symmetric",
       .type = FlagType::kSwitch,
       .placeholder = "",
       .help = "log-demons in both directions: exchanging the images gives the inverse"},
      {.name = "match_intensities",
       .type = FlagType::kSwitch,
       .placeholder = "",
       .help = "log-demons on images of different gain and offset"},
      {.name = "fixed_mask", .placeholder = "X", .help = "count only fixed voxels where this volume is not 0"},
      {.name = "moving_mask", .placeholder = "X", .help = "count only moving voxels where this volume is not 0"},
      {.name = "initial",
       .placeholder = "transforms/ID|PATH",
       .help =
           "where to start: a matrix (.txt, 4x4, fixed to moving, LPS mm), control grid (.tfm) or velocity (.nii.gz)"},
      {.name = "budget_ms",
       .type = FlagType::kInteger,
       .placeholder = "N",
       .help = "end the optimisation after this long",
       .minimum = 1,
       .maximum = kMaxInt},
      {.name = "best_effort",
       .type = FlagType::kSwitch,
       .placeholder = "",
       .help = "with --budget_ms: the best result so far instead of an error"},
  };
}

absl::StatusOr<RegistrationFlags> ParseRegistrationFlags(const ParsedFlags& flags) {
  RegistrationFlags parsed;
  parsed.method = flags.String("method", "affine");
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<v1::Method> methods, ParseMethods(parsed.method));
  const v1::Method last = methods.back();
  for (const char* name : kFfdFlags) {
    INTRAWARP_RETURN_IF_ERROR(CheckUsed(flags, name, last == v1::METHOD_FFD, "ffd as the last stage"));
  }
  for (const char* name : kDemonsFlags) {
    INTRAWARP_RETURN_IF_ERROR(CheckUsed(flags, name, last == v1::METHOD_LOG_DEMONS, "log-demons as the last stage"));
  }
  INTRAWARP_RETURN_IF_ERROR(CheckUsed(flags, "best_effort", flags.Has("budget_ms"), "--budget_ms"));

  const v1::Metric metric = MetricFromName(flags.String("metric"));
  const bool last_is_ssd = metric == v1::METRIC_SSD || (metric == v1::METRIC_UNSPECIFIED && DefaultsToSsd(last, flags));
  for (v1::Method method : methods) {
    v1::Stage* stage = parsed.options.add_stages();
    stage->set_method(method);
    if (IsAffine(method)) stage->set_metric(last_is_ssd ? v1::METRIC_SSD : v1::METRIC_NGF);
  }
  v1::Stage* stage = parsed.options.mutable_stages(parsed.options.stages_size() - 1);
  stage->set_metric(metric);
  stage->set_levels(static_cast<int32_t>(flags.Integer("levels")));
  stage->set_iterations(static_cast<int32_t>(flags.Integer("iterations")));
  SetFfdOptions(flags, stage);
  SetDemonsOptions(flags, stage);

  if (flags.Has("budget_ms")) {
    const int64_t ms = flags.Integer("budget_ms");
    parsed.options.mutable_budget()->set_seconds(ms / 1000);
    parsed.options.mutable_budget()->set_nanos(static_cast<int32_t>(ms % 1000) * 1000000);
  }
  parsed.options.set_best_effort(flags.Has("best_effort"));
  parsed.fixed_mask = flags.String("fixed_mask");
  parsed.moving_mask = flags.String("moving_mask");
  parsed.initial = flags.String("initial");
  return parsed;
}

absl::Status CheckFieldEncoding(const ParsedFlags& flags, const v1::RegistrationOptions& options) {
  const v1::Method last = options.stages(options.stages_size() - 1).method();
  if (flags.String("field_encoding") != "velocity" || last == v1::METHOD_LOG_DEMONS) return absl::OkStatus();
  return absl::InvalidArgumentError("--field_encoding: only log-demons as the last stage has a velocity");
}

}  // namespace intrawarp::cli
