// SPDX-License-Identifier: Apache-2.0
// LoopPause: what a thread does between the slices of its parallel loops (parallel.h). While one exists, every loop
// that the thread begins is cut by time: after some kSlice all cores stop where they are, the thread calls `pause`, and
// the loop goes on where it stopped. So a thread can wait inside every pass over an image, and nothing of the loop runs
// meanwhile. Results stay the same bits, since a loop's pieces are independent of their order (parallel.h).
//
// A loop inside the body of another one is not cut: the outer loop would wait for it.
//
// Thread safety: a pause belongs to the thread that made it.
#ifndef INTRAWARP_ENGINE_DEVICE_LOOP_PAUSE_H_
#define INTRAWARP_ENGINE_DEVICE_LOOP_PAUSE_H_

#include <chrono>
#include <functional>

namespace intrawarp {

class LoopPause {
 public:
  static constexpr std::chrono::nanoseconds kSlice = std::chrono::milliseconds(2);

  // In place of the thread's pause before, which is back when this one ends.
  explicit LoopPause(std::function<void()> pause);
  LoopPause(const LoopPause&) = delete;
  ~LoopPause();

  // For ForRanges (parallel.h): the pause of the calling thread; null: none, or a loop of the thread's runs already.
  static LoopPause* OfThread();
  // When the slice that has begun is over.
  std::chrono::steady_clock::time_point slice_end() const { return slice_end_; }
  // Calls the function when the slice is over, and begins another one.
  void SliceEnded();

  // While one exists, the thread's loops are not cut.
  class Nested {
   public:
    Nested();
    Nested(const Nested&) = delete;
    ~Nested();
  };

 private:
  const std::function<void()> pause_;
  LoopPause* const before_;
  std::chrono::steady_clock::time_point slice_end_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_DEVICE_LOOP_PAUSE_H_
