// SPDX-License-Identifier: Apache-2.0
#include "engine/device/loop_pause.h"

#include <utility>

namespace intrawarp {
namespace {

using Clock = std::chrono::steady_clock;

thread_local LoopPause* of_thread = nullptr;
thread_local int loops = 0;  // of the thread, one inside the other

}  // namespace

LoopPause::LoopPause(std::function<void()> pause)
    : pause_(std::move(pause)), before_(std::exchange(of_thread, this)), slice_end_(Clock::now() + kSlice) {}

LoopPause::~LoopPause() { of_thread = before_; }

LoopPause* LoopPause::OfThread() { return loops == 0 ? of_thread : nullptr; }

void LoopPause::SliceEnded() {
  if (Clock::now() < slice_end_) return;
  pause_();
  slice_end_ = Clock::now() + kSlice;
}

LoopPause::Nested::Nested() { ++loops; }
LoopPause::Nested::~Nested() { --loops; }

}  // namespace intrawarp
