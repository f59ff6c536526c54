// SPDX-License-Identifier: Apache-2.0
#include "tests/server/simulation/virtual_time.h"

namespace intrawarp::server {
namespace {

thread_local Coroutine* current = nullptr;

}  // namespace

bool VirtualTime::Step() {
  if (events_.empty()) return false;
  const Event event = events_.top();
  events_.pop();
  now_ = event.time;
  event.happen();
  return true;
}

bool VirtualTime::Pass(Duration duration) {
  if (!events_.empty() && events_.top().time <= now_ + duration) return false;
  now_ += duration;
  return true;
}

Coroutine* Coroutine::Current() { return current; }

Coroutine::~Coroutine() {
  body_ = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    runs_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Coroutine::Start(std::function<void()> body) {
  body_ = std::move(body);
  Resume();
}

void Coroutine::Resume() { HandOver(/*to_coroutine=*/true); }

void Coroutine::Suspend() { HandOver(/*to_coroutine=*/false); }

void Coroutine::HandOver(bool to_coroutine) {
  std::unique_lock<std::mutex> lock(mutex_);
  runs_ = to_coroutine;
  changed_.notify_one();
  changed_.wait(lock, [&] { return runs_ != to_coroutine; });
}

void Coroutine::Loop() {
  current = this;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return runs_; });
  }
  while (body_) {
    body_();
    body_ = nullptr;
    Suspend();
  }
}

}  // namespace intrawarp::server
