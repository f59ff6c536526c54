// SPDX-License-Identifier: Apache-2.0
// A frame of a session: from its header to its registration. No gRPC here.
#ifndef INTRAWARP_SERVER_SESSION_NAVIGATE_FRAME_H_
#define INTRAWARP_SERVER_SESSION_NAVIGATE_FRAME_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/pixel_type.h"
#include "engine/device/device.h"
#include "engine/schedule/latency.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/context/server_context.h"
#include "server/job/job_control.h"
#include "server/registration/registration_job.h"
#include "server/registration/registration_report.h"
#include "server/session/session_setup.h"
#include "wire/convert.h"

namespace intrawarp::server {

// The volumes that say how much the voxels of one frame count, instead of the session's. Held for the frame's life, so
// that a deletion does not take them from it.
struct FrameMasks {
  // Null: the session's.
  std::shared_ptr<const StoredVolume> mask;
  std::shared_ptr<const StoredVolume> weight;
  // Whether they are in the memory of the session's device; while they are coming, nobody else touches the pointers.
  // Guarded by the FramePipeline, as the next one is.
  enum class State { kHere, kMissing, kComing } state = State::kHere;
  // Why they could not come.
  absl::Status status;

  Inputs MutableInputs() { return {{&mask, &weight}, {}, {}}; }
};

// Belongs to one thread at a time: the reader while it is received, then its job, then the writer. `control` may be
// cancelled by any thread; the members up to `superseded_by` are guarded by the FramePipeline.
struct NavigateFrame {
  using Time = std::chrono::steady_clock::time_point;

  // `begin`: its header was received, by seams.steady_now, as all times here.
  NavigateFrame(ServerContext& context, Time begin)
      : begin(begin), record(context.metrics.registration, WorkClass::kFrame) {}

  // It has no answer yet, but holds no memory any more and will not run.
  bool is_light = false;
  // Its job has begun to compute.
  bool started = false;
  // Its field was announced, and takes memory until it has been sent, however the frame ends.
  bool has_field = false;
  // The newer frame that takes its place; unset: none.
  std::optional<int64_t> superseded_by;

  int64_t number = 0;
  // Echoed; unset: the client gave none.
  std::optional<google::protobuf::Timestamp> acquisition_time;
  Geometry geometry;
  PixelType pixel_type = PixelType::kFloat32;
  Rescale rescale;
  int64_t total_bytes = 0;
  int64_t received_bytes = 0;
  // A CRC32C over those of its chunks, in their order, for its audit record; a slot counts as one chunk.
  uint32_t checksum = 0;
  // The pixels; given back as soon as they are on the device. Null until the first chunk where the session has no
  // buffer for them.
  std::shared_ptr<PinnedBuffer> memory;
  // The frame takes this beyond its session's memory, until its job has ended; null: nothing.
  std::shared_ptr<Grant> extra;
  const Time begin;
  Time ready;  // the last byte was there
  // After `begin`; unset: none.
  std::optional<std::chrono::nanoseconds> deadline;
  // Absent: the session's.
  std::optional<std::vector<Landmark>> landmarks;
  // Null: the header names none.
  std::shared_ptr<FrameMasks> masks;
  // Their SHA-256s by role, which the record of a failed frame has, too.
  std::vector<std::pair<std::string, std::string>> mask_digests;
  // The pixels, which are 0 to 1, are the mask, or the weights, too. For the opening's made-up frames.
  enum class SelfMask { kNone, kMask, kWeight } self_mask = SelfMask::kNone;
  // Ends the job early. Set before the frame has one.
  std::optional<JobControl> control;
  LatencyBreakdown latency;
  // What is wrong with it, or the outcome.
  absl::Status status;
  RegistrationOutcome outcome;
  // The pixels for the session's tap (NavigateSession::LendPixels), from when its job begins; null: it has no tap.
  std::shared_ptr<const PinnedBuffer> shown_pixels;
  // The outcome serves the next frame as a start: it is no worse than its own, and one that the engine takes.
  bool is_good_start = false;
  // Its job did all of its work; the job's alone.
  bool is_whole = false;
  FrameRecord record;
};

// Fills in the frame from its header, and the deadline of `setup` where the header has none; landmarks and masks
// where it has any. Errors name the field within "frame": they are about sanity, the limits, and the size that the
// session expects; masks in a session without frame_masks, or on another grid; NOT_FOUND names a volume that is not
// there.
absl::Status ParseFrameHeader(const ServerContext& context, const SessionSetup& setup, const v1::FrameHeader& header,
                              NavigateFrame& frame);

// After which an answer is late: the frame's deadline, otherwise the session's budget; nullopt: neither.
std::optional<std::chrono::nanoseconds> LimitOf(const NavigateFrame& frame, const SessionSetup& setup);

// Workspace of RegisterFrame in `ctx`; what the registration itself needs, it allocates once it knows.
int64_t FrameJobBytes(const Device& device, const NavigateFrame& frame);
// Device memory that a frame of the expected grid works in, its own image included. Estimated from the resident image
// for a grid of another size.
int64_t SessionWorkspaceBytes(const Device& device, const SessionSetup& setup);
// The same for this frame where it is larger than expected; 0 where the session's serves it.
int64_t ExtraWorkspaceBytes(const Device& device, const SessionSetup& setup, const NavigateFrame& frame);

// As in RegistrationTask.
struct FrameHooks {
  ReserveFn reserve;
  std::optional<FieldOutput> field;
  std::optional<FieldOutput> coarse_field;
};

struct FrameStart {
  // Null: as the plan says.
  const Transform* transform = nullptr;
  // Stages instead of a choice; empty: as the plan says.
  std::vector<StageOptions> chosen;
};

// Uploads, prepares and registers a frame from `start`, and fills in frame.outcome,
// is_good_start and latency. Waits for the stream.
// frame.control ends it early.
absl::Status RegisterFrame(const ExecContext& ctx, const SessionSetup& setup, const FrameStart& start,
                           const FrameHooks& hooks, NavigateFrame& frame);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_NAVIGATE_FRAME_H_
