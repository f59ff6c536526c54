// SPDX-License-Identifier: Apache-2.0
// SessionView: what is shown of one session, made once for all of its viewers: the resident image, and of the newest
// frame a picture (a packet, and what the server's own planes are drawn of). A frame that comes while another one is
// made into a picture waits, and a newer one takes its place.
//
// A picture costs its session nothing but the buffers that it lends: it is made on a thread of the page's, and its
// field is evaluated on the device's copy lane, from the frame's transform.
//
// Thread safety: safe for concurrent use; Work is one thread's.
#ifndef INTRAWARP_SERVER_PAGE_SESSION_VIEW_H_
#define INTRAWARP_SERVER_PAGE_SESSION_VIEW_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/page/packet.h"
#include "server/page/plane_picture.h"
#include "server/page/shown_image.h"
#include "server/session/frame_tap.h"

namespace intrawarp::server {

class NavigateSession;

// A frame as it is shown. Immutable.
struct FramePicture {
  int64_t number = 0;
  std::shared_ptr<const Packet> packet;
  // For viewers who take the server's planes: only the head.
  std::shared_ptr<const Packet> head;
  ShownImage frame;
  std::optional<ShownField> field;
  std::optional<ErrorMap> error;
};

class SessionView final : public FrameTap {
 public:
  // `changed` is called, without a lock, when there is work to do or something new to send.
  SessionView(const std::shared_ptr<NavigateSession>& session, std::function<void()> changed);

  void Take(TappedFrame frame) override;

  // Makes what is missing: the resident image, the newest frame's picture. Waits for the copy lane. False when there
  // was nothing to do.
  bool Work();

  bool resident_is_fixed() const { return resident_is_fixed_; }
  // Null before the first one.
  std::shared_ptr<const FramePicture> picture() const;
  std::shared_ptr<const Packet> reference() const;
  // The planes of the newest picture. UNAVAILABLE before there are a picture and the resident image.
  absl::StatusOr<std::string> DrawPlane(Plane plane, PlaneMode mode, Vec3d cross, int width) const;

 private:
  absl::Status MakeReference(NavigateSession& session);
  std::shared_ptr<const FramePicture> MakePicture(NavigateSession& session, TappedFrame frame);

  const std::weak_ptr<NavigateSession> session_;
  const bool resident_is_fixed_;
  const std::function<void()> changed_;
  // The first frame's range, so that no picture is brighter than the one before. Only the worker uses it.
  std::optional<ShownRange> range_;
  bool reference_failed_ = false;

  mutable std::mutex mutex_;
  std::optional<TappedFrame> waiting_;
  std::shared_ptr<const FramePicture> picture_;
  std::shared_ptr<const ShownImage> resident_;
  std::shared_ptr<const Packet> reference_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_SESSION_VIEW_H_
