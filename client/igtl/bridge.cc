// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/bridge.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/igtl/codec/points.h"
#include "client/igtl/codec/tracking.h"
#include "client/igtl/control.h"
#include "engine/base/status_macros.h"

namespace intrawarp::igtl {
namespace {

constexpr size_t kMaxTips = 64;

// A point of the wire in LPS, and back.
Vec3d Turn(Coordinates coordinates, const Vec3d& p) {
  return coordinates == Coordinates::kRas ? Vec3d{-p.x, -p.y, p.z} : p;
}
AffineMap Turn(Coordinates coordinates, const AffineMap& pose) {
  return coordinates == Coordinates::kRas ? FlipPose(pose) : pose;
}

// The grid where a rigid pose puts it; not orthonormal where the pose is not rigid, which its validation finds.
Geometry Placed(const Geometry& grid, const AffineMap& pose) {
  Geometry placed = grid;
  placed.origin = pose(grid.origin);
  for (int axis = 0; axis < 3; ++axis) {
    const Vec3d direction = pose.Linear({grid.direction[0][axis], grid.direction[1][axis], grid.direction[2][axis]});
    for (int row = 0; row < 3; ++row) placed.direction[row][axis] = direction[row];
  }
  return placed;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bridge>> Bridge::Create(const BridgeOptions& options) {
  std::unique_ptr<Bridge> bridge(new Bridge(options));
  INTRAWARP_RETURN_IF_ERROR(bridge->Open());
  return bridge;
}

Bridge::Bridge(const BridgeOptions& options)
    : options_(options), assembler_(static_cast<int64_t>(options.link.limits.max_body_bytes)) {}

Bridge::~Bridge() = default;

absl::Status Bridge::Open() {
  LinkLoop::Handler handler;
  handler.on_message = [this](PeerId peer, absl::StatusOr<Message> message) { Take(peer, std::move(message)); };
  handler.on_connected = [this](PeerId peer, bool is_consumer) {
    if (is_consumer || options_.tracking_interval_ms == 0) return;
    loop_->Send(peer, Pack("STT_TDATA", "", 0, PackTrackingRequest(options_.tracking_interval_ms), {}, {}));
  };
  handler.lender = [this](const MessageHeader& header, absl::string_view begin) { return PlaceOf(header, begin); };
  handler.on_tick = [this] { Tick(); };
  INTRAWARP_ASSIGN_OR_RETURN(loop_, LinkLoop::Create(options_.link, handler, &counters_));
  if (options_.listen) {
    INTRAWARP_ASSIGN_OR_RETURN(port_, loop_->Listen(*options_.listen));
  }
  if (options_.metrics) {
    INTRAWARP_ASSIGN_OR_RETURN(metrics_port_,
                               loop_->ServeMetrics(*options_.metrics, [this] { return counters_.Text(); }));
  }
  for (const HostPort& each : options_.devices) INTRAWARP_RETURN_IF_ERROR(loop_->Connect(each, false));
  for (const HostPort& each : options_.consumers) INTRAWARP_RETURN_IF_ERROR(loop_->Connect(each, true));
  session_ = std::make_unique<FrameSession>(
      options_, [this](const FrameOutcome& outcome) { TakeResult(outcome); }, &counters_);
  return absl::OkStatus();
}

void Bridge::Take(PeerId peer, absl::StatusOr<Message> message) {
  const auto now = Clock::now();
  absl::Status status = message.status();
  if (status.ok()) {
    status = message->header.type == "IMAGE" ? TakeImage(*std::move(message), now) : Dispatch(peer, *message, now);
    if (!status.ok()) counters_.Lose(Lost::kContent);
  }
  if (status.ok()) return;
  const StatusContent told = {StatusCode::kUnknownError, static_cast<int64_t>(status.code()), "Refused",
                              std::string(status.message())};
  loop_->Send(peer, Pack("STATUS", absl::StrCat(options_.device_prefix, "Error"), 0, PackStatus(told), {}, {}));
}

absl::Status Bridge::Dispatch(PeerId peer, const Message& message, Clock::time_point now) {
  const std::string& type = message.header.type;
  if (type == "TRANSFORM") return TakeTransform(message, now);
  if (type == "POSITION" || type == "QTRANS") return TakePosition(message, now);
  if (type == "TDATA") return TakeTools(message, now);
  if (type == "POINT") return TakePoints(message, now);
  if (type == "POLYDATA") return TakeMesh(message, now);
  if (type == "STRING") return TakeString(peer, message);
  if (type == "COMMAND") return TakeCommand(peer, message);
  if (type == "GET_STATUS") {
    next_status_ = now;
    return absl::OkStatus();
  }
  ++counters_.messages_ignored;
  return absl::OkStatus();
}

bool Bridge::IsTool(const std::string& device) const {
  if (absl::EndsWith(device, options_.mapped_suffix) || absl::StartsWith(device, options_.device_prefix)) return false;
  return options_.tools.empty() || std::count(options_.tools.begin(), options_.tools.end(), device) > 0;
}

bool Bridge::IsFrameDevice(const std::string& device) const {
  if (absl::StartsWith(device, options_.device_prefix)) return false;
  return options_.image_device.empty() || device == options_.image_device;
}

LentPlace Bridge::PlaceOf(const MessageHeader& header, absl::string_view body_begin) {
  if (header.type != "IMAGE" || !IsFrameDevice(header.device)) return {};
  const absl::StatusOr<VoxelPart> part = FindVoxels(header, body_begin);
  if (!part.ok()) return {};
  const ImageHeader& image = part->header;
  if (!image.is_whole() || image.is_big_endian || image.components != 1) return {};
  return {session_->LendSlot(image.size, image.pixel_type), part->begin, part->bytes};
}

absl::Status Bridge::TakeImage(Message message, Clock::time_point now) {
  if (!IsFrameDevice(message.header.device)) {
    ++counters_.messages_ignored;
    return absl::OkStatus();
  }
  const auto memory = std::make_shared<const Message>(std::move(message));
  ImageContent image;
  if (memory->place != nullptr) {
    INTRAWARP_ASSIGN_OR_RETURN(image.header, ParseImageHeader(memory->content()));
  } else {
    INTRAWARP_ASSIGN_OR_RETURN(image, ParseImage(memory->content()));
  }
  if (image.header.components != 1) return absl::UnimplementedError("image.components: only 1 is registered");
  ImageFrame frame;
  frame.pixel_type = image.header.pixel_type;
  INTRAWARP_ASSIGN_OR_RETURN(frame.geometry, GeometryOfImage(image.header));
  if (!options_.pose_device.empty()) {
    if (!image_pose_) return absl::FailedPreconditionError("image: the pose of the image has not come yet");
    frame.geometry = Placed(frame.geometry, *image_pose_);
    INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(frame.geometry));
  }
  frame.timestamp = memory->header.timestamp;
  frame.received = now;
  if (memory->place != nullptr) {
    frame.loan = std::static_pointer_cast<SlotLoan>(memory->place);
  } else {
    INTRAWARP_ASSIGN_OR_RETURN(const bool is_whole, TakeVoxels(memory, image, frame));
    if (!is_whole) return absl::OkStatus();
  }
  session_->Put(std::move(frame));
  return absl::OkStatus();
}

absl::StatusOr<bool> Bridge::TakeVoxels(std::shared_ptr<const Message> memory, const ImageContent& image,
                                        ImageFrame& frame) {
  frame.memory = std::shared_ptr<const std::string>(memory, &memory->body);
  frame.voxels = image.voxels;
  if (!image.header.is_whole()) {
    INTRAWARP_ASSIGN_OR_RETURN(const bool is_whole, assembler_.Add(image));
    if (!is_whole) return false;
    frame.memory = std::make_shared<const std::string>(assembler_.voxels());
    frame.voxels = *frame.memory;
  }
  if (image.header.is_big_endian) {
    auto swapped = std::make_shared<std::string>(frame.voxels);
    SwapBytes(*swapped, BytesPerPixel(frame.pixel_type));
    frame.memory = swapped;
    frame.voxels = *swapped;
  }
  return true;
}

std::shared_ptr<const Snapshot> Bridge::newest() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return newest_;
}

std::shared_ptr<const Snapshot> Bridge::Usable(Clock::time_point now) {
  std::shared_ptr<const Snapshot> snapshot = newest();
  if (snapshot != nullptr && snapshot->age_ms(now) <= options_.max_field_age_ms) return snapshot;
  counters_.Lose(Lost::kField);
  return nullptr;
}

std::optional<Vec3d> Bridge::MapPoint(const Snapshot& snapshot, const Vec3d& wire) const {
  const Vec3d point = Turn(options_.coordinates, wire);
  const std::optional<Vec3d> mapped =
      options_.is_volume_fixed ? snapshot.map->MapInverse(point) : std::optional<Vec3d>(snapshot.map->Map(point));
  if (!mapped) return std::nullopt;
  return Turn(options_.coordinates, *mapped);
}

std::optional<AffineMap> Bridge::MapPose(const Snapshot& snapshot, const std::string& name, const AffineMap& wire) {
  const AffineMap pose = Turn(options_.coordinates, wire);
  const std::optional<AffineMap> mapped = options_.is_volume_fixed
                                              ? snapshot.map->MapPoseInverse(pose)
                                              : std::optional<AffineMap>(snapshot.map->MapPose(pose));
  if (!mapped) {
    counters_.Lose(Lost::kField);
    return std::nullopt;
  }
  if (tips_.count(name) > 0 || tips_.size() < kMaxTips) {
    // The map of errors lies in the fixed image's space.
    const AffineMap& fixed = options_.is_volume_fixed ? *mapped : pose;
    const Vec3d tip = {fixed.m[0][3], fixed.m[1][3], fixed.m[2][3]};
    tips_[name] = snapshot.errors ? snapshot.errors->At(tip) : std::nullopt;
  }
  return Turn(options_.coordinates, *mapped);
}

absl::Status Bridge::TakeTransform(const Message& message, Clock::time_point now) {
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap pose, ParseTransform(message.content()));
  const std::string& device = message.header.device;
  if (!options_.pose_device.empty() && device == options_.pose_device) {
    image_pose_ = Turn(options_.coordinates, pose);
    return absl::OkStatus();
  }
  if (!IsTool(device)) {
    ++counters_.messages_ignored;
    return absl::OkStatus();
  }
  const std::shared_ptr<const Snapshot> snapshot = Usable(now);
  if (snapshot == nullptr) return absl::OkStatus();
  const std::optional<AffineMap> mapped = MapPose(*snapshot, device, pose);
  if (mapped) SendMapped(message, *snapshot, PackTransform(*mapped), now);
  return absl::OkStatus();
}

absl::Status Bridge::TakePosition(const Message& message, Clock::time_point now) {
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap pose, ParsePosition(message.content()));
  if (!IsTool(message.header.device)) return absl::OkStatus();
  const std::shared_ptr<const Snapshot> snapshot = Usable(now);
  if (snapshot == nullptr) return absl::OkStatus();
  const std::optional<AffineMap> mapped = MapPose(*snapshot, message.header.device, pose);
  if (mapped) SendMapped(message, *snapshot, PackPosition(*mapped), now);
  return absl::OkStatus();
}

absl::Status Bridge::TakeTools(const Message& message, Clock::time_point now) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<TrackedTool> tools, ParseTrackingData(message.content()));
  const std::shared_ptr<const Snapshot> snapshot = Usable(now);
  if (snapshot == nullptr) return absl::OkStatus();
  std::vector<TrackedTool> mapped;
  for (const TrackedTool& tool : tools) {
    if (!IsTool(tool.name)) continue;
    const std::optional<AffineMap> pose = MapPose(*snapshot, tool.name, tool.pose);
    if (pose) mapped.push_back({tool.name, tool.type, *pose});
  }
  if (!mapped.empty()) SendMapped(message, *snapshot, PackTrackingData(mapped), now);
  return absl::OkStatus();
}

absl::Status Bridge::TakePoints(const Message& message, Clock::time_point now) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<NamedPoint> points, ParsePoints(message.content()));
  if (!IsTool(message.header.device)) return absl::OkStatus();
  const std::shared_ptr<const Snapshot> snapshot = Usable(now);
  if (snapshot == nullptr) return absl::OkStatus();
  std::vector<NamedPoint> mapped;
  for (const NamedPoint& point : points) {
    const std::optional<Vec3d> position = MapPoint(*snapshot, point.position);
    if (!position) {
      counters_.Lose(Lost::kField);
      continue;
    }
    mapped.push_back(point);
    mapped.back().position = *position;
  }
  SendMapped(message, *snapshot, PackPoints(mapped), now);
  return absl::OkStatus();
}

absl::Status Bridge::TakeMesh(const Message& message, Clock::time_point now) {
  INTRAWARP_ASSIGN_OR_RETURN(Mesh mesh, ParseMesh(message.content()));
  if (!IsTool(message.header.device)) return absl::OkStatus();
  const std::shared_ptr<const Snapshot> snapshot = Usable(now);
  if (snapshot == nullptr) return absl::OkStatus();
  for (Vec3d& point : mesh.points) {
    const std::optional<Vec3d> mapped = MapPoint(*snapshot, point);
    if (!mapped) {
      counters_.Lose(Lost::kField);
      return absl::OkStatus();
    }
    point = *mapped;
  }
  SendMapped(message, *snapshot, PackMesh(mesh), now);
  return absl::OkStatus();
}

void Bridge::SendMapped(const Message& from, const Snapshot& snapshot, const std::string& content,
                        Clock::time_point now) {
  const std::string device =
      from.header.device.substr(0, kDeviceBytes - options_.mapped_suffix.size()) + options_.mapped_suffix;
  Metadata metadata = Describe(snapshot, now);
  const auto tip = tips_.find(from.header.device);
  if (tip != tips_.end() && tip->second) {
    metadata.emplace_back("tip_expected_mm", absl::StrFormat("%.2f", tip->second->expected_mm));
    metadata.emplace_back("tip_bound_mm", absl::StrFormat("%.2f", tip->second->bound_mm));
  }
  Broadcast(from.header.type, device, from.header.timestamp, content, {}, std::move(metadata));
  counters_.pose_seconds.Observe(Clock::now() - now);
}

absl::Status Bridge::TakeString(PeerId peer, const Message& message) {
  const std::string device = absl::StrCat(options_.device_prefix, "Ctl");
  INTRAWARP_ASSIGN_OR_RETURN(const std::string text, ParseString(message.content()));
  if (message.header.device != device) {
    ++counters_.messages_ignored;
    return absl::OkStatus();
  }
  const size_t space = std::min(text.find(' '), text.size());
  const auto answer =
      Execute(text.substr(0, space), ArgumentOf(text.substr(space)), CurrentStatus(nullptr).message, *session_);
  const std::string told = answer.ok() ? *answer : absl::StrCat("error: ", answer.status().message());
  loop_->Send(peer, Pack("STRING", device, message.header.timestamp, PackString(told), {}, {}));
  return absl::OkStatus();
}

absl::Status Bridge::TakeCommand(PeerId peer, const Message& message) {
  INTRAWARP_ASSIGN_OR_RETURN(CommandContent command, ParseCommand(message.content()));
  const auto answer = Execute(command.name, ArgumentOf(command.text), CurrentStatus(nullptr).message, *session_);
  command.text = ResultXml(answer.ok(), answer.ok() ? absl::string_view(*answer) : answer.status().message());
  OutMessage out = Pack("RTS_COMMAND", message.header.device, message.header.timestamp, PackCommand(command), {},
                        {{"status", answer.ok() ? "SUCCESS" : "FAIL"}});
  // Answers do not replace each other.
  absl::StrAppend(&out.key, "/", command.id);
  loop_->Send(peer, std::move(out));
  return absl::OkStatus();
}

void Bridge::Tick() {
  const auto now = Clock::now();
  if (now < next_status_) return;
  next_status_ = now + std::chrono::milliseconds(options_.status_interval_ms);
  Metadata metadata;
  const StatusContent status = CurrentStatus(&metadata);
  Broadcast("STATUS", absl::StrCat(options_.device_prefix, "Status"), TimestampOf(std::chrono::system_clock::now()),
            PackStatus(status), {}, std::move(metadata));
}

StatusContent Bridge::CurrentStatus(Metadata* metadata) const {
  std::shared_ptr<const Snapshot> last, used;
  std::string failure;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    last = last_result_;
    used = newest_;
    failure = last_failure_;
  }
  const auto now = Clock::now();
  const FrameSession::State session = session_->state();
  Metadata all = {{"session", session.word}};
  if (session.failures > 0) all.emplace_back("session_failures", absl::StrCat(session.failures));
  all.emplace_back("sessions_lost", absl::StrCat(counters_.sessions_lost.load()));
  if (last != nullptr) {
    const Metadata described = Describe(*last, now);
    all.insert(all.end(), described.begin(), described.end());
  }
  if (used != nullptr) all.emplace_back("field_age_ms", absl::StrCat(used->age_ms(now)));
  if (!failure.empty()) all.emplace_back("last_failure", failure);
  all.emplace_back("frames_sent", absl::StrCat(counters_.frames_sent.load()));
  all.emplace_back("frames_lost", absl::StrCat(counters_.LostAt(Lost::kFrame) + counters_.LostAt(Lost::kServer)));
  all.emplace_back("poses_lost", absl::StrCat(counters_.LostAt(Lost::kField)));
  all.emplace_back("messages_lost",
                   absl::StrCat(counters_.LostAt(Lost::kConsumer) + counters_.LostAt(Lost::kConsumerQueue) +
                                counters_.LostAt(Lost::kChecksum) + counters_.LostAt(Lost::kContent)));
  for (const auto& [name, error] : tips_) {
    all.emplace_back(absl::StrCat("tip_expected_mm.", name),
                     error ? absl::StrFormat("%.2f", error->expected_mm) : "unknown");
  }
  StatusContent status;
  if (used == nullptr) {
    status.code = StatusCode::kNotReady;
    status.error_name = "NoField";
  } else if (used->age_ms(now) > options_.max_field_age_ms) {
    status.code = StatusCode::kTimeout;
    status.error_name = "FieldTooOld";
  } else if (session.is_lost) {
    status.code = StatusCode::kTimeout;
    status.error_name = "ServerLost";
  } else if (!last->is_ok) {
    status.code = StatusCode::kUnknownError;
    status.error_name = "Review";
  }
  for (const auto& [key, value] : all) {
    absl::StrAppend(&status.message, status.message.empty() ? "" : " ", key, "=", value);
  }
  if (metadata != nullptr) *metadata = std::move(all);
  return status;
}

}  // namespace intrawarp::igtl
