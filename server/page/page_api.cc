// SPDX-License-Identifier: Apache-2.0
#include "server/page/page_api.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/base/names.h"
#include "server/identity/method_roles.h"
#include "server/page/low_priority.h"
#include "server/session/navigate_session.h"
#include "server/session/session_store.h"
#include "server/status/errors.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {
namespace {

constexpr char kListSessions[] = "intrawarp.v1.SessionService/ListSessions";
constexpr size_t kMostOrders = 12;
constexpr int kFallbackWidth = 256;

}  // namespace

PageAnswer AnswerOf(const absl::Status& status) {
  const std::string text = absl::StrCat(status.message(), "\n");
  switch (status.code()) {
    case absl::StatusCode::kUnauthenticated:
      return {401, text};
    case absl::StatusCode::kPermissionDenied:
      return {403, text};
    case absl::StatusCode::kNotFound:
      return {404, text};
    case absl::StatusCode::kInvalidArgument:
      return {400, text};
    case absl::StatusCode::kFailedPrecondition:
      return {409, text};
    default:
      return {503, text};
  }
}

PageApi::PageApi(ServerContext& context, IdentifyFn identify, AuditTrail& audit, ViewerHub& hub)
    : context_(context), identify_(std::move(identify)), audit_(audit), hub_(hub), drawer_([this] { DrawLoop(); }) {}

PageApi::~PageApi() {
  StopDrawing();
  std::map<int64_t, Unrecorded::Waiting> streams;  // which may be the last viewers of their sessions
  {
    std::lock_guard<std::mutex> lock(unrecorded_->mutex);
    streams.swap(unrecorded_->streams);
  }
  for (const auto& [number, waiting] : streams) waiting.stream->End();
}

absl::StatusOr<Identity> PageApi::Admit(const PageRequest& request, const std::string& peer) const {
  absl::StatusOr<Identity> caller = identify_(request.header("authorization"));
  if (!caller.ok()) {
    audit_.AppendRefusal({"page", "", peer}, {"UNAUTHENTICATED", ""});
    return caller;
  }
  if (MayCall(caller->roles, kListSessions)) return caller;
  audit_.AppendRefusal({"page", caller->name, peer}, {"PERMISSION_DENIED", ""});
  return absl::PermissionDeniedError("the role frame or admin sees sessions");
}

absl::StatusOr<ViewerHub::Session> PageApi::FindSession(const std::string& id, const PageRequest& request,
                                                        const Identity& caller) const {
  const auto owner = request.query.find("owner");
  if (owner == request.query.end()) return context_.sessions.Find(id, caller);
  if (!caller.MaySee(owner->second)) return NotFound(SessionName(id));
  return context_.sessions.Find(id, Identity{.name = owner->second, .roles = {}});
}

absl::StatusOr<std::shared_ptr<PageStream>> PageApi::OpenStream(const PageTarget& target, const PageRequest& request,
                                                                const Identity& caller, const std::string& peer,
                                                                std::function<void()> changed) {
  if (target.what == "state") {
    const std::string authorization = request.header("authorization");
    auto stream = std::make_shared<StateStream>(
        context_.seams, context_, hub_, [this, authorization] { return identify_(authorization); }, caller);
    stream->SetRecorded();
    return stream;
  }
  INTRAWARP_ASSIGN_OR_RETURN(const ViewerHub::Session session, FindSession(target.session, request, caller));
  INTRAWARP_RETURN_IF_ERROR(audit_.Available());
  const bool is_reference = target.what == "reference";
  const PacketKind kind = is_reference                          ? PacketKind::kReference
                          : request.parameter("picture") == "0" ? PacketKind::kHeads
                                                                : PacketKind::kPictures;
  const std::string authorization = request.header("authorization");
  auto stream = std::make_shared<PacketStream>(
      context_.seams, session, hub_.Join(session), kind, [this, authorization, name = caller.name] {
        const absl::StatusOr<Identity> now = identify_(authorization);
        return now.ok() && now->name == name && MayCall(now->roles, kListSessions);
      });
  Record(target, caller, peer, stream, std::move(changed));
  return stream;
}

void PageApi::Record(const PageTarget& target, const Identity& caller, const std::string& peer,
                     const std::shared_ptr<PageStream>& stream, std::function<void()> changed) {
  if (!audit_.enabled()) return stream->SetRecorded();
  audit::AuditRecord record;
  record.action = absl::StrCat("page.", target.what);
  record.who = caller.name;
  record.peer = peer;
  record.outcome = "OK";
  record.names = {{"session", audit_.NameDigest(SessionName(target.session))}};
  int64_t number = 0;
  {
    std::lock_guard<std::mutex> lock(unrecorded_->mutex);
    number = unrecorded_->next++;
    unrecorded_->streams[number] = {stream, std::move(changed)};
  }
  audit_.Append(std::move(record), [unrecorded = unrecorded_, number](const absl::Status& status) {
    unrecorded->End(number, status.ok());
  });
}

// With the mutex held to the end, so that the page waits for a call under way.
void PageApi::Unrecorded::End(int64_t number, bool is_written) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto it = streams.find(number);
  if (it == streams.end()) return;
  const Waiting waiting = std::move(it->second);
  streams.erase(it);
  is_written ? waiting.stream->SetRecorded() : waiting.stream->End();
  waiting.changed();
}

PageAnswer PageApi::SetTip(const std::string& session, const PageRequest& request, const Identity& caller) {
  const absl::StatusOr<ViewerHub::Session> found = FindSession(session, request, caller);
  if (!found.ok()) return AnswerOf(found.status());
  const std::optional<Vec3d> point = request.Point();
  if (!point) return {400, "x, y and z: must be numbers, LPS mm\n"};
  hub_.SetTip(*found, *point);
  return {204, ""};
}

absl::StatusOr<std::shared_ptr<PagePlane>> PageApi::FindPlane(const std::string& session, const PageRequest& request,
                                                              const Identity& caller) const {
  INTRAWARP_ASSIGN_OR_RETURN(const ViewerHub::Session found, FindSession(session, request, caller));
  auto plane = std::make_shared<PagePlane>();
  const std::optional<Plane> which = ParsePlane(request.parameter("plane"));
  if (!which) return absl::InvalidArgumentError("plane: must be axial, coronal or sagittal");
  const std::optional<PlaneMode> mode = ParsePlaneMode(request.parameter("mode"));
  if (!mode) return absl::InvalidArgumentError("mode: is not one of the page's");
  const std::optional<Vec3d> cross = request.Point();
  if (!cross) return absl::InvalidArgumentError("x, y and z: must be numbers, LPS mm");
  const double width = request.Number("width").value_or(kFallbackWidth);
  plane->width = static_cast<int>(std::clamp(width, 1.0, static_cast<double>(kMostPlaneWidth)));
  plane->plane = *which;
  plane->mode = *mode;
  plane->cross = *cross;
  plane->view = hub_.Find(found);
  if (plane->view == nullptr) return absl::FailedPreconditionError("nobody follows the session's frames");
  return plane;
}

bool PageApi::Draw(std::shared_ptr<PagePlane> plane, std::function<void()> done) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_ || orders_.size() >= kMostOrders) return false;
  orders_.push_back({std::move(plane), std::move(done)});
  ordered_.notify_one();
  return true;
}

void PageApi::StopDrawing() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  ordered_.notify_one();
  if (drawer_.joinable()) drawer_.join();
}

void PageApi::DrawLoop() {
  LowerPriority();
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    ordered_.wait(lock, [this] { return stopping_ || !orders_.empty(); });
    if (stopping_) return;
    Order order = std::move(orders_.front());
    orders_.pop_front();
    lock.unlock();
    PagePlane& plane = *order.plane;
    absl::StatusOr<std::string> png = plane.view->DrawPlane(plane.plane, plane.mode, plane.cross, plane.width);
    plane.answer = png.ok() ? PageAnswer{200, *std::move(png), "image/png"} : AnswerOf(png.status());
    plane.view.reset();
    order.done();
    order = {};
    lock.lock();
  }
}

}  // namespace intrawarp::server
