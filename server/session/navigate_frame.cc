// SPDX-License-Identifier: Apache-2.0
#include "server/session/navigate_frame.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"
#include "engine/registration/validate.h"
#include "server/base/wire.h"
#include "server/context/limits.h"
#include "server/identity/identity.h"
#include "server/status/errors.h"
#include "server/store/find_object.h"

namespace intrawarp::server {
namespace {

// An error of the engine about a registration with its field's path in the stream's messages. Errors about an image
// ("fixed") stay as they are, since that may be the resident one or the frame.
absl::Status InConfig(const v1::RegistrationOptions& options, const absl::Status& status) {
  const absl::Status in_request = InRequest(options, status);
  const std::string path = FieldOf(in_request);
  const std::string name = path.substr(0, path.find('.'));
  return name == "options" || name == "field" ? Within("config", in_request) : in_request;
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
  absl::StatusOr<PreparedImage> image =
      PreparedImage::Prepare(ctx, pixels, frame.pixel_type, frame.rescale.slope, frame.rescale.intercept,
                             frame.geometry, FinestLevel::kThroughWindow);
  frame.memory.reset();
  return image;
}

void StartFrom(const Transform& transform, RegistrationInput* input) {
  input->initial.reset();
  input->initial_transform = &transform;
}

// The memory that the session has taken is the frame's limit where the client named the grid.
absl::Status CheckExpected(const ExpectedFrame& expected, const NavigateFrame& frame) {
  if (!expected.is_promised) return absl::OkStatus();
  if (frame.geometry.voxels() > expected.geometry.voxels()) {
    return InvalidField("geometry", absl::StrCat("the frame has ", frame.geometry.voxels(),
                                                 " voxels, the session expects at most ", expected.geometry.voxels()));
  }
  if (frame.total_bytes <= expected.bytes) return absl::OkStatus();
  return InvalidField("pixel_type", absl::StrCat("the frame has ", frame.total_bytes,
                                                 " bytes, the session expects at most ", expected.bytes));
}

absl::Status ParsePixels(const ServerContext& context, const v1::FrameHeader& header, NavigateFrame& frame) {
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

Identity OwnerOf(const SessionSetup& setup) { return {setup.owner, setup.by_admin ? Roles(Role::kAdmin) : Roles()}; }

// Null for an empty name.
absl::StatusOr<std::shared_ptr<const StoredVolume>> FindOnGrid(const ServerContext& context, const std::string& name,
                                                               const char* field, const Identity& owner,
                                                               const Geometry& grid) {
  if (name.empty()) return nullptr;
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<const StoredVolume> volume,
                             FindVolume(context.volumes, name, field, owner));
  const Geometry& own = volume->image.geometry();
  if (SameGrid(own, grid)) return volume;
  return InvalidField(field, absl::StrCat(SizeString(own), ", is not on the grid of the frame, ", SizeString(grid)));
}

absl::Status ParseMasks(const ServerContext& context, const SessionSetup& setup, const v1::FrameHeader& header,
                        NavigateFrame& frame) {
  if (header.mask().empty() && header.weight().empty()) return absl::OkStatus();
  if (!setup.frame_masks) {
    return InvalidField(header.mask().empty() ? "weight" : "mask", "takes a session with config.frame_masks");
  }
  const Identity owner = OwnerOf(setup);
  auto masks = std::make_shared<FrameMasks>();
  INTRAWARP_ASSIGN_OR_RETURN(masks->mask, FindOnGrid(context, header.mask(), "mask", owner, frame.geometry));
  INTRAWARP_ASSIGN_OR_RETURN(masks->weight, FindOnGrid(context, header.weight(), "weight", owner, frame.geometry));
  if (masks->mask != nullptr) frame.mask_digests.emplace_back("mask", masks->mask->content_digest);
  if (masks->weight != nullptr) frame.mask_digests.emplace_back("weight", masks->weight->content_digest);
  frame.masks = std::move(masks);
  return absl::OkStatus();
}

// Paths relative to the header.
absl::Status ParseHeader(const ServerContext& context, const SessionSetup& setup, const v1::FrameHeader& header,
                         NavigateFrame& frame) {
  frame.deadline = setup.frame_deadline;
  if (header.has_deadline()) {
    INTRAWARP_ASSIGN_OR_RETURN(frame.deadline, DurationFromProto(header.deadline(), "deadline", kMaxFrameDeadline));
  }
  if (header.has_landmarks()) {
    absl::StatusOr<std::vector<Landmark>> landmarks = LandmarksFromProto(header.landmarks().landmarks());
    if (!landmarks.ok()) return Within("landmarks", landmarks.status());
    frame.landmarks = *std::move(landmarks);
  }
  INTRAWARP_RETURN_IF_ERROR(ParsePixels(context, header, frame));
  INTRAWARP_RETURN_IF_ERROR(CheckExpected(setup.expected, frame));
  return ParseMasks(context, setup, header, frame);
}

// The frame's own masks in the place of the session's.
void TakeMasks(const SessionSetup& setup, const NavigateFrame& frame, const PreparedImage& image,
               RegistrationInput* input) {
  const PreparedImage*& mask = setup.resident_is_fixed ? input->moving_mask : input->fixed_mask;
  const PreparedImage*& weight = setup.resident_is_fixed ? input->moving_weight : input->fixed_weight;
  if (frame.masks != nullptr && frame.masks->mask != nullptr) mask = &frame.masks->mask->image;
  if (frame.masks != nullptr && frame.masks->weight != nullptr) weight = &frame.masks->weight->image;
  if (frame.self_mask == NavigateFrame::SelfMask::kMask) mask = &image;
  if (frame.self_mask == NavigateFrame::SelfMask::kWeight) weight = &image;
}

// An error of the engine about a registration: one about the frame's own mask or weights is in the frame's header.
absl::Status InMessages(const SessionSetup& setup, const NavigateFrame& frame, const absl::Status& status) {
  const std::string path = FieldOf(status), image = setup.resident_is_fixed ? "moving_" : "fixed_";
  const bool has_mask = frame.masks != nullptr && frame.masks->mask != nullptr;
  const bool has_weight = frame.masks != nullptr && frame.masks->weight != nullptr;
  const bool is_own = (has_mask && path == image + "mask") || (has_weight && path == image + "weight");
  if (!is_own) return InConfig(setup.plan.asked, status);
  absl::string_view description = status.message();
  absl::ConsumePrefix(&description, absl::StrCat(path, ": "));
  return FieldError(status.code(), absl::StrCat("frame.", path.substr(image.size())), description);
}

// Estimated from the resident image for a grid of another size.
int64_t FrameWorkspaceBytes(const Device& device, const SessionSetup& setup, const ExpectedFrame& expected) {
  const PreparedImage& resident = setup.resident->image;
  const Geometry& frame = expected.geometry;
  const int64_t upload = device.kind() == DeviceKind::kCuda ? static_cast<int64_t>(Arena::Rounded(expected.bytes)) : 0;
  const int64_t prepare =
      upload + PreparedImage::WorkspaceBytes(frame, expected.pixel_type) + PreparedImage::Bytes(frame);
  RegistrationInput input = MakeRegistrationInput(setup.plan, resident, resident);
  if (setup.coarse_field) input.coarse = CoarseFieldHook(device, resident.geometry());
  // A frame may bring that many.
  input.landmarks.resize(kMaxLandmarks);
  // A mask with weights takes as much as one without.
  if (setup.frame_masks) (setup.resident_is_fixed ? input.moving_mask : input.fixed_mask) = &resident;
  const int64_t registration = RegistrationJobBytes(device, input);
  const double growth = static_cast<double>(frame.voxels()) / static_cast<double>(resident.geometry().voxels());
  return prepare + static_cast<int64_t>(static_cast<double>(registration) * std::max(growth, 1.0));
}

}  // namespace

absl::Status ParseFrameHeader(const ServerContext& context, const SessionSetup& setup, const v1::FrameHeader& header,
                              NavigateFrame& frame) {
  return Within("frame", ParseHeader(context, setup, header, frame));
}

std::optional<std::chrono::nanoseconds> LimitOf(const NavigateFrame& frame, const SessionSetup& setup) {
  return frame.deadline ? std::make_optional<std::chrono::nanoseconds>(*frame.deadline) : setup.plan.budget;
}

int64_t FrameJobBytes(const Device& device, const NavigateFrame& frame) {
  const int64_t upload =
      device.kind() == DeviceKind::kCuda ? static_cast<int64_t>(Arena::Rounded(frame.total_bytes)) : 0;
  return upload + PreparedImage::WorkspaceBytes(frame.geometry, frame.pixel_type);
}

int64_t SessionWorkspaceBytes(const Device& device, const SessionSetup& setup) {
  return FrameWorkspaceBytes(device, setup, setup.expected);
}

int64_t ExtraWorkspaceBytes(const Device& device, const SessionSetup& setup, const NavigateFrame& frame) {
  const ExpectedFrame& expected = setup.expected;
  const bool fits = frame.geometry.voxels() <= expected.geometry.voxels() && frame.total_bytes <= expected.bytes;
  if (fits) return 0;
  return FrameWorkspaceBytes(device, setup, {frame.geometry, frame.pixel_type, frame.total_bytes});
}

absl::Status RegisterFrame(const ExecContext& ctx, const SessionSetup& setup, const FrameStart& start,
                           const FrameHooks& hooks, NavigateFrame& frame) {
  JobControl& control = *frame.control;
  if (control.cancelled()) return control.CancelStatus();
  absl::StatusOr<PreparedImage> image = PrepareFrame(ctx, frame);
  if (!image.ok()) return Within("frame", image.status());
  const PreparedImage& resident = setup.resident->image;
  RegistrationTask task;
  task.input = setup.resident_is_fixed ? MakeRegistrationInput(setup.plan, resident, *image)
                                       : MakeRegistrationInput(setup.plan, *image, resident);
  if (frame.landmarks) task.input.landmarks = *frame.landmarks;
  TakeMasks(setup, frame, *image, &task.input);
  if (start.transform != nullptr) StartFrom(*start.transform, &task.input);
  if (!start.chosen.empty()) {
    task.input.stages = start.chosen;
    task.input.automatic = false;
  }
  task.reserve = hooks.reserve;
  task.scrutiny = Scrutiny::kFrame;
  task.budget = setup.plan.budget;
  task.best_effort = setup.plan.best_effort;
  task.error_limit_mm = setup.plan.error_limit_mm;
  task.error = setup.plan.error;
  if (frame.shown_pixels != nullptr) task.error.map = true;
  task.field = hooks.field;
  task.coarse_field = hooks.coarse_field;
  if (task.coarse_field) task.input.coarse = CoarseFieldHook(ctx.device(), task.input.fixed->geometry());
  absl::Status valid = ValidateRegistration(task.input);
  if (valid.ok() && setup.field) valid = ValidateRegion(*setup.field, task.input.fixed->geometry());
  if (!valid.ok()) return InMessages(setup, frame, valid);
  INTRAWARP_ASSIGN_OR_RETURN(
      Buffer workspace,
      ctx.device().Allocate(Arena::Rounded(RegistrationJobBytes(ctx.device(), task.input)), ctx.stream()));
  Arena arena(std::move(workspace));
  const ExecContext registration_ctx(ctx.device(), ctx.stream(), arena,
                                     [&ctx](const Progress& progress) { return ctx.Checkpoint(progress); });
  absl::StatusOr<RegistrationOutcome> outcome = RunRegistration(registration_ctx, task, control, frame.latency);
  if (!outcome.ok()) return InMessages(setup, frame, outcome.status());
  frame.outcome = *std::move(outcome);
  StartFrom(frame.outcome.result.transform, &task.input);
  frame.is_good_start = !frame.outcome.result.worse_than_start && ValidateRegistration(task.input).ok();
  return absl::OkStatus();
}

}  // namespace intrawarp::server
