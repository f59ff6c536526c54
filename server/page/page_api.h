// SPDX-License-Identifier: Apache-2.0
// PageApi: what the page's port answers, without its connections: who may see what, and the streams, planes and tips of
// sessions. Another owner's session answers as one that nobody has.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_PAGE_PAGE_API_H_
#define INTRAWARP_SERVER_PAGE_PAGE_API_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/page/page_request.h"
#include "server/page/page_server.h"
#include "server/page/page_stream.h"
#include "server/page/plane_picture.h"
#include "server/page/viewer_hub.h"

namespace intrawarp::server {

struct PageAnswer {
  int status = 200;
  std::string body;
  std::string content_type = "text/plain; charset=utf-8";
  // Empty: the answer is not to be kept.
  std::string etag = {};
};
// The HTTP status of an error, and its message.
PageAnswer AnswerOf(const absl::Status& status);

// A plane that is drawn on a thread of its own.
struct PagePlane {
  std::shared_ptr<SessionView> view;
  Plane plane = Plane::kAxial;
  PlaneMode mode = PlaneMode::kFixed;
  Vec3d cross;
  int width = 0;
  PageAnswer answer;
  bool is_drawn = false;  // guarded by whoever draws
};

class PageApi {
 public:
  // All outlive it.
  PageApi(ServerContext& context, IdentifyFn identify, AuditTrail& audit, ViewerHub& hub);
  // Does what StopDrawing does. Streams whose records are not written yet end, and nobody is told of them.
  ~PageApi();

  // Who asks, when it may see sessions. UNAUTHENTICATED, PERMISSION_DENIED, which are recorded.
  absl::StatusOr<Identity> Admit(const PageRequest& request, const std::string& peer) const;

  // "state", "frames" or "reference". NOT_FOUND; UNAVAILABLE while nothing can be recorded. `changed` is called when
  // the stream's record is there.
  absl::StatusOr<std::shared_ptr<PageStream>> OpenStream(const PageTarget& target, const PageRequest& request,
                                                         const Identity& caller, const std::string& peer,
                                                         std::function<void()> changed);
  PageAnswer SetTip(const std::string& session, const PageRequest& request, const Identity& caller);

  // INVALID_ARGUMENT, NOT_FOUND; FAILED_PRECONDITION for a session whose frames nobody follows.
  absl::StatusOr<std::shared_ptr<PagePlane>> FindPlane(const std::string& session, const PageRequest& request,
                                                       const Identity& caller) const;
  // Draws it, and calls `done`. False when too many wait.
  bool Draw(std::shared_ptr<PagePlane> plane, std::function<void()> done);
  // Waits for the plane that is being drawn; the others are not drawn. Idempotent.
  void StopDrawing();

 private:
  struct Order {
    std::shared_ptr<PagePlane> plane;
    std::function<void()> done;
  };
  // The streams whose records are on their way to the disk, which may take longer than the page lives. They are held
  // here, and the log has their numbers.
  struct Unrecorded {
    struct Waiting {
      std::shared_ptr<PageStream> stream;
      std::function<void()> changed;
    };
    std::mutex mutex;
    int64_t next = 0;
    std::map<int64_t, Waiting> streams;

    // The record with this number is written, or will not be.
    void End(int64_t number, bool is_written);
  };
  // The session that the caller means by the id, and by its owner where the query names one, which tells the sessions
  // of several owners apart.
  absl::StatusOr<ViewerHub::Session> FindSession(const std::string& id, const PageRequest& request,
                                                 const Identity& caller) const;
  void Record(const PageTarget& target, const Identity& caller, const std::string& peer,
              const std::shared_ptr<PageStream>& stream, std::function<void()> changed);
  void DrawLoop();

  ServerContext& context_;
  const IdentifyFn identify_;
  AuditTrail& audit_;
  ViewerHub& hub_;
  std::mutex mutex_;
  std::condition_variable ordered_;
  std::deque<Order> orders_;
  bool stopping_ = false;
  const std::shared_ptr<Unrecorded> unrecorded_ = std::make_shared<Unrecorded>();
  std::thread drawer_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_PAGE_API_H_
