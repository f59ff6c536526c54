// SPDX-License-Identifier: Apache-2.0
#include "server/page/viewer_hub.h"

#include <utility>

#include "server/page/low_priority.h"
#include "server/session/navigate_session.h"

namespace intrawarp::server {
namespace {

// A viewer whose connection broke is back by then.
constexpr std::chrono::seconds kForgottenAfter{10};
constexpr std::chrono::seconds kPeriod{1};

}  // namespace

ViewerHub::ViewerHub(const Seams& seams, std::function<void()> changed)
    : seams_(seams), changed_(std::move(changed)), worker_([this] { Loop(); }) {}

ViewerHub::~ViewerHub() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  worker_.join();
  for (auto& [key, entry] : entries_) {
    if (const Session session = entry.session.lock()) session->set_tap(nullptr);
  }
}

ViewerHub::Entry& ViewerHub::EntryOf(const Session& session) {
  Entry& entry = entries_[session.get()];
  if (entry.session.lock() != session) {
    entry = Entry();
    entry.session = session;
  }
  return entry;
}

const ViewerHub::Entry* ViewerHub::FindEntry(const Session& session) const {
  const auto it = entries_.find(session.get());
  return it == entries_.end() || it->second.session.lock() != session ? nullptr : &it->second;
}

std::shared_ptr<SessionView> ViewerHub::Join(const Session& session) {
  std::shared_ptr<SessionView> view;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = EntryOf(session);
    if (entry.view == nullptr) {
      entry.view = std::make_shared<SessionView>(session, [this] {
        {
          std::lock_guard<std::mutex> lock(mutex_);
          has_work_ = true;
        }
        wake_.notify_one();
        changed_();
      });
    }
    ++entry.viewers;
    has_work_ = true;
    view = entry.view;
    session->set_tap(view);
  }
  wake_.notify_one();
  SessionView* const pointer = view.get();
  return {pointer, [this, key = session.get(), view = std::move(view)](SessionView*) mutable {
            view.reset();
            Leave(key);
          }};
}

void ViewerHub::Leave(Key key) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = entries_.find(key);
  if (it == entries_.end() || it->second.viewers == 0) return;
  --it->second.viewers;
  it->second.left = seams_.steady_now();
}

std::shared_ptr<SessionView> ViewerHub::Find(const Session& session) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Entry* const entry = FindEntry(session);
  return entry == nullptr ? nullptr : entry->view;
}

void ViewerHub::SetTip(const Session& session, Vec3d tip) {
  std::lock_guard<std::mutex> lock(mutex_);
  EntryOf(session).tip = Tip{tip, seams_.steady_now()};
}

std::optional<ViewerHub::Tip> ViewerHub::TipOf(const Session& session) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Entry* const entry = FindEntry(session);
  return entry == nullptr ? std::nullopt : entry->tip;
}

std::vector<ViewerHub::Entry> ViewerHub::TakeForgotten() {
  std::vector<Entry> forgotten;
  const auto now = seams_.steady_now();
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = it->second;
    const bool is_left = entry.viewers == 0 && now - entry.left >= kForgottenAfter;
    const bool has_tip = entry.tip && now - entry.tip->time < kForgottenAfter;
    if ((is_left && !has_tip) || (entry.session.expired() && entry.viewers == 0)) {
      forgotten.push_back(std::move(entry));
      it = entries_.erase(it);
    } else {
      ++it;
    }
  }
  return forgotten;
}

void ViewerHub::Loop() {
  LowerPriority();
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    wake_.wait_for(lock, kPeriod, [this] { return stopping_ || has_work_; });
    has_work_ = false;
    std::vector<std::shared_ptr<SessionView>> views;
    for (const auto& [key, entry] : entries_) {
      if (entry.view != nullptr) views.push_back(entry.view);
    }
    const std::vector<Entry> forgotten = TakeForgotten();
    // With the mutex held: a viewer who comes meanwhile sets a tap of his own after it.
    std::vector<Session> left;
    for (const Entry& entry : forgotten) {
      left.push_back(entry.session.lock());
      if (left.back() != nullptr && left.back()->tap() == entry.view) left.back()->set_tap(nullptr);
    }
    lock.unlock();
    left.clear();
    for (const auto& view : views) view->Work();
    views.clear();
    lock.lock();
  }
}

}  // namespace intrawarp::server
