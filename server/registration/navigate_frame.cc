// SPDX-License-Identifier: Apache-2.0
#include "server/registration/navigate_frame.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/registration/validate.h"
#include "server/rpc/job_support.h"
#include "server/rpc/rpc_support.h"
#include "server/rpc/wire.h"

namespace intrawarp::server {
namespace {

constexpr int kDefaultPending = 2;

// An error of the engine about a registration with its field's path in the stream's messages. Errors about an image
// ("fixed") stay as they are, since that may be the resident one or the frame.
absl::Status InConfig(const v1::RegistrationOptions& options, const absl::Status& status) {
  const absl::Status in_request = InRequest(options, status);
  const std::string path = FieldOf(in_request);
  const std::string name = path.substr(0, path.find('.'));
  return name == "options" || name == "field" ? Within("config", in_request) : in_request;
}

absl::Status ValidateRegion(const FieldRequest& field, const Geometry& fixed) {
  const absl::Status status = FieldGrid(field, fixed).status();
  return status.ok() ? status : Within("field", status);
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

// Paths relative to the config.
absl::StatusOr<NavigateSetup> ResolveConfig(const ServerContext& context, const v1::NavigateConfig& config) {
  NavigateSetup setup;
  if (config.fixed().empty() == config.moving().empty()) {
    return InvalidField("fixed", "exactly one of fixed and moving must be given");
  }
  setup.resident_is_fixed = !config.fixed().empty();
  if (setup.resident_is_fixed) {
    INTRAWARP_ASSIGN_OR_RETURN(setup.resident, FindVolume(context.volumes, config.fixed(), "fixed"));
  } else {
    INTRAWARP_ASSIGN_OR_RETURN(setup.resident, FindVolume(context.volumes, config.moving(), "moving"));
  }
  absl::StatusOr<RegistrationPlan> plan = ResolveOptions(config.options(), context.volumes, context.transforms);
  if (!plan.ok()) return Within("options", plan.status());
  setup.plan = *std::move(plan);
  if (config.has_field()) {
    INTRAWARP_ASSIGN_OR_RETURN(setup.field, ResolveField(config.field(), setup.plan));
    if (setup.resident_is_fixed) {
      INTRAWARP_RETURN_IF_ERROR(ValidateRegion(*setup.field, setup.resident->image.geometry()));
    }
  }
  const int max_pending = context.limits.max_pending_frames;
  setup.max_pending = config.has_max_pending() ? config.max_pending() : std::min(kDefaultPending, max_pending);
  if (setup.max_pending < 1 || setup.max_pending > max_pending) {
    return InvalidField("max_pending", absl::StrCat("is ", setup.max_pending, ", must be 1 to ", max_pending));
  }
  const bool keeps_all = config.overload_policy() == v1::OVERLOAD_POLICY_UNSPECIFIED ||
                         config.overload_policy() == v1::OVERLOAD_POLICY_KEEP_ALL;
  if (keeps_all) return setup;
  return FieldError(absl::StatusCode::kUnimplemented, "overload_policy",
                    absl::StrCat(v1::OverloadPolicy_Name(config.overload_policy()), " is not in this version"));
}

// Paths relative to the header.
absl::Status ParseFrameHeader(const ServerContext& context, const v1::FrameHeader& header, NavigateFrame& frame) {
  if (header.has_deadline()) {
    return FieldError(absl::StatusCode::kUnimplemented, "deadline", "deadlines of frames are not in this version");
  }
  absl::StatusOr<Geometry> geometry = GeometryFromProto(header.geometry());
  if (!geometry.ok()) return Within("geometry", geometry.status());
  frame.geometry = *geometry;
  INTRAWARP_ASSIGN_OR_RETURN(frame.pixel_type, PixelTypeFromProto(header.pixel_type()));
  if (header.has_rescale()) {
    absl::StatusOr<Rescale> rescale = RescaleFromProto(header.rescale());
    if (!rescale.ok()) return Within("rescale", rescale.status());
    frame.rescale = *rescale;
  }
  absl::StatusOr<int64_t> bytes = ImageBytes(frame.geometry, BytesPerPixel(frame.pixel_type));
  if (!bytes.ok()) return Within("geometry", bytes.status());
  if (header.total_bytes() != *bytes) {
    return InvalidField("total_bytes", absl::StrCat("is ", header.total_bytes(), ", must be ", *bytes, " for ",
                                                    SizeString(frame.geometry), " voxels of this type"));
  }
  const int64_t max = context.limits.max_volume_bytes;
  if (*bytes > max) {
    return InvalidField("total_bytes", absl::StrCat("is ", *bytes, ", at most ", max, " are allowed"));
  }
  frame.total_bytes = *bytes;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NavigateSetup> ResolveNavigateConfig(const ServerContext& context, const v1::NavigateConfig& config) {
  absl::StatusOr<NavigateSetup> setup = ResolveConfig(context, config);
  if (!setup.ok()) return Within("config", setup.status());
  return setup;
}

absl::Status AdmitFrame(ServerContext& context, const v1::FrameHeader& header, NavigateFrame& frame) {
  PhaseTimer timer(frame.latency, Phase::kAdmit);
  INTRAWARP_RETURN_IF_ERROR(Within("frame", ParseFrameHeader(context, header, frame)));
  INTRAWARP_ASSIGN_OR_RETURN(frame.memory, LeasePinned(context, frame.total_bytes, Share::kSession));
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
  if (!image.ok()) return Within("frame", image.status());
  const PreparedImage& resident = setup.resident->image;
  RegistrationTask task;
  task.input = setup.resident_is_fixed ? MakeRegistrationInput(setup.plan, resident, *image)
                                       : MakeRegistrationInput(setup.plan, *image, resident);
  if (initial != nullptr) StartFrom(*initial, &task.input);
  task.reserve = hooks.reserve;
  task.budget = setup.plan.budget;
  task.best_effort = setup.plan.best_effort;
  task.field = hooks.field;
  absl::Status valid = ValidateRegistration(task.input);
  if (valid.ok() && setup.field) valid = ValidateRegion(*setup.field, task.input.fixed->geometry());
  if (!valid.ok()) return InConfig(setup.plan.asked, valid);
  INTRAWARP_ASSIGN_OR_RETURN(
      Buffer workspace,
      ctx.device().Allocate(Arena::Rounded(RegistrationJobBytes(ctx.device(), task.input)), ctx.stream()));
  Arena arena(std::move(workspace));
  const ExecContext registration_ctx(ctx.device(), ctx.stream(), arena,
                                     [&ctx](const Progress& progress) { return ctx.Checkpoint(progress); });
  absl::StatusOr<RegistrationOutcome> outcome = RegisterAndAssess(registration_ctx, task, control, frame.latency);
  if (!outcome.ok()) return InConfig(setup.plan.asked, outcome.status());
  frame.outcome = *std::move(outcome);
  StartFrom(frame.outcome.result.transform, &task.input);
  frame.is_good_start = !frame.outcome.result.worse_than_start && ValidateRegistration(task.input).ok();
  return absl::OkStatus();
}

}  // namespace intrawarp::server
