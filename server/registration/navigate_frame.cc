// SPDX-License-Identifier: Apache-2.0
#include "server/registration/navigate_frame.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/registration/validate.h"
#include "server/rpc/job_support.h"
#include "server/rpc/rpc_support.h"

namespace intrawarp::server {
namespace {

constexpr int kDefaultPending = 2;
constexpr int kMaxPending = 4;

// An error about the options or the field, whose path is relative to the config, as the client finds them.
absl::Status InConfig(const absl::Status& status) {
  const absl::Status in_config = InRequest(status);
  const bool is_relative =
      absl::StartsWith(in_config.message(), "options") || absl::StartsWith(in_config.message(), "field.");
  return is_relative ? Within("config", in_config) : in_config;
}

absl::Status ValidateRegion(const FieldRequest& field, const Geometry& fixed) {
  const absl::Status status = FieldGrid(field, fixed).status();
  return status.ok() ? status : Prefixed(status, "field");
}

// On CUDA the upload is a step of its own, so that its time can be told from that of preparing.
absl::StatusOr<const void*> UploadPixels(const ExecContext& ctx, NavigateFrame& frame) {
  if (!ctx.is_cuda()) return frame.memory->as<const void>();
  PhaseTimer timer(frame.latency, Phase::kUpload);
  INTRAWARP_ASSIGN_OR_RETURN(void* pixels, ctx.arena().AllocateBytes(frame.total_bytes));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(pixels, frame.memory->as<char>(), frame.total_bytes, ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return pixels;
}

absl::StatusOr<PreparedImage> PrepareFrame(const ExecContext& ctx, NavigateFrame& frame) {
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const void* pixels, UploadPixels(ctx, frame));
  PhaseTimer timer(frame.latency, Phase::kPrepare);
  absl::StatusOr<PreparedImage> image = PreparedImage::Prepare(ctx, pixels, frame.pixel_type, frame.rescale.slope,
                                                               frame.rescale.intercept, frame.geometry);
  frame.memory.reset();
  return image;
}

void StartFrom(const Transform& transform, RegistrationInput* input) {
  input->initial.reset();
  input->initial_transform = &transform;
}

}  // namespace

absl::StatusOr<NavigateSetup> ResolveNavigateConfig(const ServerContext& context, const v1::NavigateConfig& config) {
  NavigateSetup setup;
  if (config.fixed().empty() == config.moving().empty()) {
    return absl::InvalidArgumentError("fixed: exactly one of fixed and moving must be given");
  }
  setup.resident_is_fixed = !config.fixed().empty();
  if (setup.resident_is_fixed) {
    INTRAWARP_ASSIGN_OR_RETURN(setup.resident, FindVolume(context.volumes, config.fixed(), "fixed"));
  } else {
    INTRAWARP_ASSIGN_OR_RETURN(setup.resident, FindVolume(context.volumes, config.moving(), "moving"));
  }
  absl::StatusOr<RegistrationPlan> plan = ResolveOptions(config.options(), context.volumes, context.transforms);
  if (!plan.ok()) return InRequest(plan.status());
  setup.plan = *std::move(plan);
  if (config.has_field()) {
    INTRAWARP_ASSIGN_OR_RETURN(setup.field, ResolveField(config.field(), setup.plan));
    // Of frames that are the fixed image each has a grid of its own.
    if (setup.resident_is_fixed) {
      INTRAWARP_RETURN_IF_ERROR(ValidateRegion(*setup.field, setup.resident->image.geometry()));
    }
  }
  if (config.max_pending() < 0 || config.max_pending() > kMaxPending) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_pending: is ", config.max_pending(), ", must be 0 to ", kMaxPending));
  }
  setup.max_pending = config.max_pending() == 0 ? kDefaultPending : config.max_pending();
  return setup;
}

absl::Status AdmitFrame(ServerContext& context, const v1::FrameHeader& header, NavigateFrame& frame) {
  PhaseTimer timer(frame.latency, Phase::kAdmit);
  absl::StatusOr<Geometry> geometry = GeometryFromProto(header.geometry());
  if (!geometry.ok()) return Prefixed(geometry.status(), "geometry");
  frame.geometry = *geometry;
  INTRAWARP_ASSIGN_OR_RETURN(frame.pixel_type, PixelTypeFromProto(header.pixel_type()));
  INTRAWARP_ASSIGN_OR_RETURN(frame.rescale, RescaleFromProto(header.rescale_slope(), header.rescale_intercept()));
  absl::StatusOr<int64_t> bytes = ImageBytes(frame.geometry, BytesPerPixel(frame.pixel_type));
  if (!bytes.ok()) return Prefixed(bytes.status(), "geometry");
  if (header.total_bytes() != *bytes) {
    return absl::InvalidArgumentError(absl::StrCat("total_bytes: is ", header.total_bytes(), ", must be ", *bytes,
                                                   " for ", SizeString(frame.geometry), " voxels of this type"));
  }
  if (*bytes > context.limits.max_volume_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("total_bytes: is ", *bytes, ", at most ", context.limits.max_volume_bytes, " are allowed"));
  }
  frame.total_bytes = *bytes;
  INTRAWARP_ASSIGN_OR_RETURN(frame.memory, LeasePinned(context, *bytes));
  return absl::OkStatus();
}

int64_t FrameJobBytes(const Device& device, const NavigateFrame& frame) {
  const int64_t upload =
      device.kind() == DeviceKind::kCuda ? static_cast<int64_t>(Arena::Rounded(frame.total_bytes)) : 0;
  return upload + PreparedImage::WorkspaceBytes(frame.geometry, frame.pixel_type);
}

absl::Status RegisterFrame(const ExecContext& ctx, const NavigateSetup& setup, const Transform* initial,
                           JobControl& control, const FrameHooks& hooks, NavigateFrame& frame) {
  if (control.cancelled()) return control.CancelStatus();
  absl::StatusOr<PreparedImage> image = PrepareFrame(ctx, frame);
  if (!image.ok()) return Prefixed(image.status(), "frame");
  const PreparedImage& resident = setup.resident->image;
  RegistrationTask task;
  task.input = setup.resident_is_fixed ? MakeRegistrationInput(setup.plan, resident, *image)
                                       : MakeRegistrationInput(setup.plan, *image, resident);
  if (initial != nullptr) StartFrom(*initial, &task.input);
  task.reserve = hooks.reserve;
  task.budget = setup.plan.budget;
  task.best_effort = setup.plan.best_effort;
  absl::Status valid = ValidateRegistration(task.input);
  if (valid.ok() && setup.field) valid = ValidateRegion(*setup.field, task.input.fixed->geometry());
  if (!valid.ok()) return InConfig(valid);
  INTRAWARP_ASSIGN_OR_RETURN(
      Buffer workspace,
      ctx.device().Allocate(Arena::Rounded(RegistrationJobBytes(ctx.device(), task.input)), ctx.stream()));
  Arena arena(std::move(workspace));
  const ExecContext registration_ctx(ctx.device(), ctx.stream(), arena,
                                     [&ctx](const Progress& progress) { return ctx.Checkpoint(progress); });
  if (hooks.on_transform) {
    task.on_transform = [&](const Transform& transform) { return hooks.on_transform(registration_ctx, transform); };
  }
  absl::StatusOr<RegistrationOutcome> outcome = RunRegistration(registration_ctx, task, control, frame.latency);
  if (!outcome.ok()) return InConfig(outcome.status());
  frame.outcome = *std::move(outcome);
  StartFrom(frame.outcome.result.transform, &task.input);
  frame.is_good_start = !frame.outcome.result.worse_than_start && ValidateRegistration(task.input).ok();
  return absl::OkStatus();
}

}  // namespace intrawarp::server
