// SPDX-License-Identifier: Apache-2.0
// A frame of a Navigate stream: from its header to its registration. No gRPC here.
#ifndef INTRAWARP_SERVER_REGISTRATION_NAVIGATE_FRAME_H_
#define INTRAWARP_SERVER_REGISTRATION_NAVIGATE_FRAME_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/pixel_type.h"
#include "engine/device/device.h"
#include "engine/schedule/latency.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/registration/registration_job.h"
#include "server/registration/registration_options.h"
#include "server/registration/registration_report.h"
#include "server/rpc/wire.h"
#include "server/server_context.h"

namespace intrawarp::server {

// What a stream's config asks for.
struct NavigateSetup {
  std::shared_ptr<const StoredVolume> resident;
  // Otherwise it is the moving image and the frames are fixed ones.
  bool resident_is_fixed = true;
  RegistrationPlan plan;
  // Unset: results without fields.
  std::optional<FieldRequest> field;
  int max_pending = 2;
};
// Errors as of Register, with paths in the stream's message ("config.options.stages").
absl::StatusOr<NavigateSetup> ResolveNavigateConfig(const ServerContext& context, const v1::NavigateConfig& config);

// Belongs to one thread at a time: the reader while it is received, then its job, then the writer.
struct NavigateFrame {
  explicit NavigateFrame(Metrics& metrics) : record(metrics, WorkClass::kFrame) {}

  int64_t number = 0;
  // Echoed; unset: the client gave none.
  std::optional<google::protobuf::Timestamp> acquisition_time;
  Geometry geometry;
  PixelType pixel_type = PixelType::kFloat32;
  Rescale rescale;
  int64_t total_bytes = 0;
  int64_t received_bytes = 0;
  // The pixels; given back as soon as they are on the device.
  std::shared_ptr<PinnedBuffer> memory;
  std::chrono::steady_clock::time_point begin;  // the header was there
  std::chrono::steady_clock::time_point ready;  // the last byte was there
  LatencyBreakdown latency;
  // What is wrong with it, or the outcome.
  absl::Status status;
  RegistrationOutcome outcome;
  // The outcome serves the next frame as a start: it is no worse than its own, and one that the engine takes.
  bool is_good_start = false;
  FrameRecord record;
};

// Checks a header against the limits and leases the memory for its pixels. Errors name the field within "frame".
absl::Status AdmitFrame(ServerContext& context, const v1::FrameHeader& header, NavigateFrame& frame);

// Workspace of RegisterFrame in `ctx`; what the registration itself needs, it allocates once it knows.
int64_t FrameJobBytes(const Device& device, const NavigateFrame& frame);

// As in RegistrationTask.
struct FrameHooks {
  ReserveFn reserve;
  std::optional<FieldOutput> field;
};

// Uploads, prepares and registers a frame, starting from `initial` unless that is null, and fills in frame.outcome,
// is_good_start and latency. Waits for the stream.
absl::Status RegisterFrame(const ExecContext& ctx, const NavigateSetup& setup, const Transform* initial,
                           JobControl& control, const FrameHooks& hooks, NavigateFrame& frame);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_REGISTRATION_NAVIGATE_FRAME_H_
