// SPDX-License-Identifier: Apache-2.0
// ViewerHub: the sessions that somebody looks at. A session has a tap from its first viewer's coming until a while
// after its last one's leaving, and its frames cost nothing beside that. One thread makes the pictures of all sessions,
// in turn.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_PAGE_VIEWER_HUB_H_
#define INTRAWARP_SERVER_PAGE_VIEWER_HUB_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/geometry/vec.h"
#include "server/base/seams.h"
#include "server/page/session_view.h"

namespace intrawarp::server {

class NavigateSession;

class ViewerHub {
 public:
  // `changed` is called, without a lock, when a session has something new.
  ViewerHub(const Seams& seams, std::function<void()> changed);
  // Waits for the picture under way; no viewer is left.
  ~ViewerHub();

  using Session = std::shared_ptr<NavigateSession>;
  // A viewer of the session, until the pointer goes.
  std::shared_ptr<SessionView> Join(const Session& session);
  // The view of a session that has viewers, or had some a moment ago; null: it has none.
  std::shared_ptr<SessionView> Find(const Session& session) const;

  // The tip of the tool, in the space of the session's frames.
  void SetTip(const Session& session, Vec3d tip);
  struct Tip {
    Vec3d point;
    std::chrono::steady_clock::time_point time;
  };
  std::optional<Tip> TipOf(const Session& session) const;

 private:
  struct Entry {
    std::weak_ptr<NavigateSession> session;
    std::shared_ptr<SessionView> view;  // null: only a tip
    int viewers = 0;
    std::chrono::steady_clock::time_point left;
    std::optional<Tip> tip;
  };
  using Key = const NavigateSession*;
  using Entries = std::map<Key, Entry>;

  void Leave(Key key);
  void Loop();
  // With the mutex held. The entry of the very session: another one may have had its address.
  Entry& EntryOf(const Session& session);
  const Entry* FindEntry(const Session& session) const;
  // Takes out what nobody looks at any more.
  std::vector<Entry> TakeForgotten();

  const Seams& seams_;
  const std::function<void()> changed_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool has_work_ = false;
  bool stopping_ = false;
  Entries entries_;
  std::thread worker_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_VIEWER_HUB_H_
