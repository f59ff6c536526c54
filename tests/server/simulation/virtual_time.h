// SPDX-License-Identifier: Apache-2.0
// Virtual time for simulations: a queue of events, and threads of which one runs at a time, so that a run depends on
// nothing but its seed.
//
// Thread safety: the main thread and the coroutines take turns; each hands over where it says so.
#ifndef INTRAWARP_TESTS_SERVER_SIMULATION_VIRTUAL_TIME_H_
#define INTRAWARP_TESTS_SERVER_SIMULATION_VIRTUAL_TIME_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace intrawarp::server {

class VirtualTime {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::nanoseconds;

  Time now() const { return now_; }
  // Events of one time happen in the order of these calls, on the main thread.
  void At(Time time, std::function<void()> event) { events_.push({time, next_order_++, std::move(event)}); }
  void After(Duration delay, std::function<void()> event) { At(now_ + delay, std::move(event)); }
  // The next event; false when there is none.
  bool Step();
  // Lets time pass when nothing happens meanwhile; false when something does.
  bool Pass(Duration duration);

 private:
  struct Event {
    Time time;
    int64_t order;
    std::function<void()> happen;
    bool operator>(const Event& other) const { return std::tie(time, order) > std::tie(other.time, other.order); }
  };

  Time now_{std::chrono::hours(1)};
  int64_t next_order_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

// A thread that runs only while the main thread waits for it.
class Coroutine {
 public:
  Coroutine() : thread_([this] { Loop(); }) {}
  // Its body must have ended.
  ~Coroutine();
  Coroutine(const Coroutine&) = delete;
  Coroutine& operator=(const Coroutine&) = delete;

  // Main thread: begins a body, and returns when it suspends itself or ends.
  void Start(std::function<void()> body);
  // Main thread: lets a suspended body go on, and returns as Start.
  void Resume();
  // The body: hands over to the main thread until Resume.
  void Suspend();
  // The coroutine that runs; null on every other thread.
  static Coroutine* Current();

 private:
  void Loop();

  // Hands the turn to the coroutine, or back, and waits until it returns.
  void HandOver(bool to_coroutine);

  std::function<void()> body_;  // null: the end of the thread
  // No semaphore: it spins, and on a busy machine each hand-over waits for others' time slices.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool runs_ = false;
  std::thread thread_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_SIMULATION_VIRTUAL_TIME_H_
