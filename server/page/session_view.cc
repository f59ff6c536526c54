// SPDX-License-Identifier: Apache-2.0
#include "server/page/session_view.h"

#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "server/monitor/log.h"
#include "server/page/device_reads.h"
#include "server/session/navigate_session.h"

namespace intrawarp::server {
namespace {

constexpr char kFixed[] = "fixed";
constexpr char kMoving[] = "moving";

std::shared_ptr<const std::string> BytesOf(const std::vector<float>& values) {
  return std::make_shared<std::string>(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

Json ReasonsJson(const v1::Report& report) {
  Json reasons = Json::array();
  for (const v1::VerdictReason& reason : report.reasons()) {
    Json each = {{"cause", reason.message()}};
    if (reason.has_value()) each["value"] = reason.value();
    if (reason.has_limit()) each["limit"] = reason.limit();
    reasons.push_back(std::move(each));
  }
  return reasons;
}

Json HeadOf(const TappedFrame& frame, const Geometry& fixed, std::chrono::nanoseconds total) {
  const v1::Report& report = frame.report;
  Json head = {{"frame", frame.number},
               {"begin", SecondsOf(frame.begin)},
               {"latency_ms", MillisecondsOf(total)},
               {"fate", frame.fate == FrameFate::kLate ? "late" : "ok"},
               {"verdict", report.verdict() == v1::VERDICT_OK ? "ok" : "review"},
               {"reasons", ReasonsJson(report)},
               {"fixed", GridJson(fixed)}};
  if (frame.limit) head["limit_ms"] = MillisecondsOf(*frame.limit);
  if (report.has_error()) head["expected_error_mm"] = report.error().expected_mm();
  return head;
}

}  // namespace

SessionView::SessionView(const std::shared_ptr<NavigateSession>& session, std::function<void()> changed)
    : session_(session), resident_is_fixed_(session->setup().resident_is_fixed), changed_(std::move(changed)) {}

void SessionView::Take(TappedFrame frame) {
  std::optional<TappedFrame> before;  // freed after the lock
  {
    std::lock_guard<std::mutex> lock(mutex_);
    before = std::exchange(waiting_, std::move(frame));
  }
  changed_();
}

bool SessionView::Work() {
  const std::shared_ptr<NavigateSession> session = session_.lock();
  if (session == nullptr) return false;
  std::optional<TappedFrame> frame;
  bool lacks_reference = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    frame.swap(waiting_);
    lacks_reference = reference_ == nullptr && !reference_failed_;
  }
  if (!frame && !lacks_reference) return false;
  if (lacks_reference) {
    const absl::Status status = MakeReference(*session);
    reference_failed_ = !status.ok();
    if (!status.ok()) Log(Severity::kWarning, "page_reference", {{"cause", status.ToString()}});
  }
  if (frame) {
    reference_failed_ = false;  // the next frame's turn tries again
    std::shared_ptr<const FramePicture> picture = MakePicture(*session, *std::move(frame));
    std::lock_guard<std::mutex> lock(mutex_);
    picture_.swap(picture);
  }
  changed_();
  return true;
}

absl::Status SessionView::MakeReference(NavigateSession& session) {
  const PreparedImage& image = session.setup().resident->image;
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<float> voxels, ReadVoxels(session.context(), image, session.owner()));
  const ShownRange range = RangeOf(voxels.data(), PixelType::kFloat32, {}, image.geometry());
  ShownRange whole = range;
  // A step of the 16 bits is a whole number where the image's range allows it.
  whole.low = -32768;
  whole.high = 32767;
  const bool is_exact = image.minimum() >= whole.low && image.maximum() <= whole.high && image.maximum() > 255;
  auto shown = std::make_shared<const ShownImage>(
      ShowImage(voxels.data(), PixelType::kFloat32, {}, image.geometry(), is_exact ? whole : range, kReferenceLimits));
  Json head = {{"image", shown->ToJson(resident_is_fixed_ ? kFixed : kMoving)}};
  auto packet = std::make_shared<const Packet>(std::move(head), std::vector<Packet::Part>{{"image", shown->voxels}});
  std::lock_guard<std::mutex> lock(mutex_);
  resident_ = std::move(shown);
  reference_ = std::move(packet);
  return absl::OkStatus();
}

std::shared_ptr<const FramePicture> SessionView::MakePicture(NavigateSession& session, TappedFrame frame) {
  auto picture = std::make_shared<FramePicture>();
  picture->number = frame.number;
  if (!range_) range_ = RangeOf(frame.pixels->as<char>(), frame.pixel_type, frame.rescale, frame.geometry);
  picture->frame =
      ShowImage(frame.pixels->as<char>(), frame.pixel_type, frame.rescale, frame.geometry, *range_, ShownLimits());
  frame.pixels.reset();
  const Geometry& fixed = resident_is_fixed_ ? session.setup().resident->image.geometry() : frame.geometry;
  absl::StatusOr<ShownField> field = ReadField(session.context(), frame.transform, fixed, session.owner());
  if (!field.ok()) Log(Severity::kWarning, "page_field", {{"cause", field.status().ToString()}});
  if (field.ok()) picture->field = *std::move(field);
  picture->error = std::move(frame.error_map);

  Json head = HeadOf(frame, fixed, frame.total);
  head["image"] = picture->frame.ToJson(resident_is_fixed_ ? kMoving : kFixed);
  std::vector<Packet::Part> parts = {{"image", picture->frame.voxels}};
  if (picture->field) {
    head["field"] = {{"grid", GridJson(picture->field->grid)}, {"scale_mm", picture->field->scale}};
    parts.push_back({"field", picture->field->nodes});
  }
  if (picture->error) {
    head["error"] = {{"grid", GridJson(picture->error->blocks)}};
    parts.push_back({"error", BytesOf(picture->error->expected_mm)});
  }
  picture->head = std::make_shared<const Packet>(head, std::vector<Packet::Part>());
  picture->packet = std::make_shared<const Packet>(std::move(head), std::move(parts));
  return picture;
}

std::shared_ptr<const FramePicture> SessionView::picture() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return picture_;
}

std::shared_ptr<const Packet> SessionView::reference() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return reference_;
}

absl::StatusOr<std::string> SessionView::DrawPlane(Plane plane, PlaneMode mode, Vec3d cross, int width) const {
  std::shared_ptr<const FramePicture> picture;
  std::shared_ptr<const ShownImage> resident;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    picture = picture_;
    resident = resident_;
  }
  if (picture == nullptr || resident == nullptr) return absl::UnavailableError("there is no picture yet");
  PlaneScene scene;
  scene.fixed = resident_is_fixed_ ? resident.get() : &picture->frame;
  scene.moving = resident_is_fixed_ ? &picture->frame : resident.get();
  if (picture->field) scene.field = &*picture->field;
  if (picture->error) scene.error = &*picture->error;
  return server::DrawPlane(scene, plane, mode, cross, width);
}

}  // namespace intrawarp::server
