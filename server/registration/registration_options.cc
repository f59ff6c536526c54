// SPDX-License-Identifier: Apache-2.0
#include "server/registration/registration_options.h"

#include <cmath>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"
#include "engine/registration/stage/levels.h"
#include "server/base/names.h"
#include "server/registration/stage_messages.h"
#include "server/store/find_object.h"
#include "server/trail/audit_trail.h"
#include "server/transform/transform_messages.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

constexpr std::chrono::hours kMaxBudget{24};
constexpr double kMaxErrorLimitMm = 1e6;
constexpr int kMaxErrorPoints = 1024;

absl::StatusOr<std::vector<StageOptions>> StagesFromProto(const v1::RegistrationOptions& options) {
  if (options.stages_size() > kMaxStages) {
    return InvalidField("stages",
                        absl::StrCat(options.stages_size(), " are given, at most ", kMaxStages, " are allowed"));
  }
  if (options.stages().empty()) return AutomaticStages();
  std::vector<StageOptions> stages;
  for (int i = 0; i < options.stages_size(); ++i) {
    absl::StatusOr<StageOptions> stage = StageFromProto(options.stages(i));
    if (!stage.ok()) return Within(absl::StrCat("stages[", i, "]"), stage.status());
    stages.push_back(*stage);
  }
  return stages;
}

absl::Status InitialFromProto(const v1::RegistrationOptions& options, const TransformStore& transforms,
                              const Identity& caller, RegistrationPlan* plan) {
  if (options.has_initial_affine()) {
    absl::StatusOr<AffineMap> map = InvertibleMapFromProto(options.initial_affine());
    if (!map.ok()) return Within("initial_affine", map.status());
    plan->initial = *map;
    return absl::OkStatus();
  }
  // An empty name is as good as none, which is what proto3 clients that copy fields send.
  if (options.initial_transform().empty()) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(std::string id, ParseTransformName(options.initial_transform(), "initial_transform"));
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<const StoredTransform> stored, transforms.Find(id, caller));
  plan->initial_print = InputPrint::Of(*stored);
  const bool has_native_form = stored->transform.has_control_grid() || stored->transform.has_velocity();
  if (stored->transform.has_displacement() && !has_native_form) {
    return FieldError(absl::StatusCode::kUnimplemented, "initial_transform",
                      "a start from a displacement field is not in this version");
  }
  if (has_native_form) {
    plan->initial_transform = std::move(stored);
  } else {
    plan->initial = stored->transform.affine();
  }
  return absl::OkStatus();
}

absl::StatusOr<ErrorOutput> ErrorFromProto(const v1::ErrorRequest& from) {
  ErrorOutput error;
  error.map = from.map();
  if (from.points_size() % 3 != 0 || from.points_size() > 3 * kMaxErrorPoints) {
    return InvalidField("points",
                        absl::StrCat(from.points_size(), " numbers are given, must be three a point, at most ",
                                     kMaxErrorPoints, " points"));
  }
  for (int i = 0; i < from.points_size(); i += 3) {
    const Vec3d point{from.points(i), from.points(i + 1), from.points(i + 2)};
    if (!std::isfinite(point.x) || !std::isfinite(point.y) || !std::isfinite(point.z)) {
      return InvalidField("points", absl::StrCat("point ", i / 3, " is not finite"));
    }
    error.points.push_back(point);
  }
  return error;
}

absl::StatusOr<Vec3d> PointFromProto(const google::protobuf::RepeatedField<double>& from, absl::string_view field) {
  if (from.size() == 3) return Vec3d{from[0], from[1], from[2]};
  return InvalidField(field, absl::StrCat(from.size(), " numbers are given, must be three"));
}

absl::StatusOr<Landmark> LandmarkFromProto(const v1::Landmark& from) {
  Landmark landmark;
  INTRAWARP_ASSIGN_OR_RETURN(landmark.fixed, PointFromProto(from.fixed(), "fixed"));
  INTRAWARP_ASSIGN_OR_RETURN(landmark.moving, PointFromProto(from.moving(), "moving"));
  if (from.has_sigma_mm()) landmark.sigma_mm = from.sigma_mm();
  return landmark;
}

// The same error about the field at another path.
absl::Status Renamed(const absl::Status& status, const std::string& path) {
  absl::string_view description = status.message();
  absl::ConsumePrefix(&description, absl::StrCat(FieldOf(status), ": "));
  absl::Status renamed = FieldError(status.code(), path, description);
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    if (url != kFieldPayload) renamed.SetPayload(url, payload);
  });
  return renamed;
}

// The engine's path of a stage's option ("stages[1].levels") as the request has it ("stages[1].ffd.levels").
std::string WithMethod(const v1::RegistrationOptions& options, const std::string& path) {
  for (int i = 0; i < options.stages_size(); ++i) {
    absl::string_view option = path;
    const std::string stage = absl::StrCat("stages[", i, "]");
    if (!absl::ConsumePrefix(&option, absl::StrCat(stage, ".")) || option == "method") continue;
    const std::string& method = v1::Stage::descriptor()->FindFieldByNumber(options.stages(i).method_case())->name();
    return absl::StrCat(stage, ".", method, ".", option);
  }
  return path;
}

}  // namespace

absl::StatusOr<std::vector<Landmark>> LandmarksFromProto(
    const google::protobuf::RepeatedPtrField<v1::Landmark>& landmarks) {
  if (landmarks.size() > kMaxLandmarks) {
    return InvalidField("landmarks", absl::StrCat(landmarks.size(), " are given, at most ", kMaxLandmarks));
  }
  std::vector<Landmark> result;
  for (int i = 0; i < landmarks.size(); ++i) {
    absl::StatusOr<Landmark> landmark = LandmarkFromProto(landmarks[i]);
    if (!landmark.ok()) return Within(absl::StrCat("landmarks[", i, "]"), landmark.status());
    result.push_back(*landmark);
  }
  INTRAWARP_RETURN_IF_ERROR(ValidateLandmarks(result));
  return result;
}

void SetLandmarks(const std::vector<Landmark>& landmarks, v1::RegistrationOptions& options) {
  options.clear_landmarks();
  for (const Landmark& from : landmarks) {
    v1::Landmark& to = *options.add_landmarks();
    for (int a = 0; a < 3; ++a) to.add_fixed(from.fixed[a]);
    for (int a = 0; a < 3; ++a) to.add_moving(from.moving[a]);
    to.set_sigma_mm(from.sigma_mm);
  }
}

absl::StatusOr<RegistrationPlan> ResolveOptions(const v1::RegistrationOptions& options, const VolumeStore& volumes,
                                                const TransformStore& transforms, const Identity& caller) {
  RegistrationPlan plan;
  plan.asked = options;
  INTRAWARP_ASSIGN_OR_RETURN(plan.stages, StagesFromProto(options));
  plan.automatic = options.stages().empty();
  const auto find = [&](const std::string& name, absl::string_view field, std::shared_ptr<const StoredVolume>& to) {
    if (name.empty()) return absl::OkStatus();
    absl::StatusOr<std::shared_ptr<const StoredVolume>> volume = FindVolume(volumes, name, field, caller);
    if (volume.ok()) to = *std::move(volume);
    return volume.status();
  };
  INTRAWARP_RETURN_IF_ERROR(find(options.fixed_mask(), "fixed_mask", plan.fixed_mask));
  INTRAWARP_RETURN_IF_ERROR(find(options.moving_mask(), "moving_mask", plan.moving_mask));
  INTRAWARP_RETURN_IF_ERROR(find(options.fixed_weight(), "fixed_weight", plan.fixed_weight));
  INTRAWARP_RETURN_IF_ERROR(find(options.moving_weight(), "moving_weight", plan.moving_weight));
  INTRAWARP_RETURN_IF_ERROR(InitialFromProto(options, transforms, caller, &plan));
  if (options.has_budget()) {
    INTRAWARP_ASSIGN_OR_RETURN(plan.budget, DurationFromProto(options.budget(), "budget", kMaxBudget));
  }
  plan.best_effort = options.best_effort();
  plan.keep_deformation = options.keep_deformation();
  plan.find_missing_tissue = options.find_missing_tissue();
  INTRAWARP_ASSIGN_OR_RETURN(plan.landmarks, LandmarksFromProto(options.landmarks()));
  if (options.has_error_limit_mm()) {
    // Written so that NaN fails.
    if (!(options.error_limit_mm() > 0 && options.error_limit_mm() <= kMaxErrorLimitMm)) {
      return InvalidField("error_limit_mm", absl::StrCat("must be above 0 and at most ", kMaxErrorLimitMm));
    }
    plan.error_limit_mm = options.error_limit_mm();
  }
  absl::StatusOr<ErrorOutput> error = ErrorFromProto(options.error());
  if (!error.ok()) return Within("error", error.status());
  plan.error = *std::move(error);
  return plan;
}

std::string CostKind(absl::string_view work, const RegistrationPlan& plan, const std::optional<FieldRequest>& field) {
  const v1::RegistrationOptions& asked = plan.asked;
  std::string kind = absl::StrCat(
      work, asked.has_budget() ? "+budget" : "", asked.fixed_mask().empty() ? "" : "+fixed_mask",
      asked.moving_mask().empty() ? "" : "+moving_mask", asked.fixed_weight().empty() ? "" : "+fixed_weight",
      asked.moving_weight().empty() ? "" : "+moving_weight", plan.find_missing_tissue ? "+missing" : "",
      plan.landmarks.empty() ? "" : "+landmarks");
  if (field) absl::StrAppend(&kind, "+field", static_cast<int>(field->form));
  if (plan.automatic) absl::StrAppend(&kind, "/auto");
  for (const v1::Stage& stage : plan.asked.stages()) absl::StrAppend(&kind, "/", stage.SerializeAsString());
  return kind;
}

int64_t CostSize(const Geometry& fixed, const Geometry& moving) { return fixed.voxels() + moving.voxels(); }

absl::StatusOr<FieldRequest> ResolveField(const v1::FieldRequest& field, const RegistrationPlan& plan) {
  absl::StatusOr<FieldRequest> request = FieldRequestFromProto(field);
  if (!request.ok()) return Within("field", request.status());
  const StageOptions& last = plan.stages.back();
  if (request->form == FieldForm::kControlPoints && !std::holds_alternative<FfdOptions>(last)) {
    return InvalidField("field.encoding", "CONTROL_POINTS come from ffd as the last stage");
  }
  if (request->form == FieldForm::kVelocity && !std::holds_alternative<LogDemonsOptions>(last)) {
    return InvalidField("field.encoding", "VELOCITY comes from log_demons as the last stage");
  }
  return request;
}

PlannedStages StagesFor(const RegistrationPlan& plan, const Geometry& fixed, const Geometry& moving) {
  if (plan.automatic && IsSliceOf(fixed, moving)) return {AutomaticSliceStages(), false};
  return {plan.stages, plan.automatic};
}

RegistrationInput MakeRegistrationInput(const RegistrationPlan& plan, const PreparedImage& fixed,
                                        const PreparedImage& moving) {
  RegistrationInput input;
  input.fixed = &fixed;
  input.moving = &moving;
  if (plan.fixed_mask != nullptr) input.fixed_mask = &plan.fixed_mask->image;
  if (plan.moving_mask != nullptr) input.moving_mask = &plan.moving_mask->image;
  if (plan.fixed_weight != nullptr) input.fixed_weight = &plan.fixed_weight->image;
  if (plan.moving_weight != nullptr) input.moving_weight = &plan.moving_weight->image;
  PlannedStages planned = StagesFor(plan, fixed.geometry(), moving.geometry());
  input.stages = std::move(planned.stages);
  input.automatic = planned.automatic;
  input.keep_deformation = plan.keep_deformation;
  input.find_missing_tissue = plan.find_missing_tissue;
  input.landmarks = plan.landmarks;
  input.initial = plan.initial;
  if (plan.initial_transform != nullptr) input.initial_transform = &plan.initial_transform->transform;
  return input;
}

absl::Status InRequest(const v1::RegistrationOptions& options, const absl::Status& status) {
  const std::string path = FieldOf(status);
  const std::string name = path.substr(0, path.find_first_of(".["));
  if (name == "initial") {
    return Renamed(status, options.has_initial_affine() ? "options.initial_affine" : "options.initial_transform");
  }
  if (name == "stages") return Renamed(status, absl::StrCat("options.", WithMethod(options, path)));
  const bool is_option = v1::RegistrationOptions::descriptor()->FindFieldByName(name) != nullptr;
  return is_option ? Within("options", status) : status;
}

void AuditPlan(const RegistrationPlan& plan, const v1::RegistrationOptions& options, CallAudit& audit) {
  if (plan.fixed_mask != nullptr) audit.Digest("fixed_mask", plan.fixed_mask->content_digest);
  if (plan.moving_mask != nullptr) audit.Digest("moving_mask", plan.moving_mask->content_digest);
  if (plan.fixed_weight != nullptr) audit.Digest("fixed_weight", plan.fixed_weight->content_digest);
  if (plan.moving_weight != nullptr) audit.Digest("moving_weight", plan.moving_weight->content_digest);
  if (options.has_initial_transform()) audit.Name("initial_transform", options.initial_transform());
}

}  // namespace intrawarp::server
