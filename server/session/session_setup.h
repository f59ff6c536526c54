// SPDX-License-Identifier: Apache-2.0
// SessionSetup: what a NavigateConfig asks of a session, checked, with its resources looked up and its defaults filled
// in. An immutable value once made. No gRPC here.
#ifndef INTRAWARP_SERVER_SESSION_SESSION_SETUP_H_
#define INTRAWARP_SERVER_SESSION_SESSION_SETUP_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/pixel_type.h"
#include "engine/geometry/geometry.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/bulk/field_request.h"
#include "server/context/server_context.h"
#include "server/placement/replication.h"
#include "server/registration/registration_options.h"
#include "server/store/volume_store.h"

namespace intrawarp::server {

// The longest deadline that a frame may have.
inline constexpr std::chrono::hours kMaxFrameDeadline{24};

enum class OverloadPolicy { kKeepAll, kLatestWins };
enum class LateFrames { kDrop, kDeliver };

// The grid and the pixels for which a session takes memory.
struct ExpectedFrame {
  Geometry geometry;
  PixelType pixel_type = PixelType::kFloat32;
  int64_t bytes = 0;
  // The client named the grid: a larger frame is refused.
  bool is_promised = false;
};

struct SessionSetup {
  // The owner of the session and its results.
  std::string owner;
  // Whether an admin opened it, who may use what is others'.
  bool by_admin = false;
  // Whether it outlives a restart of the server (session_keeper.h).
  bool is_durable = false;
  std::shared_ptr<const StoredVolume> resident;
  // Otherwise it is the moving image and the frames are fixed ones.
  bool resident_is_fixed = true;
  RegistrationPlan plan;
  // Unset: results without fields.
  std::optional<FieldRequest> field;
  // The field before the finest level is sent, too; only with `field`.
  bool coarse_field = false;
  // Frames may name masks and weights of their own.
  bool frame_masks = false;
  int max_pending = 2;
  OverloadPolicy overload_policy = OverloadPolicy::kKeepAll;
  bool cancel_running = false;
  LateFrames late_frames = LateFrames::kDrop;
  // The deadline of frames that name none; unset: none.
  std::optional<std::chrono::nanoseconds> frame_deadline;
  std::chrono::nanoseconds resume_window{0};
  std::chrono::nanoseconds idle_timeout{0};
  std::optional<double> rate_hz;
  ExpectedFrame expected;
  // The config as the stream has it, and with every default filled in (Session.config).
  v1::NavigateConfig asked;
  v1::NavigateConfig resolved;
};

// The objects that the frames are registered with.
Inputs InputsOf(SessionSetup& setup);

// Tells these objects from others of the same names: the resident volume's digest, then, where there are any of them,
// the prints of the masks, of the transform that the session's first frame starts from, and of weights, if any.
std::string PrintOf(const SessionSetup& setup);
// Whether the print is the setup's; the transform counts only with `with_start`.
bool HasPrint(const SessionSetup& setup, absl::string_view print, bool with_start);

// Errors as of Register, with paths in the stream's message ("config.options.stages"). The session's id is not looked
// at.
absl::StatusOr<SessionSetup> ResolveNavigateConfig(const ServerContext& context, const v1::NavigateConfig& config,
                                                   const Identity& caller);

// CostKind of a frame: those of a session that has chosen its stages cost less than those that choose.
std::string FrameCostKind(const SessionSetup& setup, bool has_chosen);

// OK for a field that fits the fixed image's grid; INVALID_ARGUMENT names "field.region_size", say.
absl::Status ValidateRegion(const FieldRequest& field, const Geometry& fixed);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_SESSION_SETUP_H_
