// SPDX-License-Identifier: Apache-2.0
#include "server/session/session_setup.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "server/base/wire.h"
#include "server/context/limits.h"
#include "server/status/errors.h"
#include "server/store/durable_objects.h"
#include "server/store/find_object.h"
#include "server/store/request_table.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

using std::chrono::nanoseconds;

constexpr int kDefaultPending = 2;
constexpr nanoseconds kDefaultResumeWindow = std::chrono::seconds(30);
constexpr nanoseconds kMaxResumeWindow = std::chrono::minutes(5);
constexpr nanoseconds kDefaultIdleTimeout = std::chrono::minutes(15);
constexpr std::chrono::hours kMaxIdleTimeout{24 * 365};  // of --max_session_idle, too
constexpr double kMaxRateHz = 1000;

absl::Status ResolveImages(const ServerContext& context, const v1::NavigateConfig& config, const Identity& caller,
                           SessionSetup& setup) {
  if (config.fixed().empty() == config.moving().empty()) {
    return InvalidField("fixed", "exactly one of fixed and moving must be given");
  }
  setup.resident_is_fixed = !config.fixed().empty();
  const std::string& name = setup.resident_is_fixed ? config.fixed() : config.moving();
  INTRAWARP_ASSIGN_OR_RETURN(setup.resident,
                             FindVolume(context.volumes, name, setup.resident_is_fixed ? "fixed" : "moving", caller));
  absl::StatusOr<RegistrationPlan> plan = ResolveOptions(config.options(), context.volumes, context.transforms, caller);
  if (!plan.ok()) return Within("options", plan.status());
  setup.plan = *std::move(plan);
  return absl::OkStatus();
}

absl::Status CheckCoarseField(const v1::NavigateConfig& config, const RegistrationPlan& plan) {
  if (!config.has_field()) return InvalidField("coarse_field", "goes with `field` alone");
  if (plan.automatic) {
    return InvalidField("coarse_field",
                        "goes with named stages alone: a deformation that is chosen may be taken out again");
  }
  const StageOptions& last = plan.stages.back();
  const auto* ffd = std::get_if<FfdOptions>(&last);
  if (ffd != nullptr && ffd->sliding) {
    return FieldError(absl::StatusCode::kUnimplemented, "coarse_field",
                      "a stage with sliding has none in this version");
  }
  if (ffd != nullptr || std::holds_alternative<LogDemonsOptions>(last)) return absl::OkStatus();
  return InvalidField("coarse_field", "comes from ffd or log_demons as the last stage");
}

absl::Status ResolveAnswers(const v1::NavigateConfig& config, SessionSetup& setup) {
  setup.coarse_field = config.coarse_field();
  if (setup.coarse_field) INTRAWARP_RETURN_IF_ERROR(CheckCoarseField(config, setup.plan));
  if (!config.has_field()) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(setup.field, ResolveField(config.field(), setup.plan));
  return setup.resident_is_fixed ? ValidateRegion(*setup.field, setup.resident->image.geometry()) : absl::OkStatus();
}

absl::Status ResolvePolicy(const ServerContext& context, const v1::NavigateConfig& config, SessionSetup& setup) {
  const int most = context.limits.max_pending_frames;
  setup.max_pending = config.has_max_pending() ? config.max_pending() : std::min(kDefaultPending, most);
  switch (config.overload_policy()) {
    case v1::OVERLOAD_POLICY_UNSPECIFIED:
    case v1::OVERLOAD_POLICY_KEEP_ALL:
      break;
    case v1::OVERLOAD_POLICY_LATEST_WINS:
      setup.overload_policy = OverloadPolicy::kLatestWins;
      break;
    default:
      return InvalidField("overload_policy", absl::StrCat("there is no policy ", config.overload_policy()));
  }
  const bool latest_wins = setup.overload_policy == OverloadPolicy::kLatestWins;
  // One frame waits while another is received.
  const int least = latest_wins ? 2 : 1;
  if (setup.max_pending < least || setup.max_pending > most) {
    return InvalidField("max_pending", absl::StrCat("is ", setup.max_pending, ", must be ", least, " to ", most));
  }
  setup.cancel_running = config.cancel_running();
  if (setup.cancel_running && !latest_wins) return InvalidField("cancel_running", "goes with LATEST_WINS alone");
  return absl::OkStatus();
}

absl::Status ResolveLateFrames(const v1::NavigateConfig& config, SessionSetup& setup) {
  if (config.has_frame_deadline()) {
    INTRAWARP_ASSIGN_OR_RETURN(setup.frame_deadline,
                               DurationFromProto(config.frame_deadline(), "frame_deadline", kMaxFrameDeadline));
  }
  switch (config.late_frames()) {
    case v1::LATE_FRAMES_UNSPECIFIED:
    case v1::LATE_FRAMES_DROP:
      return absl::OkStatus();
    case v1::LATE_FRAMES_DELIVER:
      setup.late_frames = LateFrames::kDeliver;
      return absl::OkStatus();
    default:
      return InvalidField("late_frames", absl::StrCat("there is no value ", config.late_frames()));
  }
}

absl::Status ResolveLife(const ServerContext& context, const v1::NavigateConfig& config, SessionSetup& setup) {
  if (!config.has_resume_window()) {
    setup.resume_window = config.session_id().empty() ? nanoseconds(0) : kDefaultResumeWindow;
  } else if (config.resume_window().seconds() != 0 || config.resume_window().nanos() != 0) {
    INTRAWARP_ASSIGN_OR_RETURN(setup.resume_window,
                               DurationFromProto(config.resume_window(), "resume_window", std::chrono::hours(1)));
  }
  if (setup.resume_window > kMaxResumeWindow) return InvalidField("resume_window", "at most 5 minutes are allowed");
  const nanoseconds longest = context.limits.max_session_idle;
  setup.idle_timeout = std::min(kDefaultIdleTimeout, longest);
  if (config.has_idle_timeout()) {
    INTRAWARP_ASSIGN_OR_RETURN(setup.idle_timeout,
                               DurationFromProto(config.idle_timeout(), "idle_timeout", kMaxIdleTimeout));
    if (setup.idle_timeout > longest) {
      const auto seconds = std::chrono::duration<double>(longest).count();
      return InvalidField("idle_timeout", absl::StrCat("at most ", seconds, " seconds are allowed"));
    }
  }
  if (!config.has_rate_hz()) return absl::OkStatus();
  if (!(config.rate_hz() > 0 && config.rate_hz() <= kMaxRateHz)) {
    return InvalidField("rate_hz", absl::StrCat("must be above 0 and at most ", kMaxRateHz));
  }
  setup.rate_hz = config.rate_hz();
  return absl::OkStatus();
}

absl::Status ResolveExpectedFrame(const ServerContext& context, const v1::NavigateConfig& config, SessionSetup& setup) {
  ExpectedFrame& expected = setup.expected;
  expected.geometry = setup.resident->image.geometry();
  expected.pixel_type = setup.resident->pixel_type;
  expected.is_promised = config.has_frame_geometry();
  if (config.has_frame_geometry()) {
    absl::StatusOr<Geometry> geometry = GeometryFromProto(config.frame_geometry());
    if (!geometry.ok()) return Within("frame_geometry", geometry.status());
    expected.geometry = *geometry;
  }
  if (config.frame_pixel_type() != v1::PIXEL_TYPE_UNSPECIFIED) {
    absl::StatusOr<PixelType> type = PixelTypeFromProto(config.frame_pixel_type());
    if (!type.ok()) return InvalidField("frame_pixel_type", "is not a type of pixels");
    expected.pixel_type = *type;
  }
  absl::StatusOr<int64_t> bytes = ImageBytes(expected.geometry, BytesPerPixel(expected.pixel_type));
  if (!bytes.ok()) return Within("frame_geometry", bytes.status());
  const int64_t most = context.limits.max_volume_bytes;
  if (expected.is_promised && *bytes > most) {
    return InvalidField("frame_geometry", absl::StrCat("frames of ", *bytes, " bytes, at most ", most, " are allowed"));
  }
  expected.bytes = std::min(*bytes, most);
  return absl::OkStatus();
}

v1::NavigateConfig Resolved(const v1::NavigateConfig& config, const SessionSetup& setup) {
  v1::NavigateConfig resolved = config;
  resolved.clear_resume();
  resolved.set_max_pending(setup.max_pending);
  resolved.set_overload_policy(setup.overload_policy == OverloadPolicy::kLatestWins ? v1::OVERLOAD_POLICY_LATEST_WINS
                                                                                    : v1::OVERLOAD_POLICY_KEEP_ALL);
  resolved.set_cancel_running(setup.cancel_running);
  resolved.set_late_frames(setup.late_frames == LateFrames::kDeliver ? v1::LATE_FRAMES_DELIVER : v1::LATE_FRAMES_DROP);
  *resolved.mutable_resume_window() = DurationToProto(setup.resume_window);
  *resolved.mutable_idle_timeout() = DurationToProto(setup.idle_timeout);
  *resolved.mutable_frame_geometry() = GeometryToProto(setup.expected.geometry);
  resolved.set_frame_pixel_type(PixelTypeToProto(setup.expected.pixel_type));
  resolved.set_coarse_field(setup.coarse_field);
  resolved.set_frame_masks(setup.frame_masks);
  return resolved;
}

absl::StatusOr<SessionSetup> ResolveConfig(const ServerContext& context, const v1::NavigateConfig& config,
                                           const Identity& caller) {
  SessionSetup setup;
  setup.owner = caller.name;
  setup.by_admin = caller.is_admin();
  INTRAWARP_RETURN_IF_ERROR(ResolveImages(context, config, caller, setup));
  INTRAWARP_RETURN_IF_ERROR(ResolveAnswers(config, setup));
  setup.frame_masks = config.frame_masks();
  INTRAWARP_RETURN_IF_ERROR(ResolvePolicy(context, config, setup));
  INTRAWARP_RETURN_IF_ERROR(ResolveLateFrames(config, setup));
  INTRAWARP_RETURN_IF_ERROR(ResolveLife(context, config, setup));
  setup.is_durable = context.durable.enabled() && setup.resume_window.count() > 0;
  INTRAWARP_RETURN_IF_ERROR(ResolveExpectedFrame(context, config, setup));
  setup.asked = config;
  setup.resolved = Resolved(config, setup);
  return setup;
}

}  // namespace

Inputs InputsOf(SessionSetup& setup) {
  Inputs inputs;
  RegistrationPlan& plan = setup.plan;
  inputs.volumes = {&setup.resident, &plan.fixed_mask, &plan.moving_mask, &plan.fixed_weight, &plan.moving_weight};
  inputs.transforms = {&setup.plan.initial_transform};
  return inputs;
}

std::string PrintOf(const SessionSetup& setup) {
  const RegistrationPlan& plan = setup.plan;
  std::string others =
      WithInputs("", {InputPrint::Of(plan.fixed_mask), InputPrint::Of(plan.moving_mask), plan.initial_print});
  if (plan.fixed_weight != nullptr || plan.moving_weight != nullptr) {
    others = WithInputs(others, {InputPrint::Of(plan.fixed_weight), InputPrint::Of(plan.moving_weight)});
  }
  const bool has_others = others.find_first_not_of('\0') != std::string::npos;
  return setup.resident->digest + (has_others ? others : "");
}

bool HasPrint(const SessionSetup& setup, absl::string_view print, bool with_start) {
  std::string own = PrintOf(setup), other(print);
  const size_t digest = setup.resident->digest.size();
  const size_t longest = digest + 5 * InputPrint::kBytes, start = digest + 2 * InputPrint::kBytes;
  if (other.size() > longest) return false;
  // A print that ends early has no others: the padding is InputPrint::None.
  own.resize(longest);
  other.resize(longest);
  if (!with_start) other.replace(start, InputPrint::kBytes, own, start, InputPrint::kBytes);
  return own == other;
}

absl::StatusOr<SessionSetup> ResolveNavigateConfig(const ServerContext& context, const v1::NavigateConfig& config,
                                                   const Identity& caller) {
  absl::StatusOr<SessionSetup> setup = ResolveConfig(context, config, caller);
  if (!setup.ok()) return Within("config", setup.status());
  return setup;
}

std::string FrameCostKind(const SessionSetup& setup, bool has_chosen) {
  return CostKind(has_chosen ? "frame+chosen" : "frame", setup.plan, setup.field);
}

absl::Status ValidateRegion(const FieldRequest& field, const Geometry& fixed) {
  return Within("field", FieldGrid(field, fixed).status());
}

}  // namespace intrawarp::server
