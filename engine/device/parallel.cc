// SPDX-License-Identifier: Apache-2.0
#include "engine/device/parallel.h"

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "engine/device/loop_pause.h"

namespace intrawarp::parallel_internal {
namespace {

using Clock = std::chrono::steady_clock;
using RangeFn = void (*)(const void* context, int64_t first, int64_t last);

// A core takes so many indices at a time that they last for something in between: far above the cost of taking them,
// far below a slice. An index is a row or a piece of an image.
constexpr std::chrono::microseconds kShortTake{50}, kLongTake{200};

struct Slices {
  int64_t count;
  RangeFn range;
  const void* context;
  std::atomic<int64_t> next{0};  // the first index that nobody has taken
};

// What one core does in a slice; something in any case, so that a loop comes to its end.
void RunSlice(Slices& loop, Clock::time_point end) {
  int64_t take = 1;
  for (Clock::time_point before = Clock::now();;) {
    const int64_t first = loop.next.fetch_add(take);
    if (first >= loop.count) return;
    loop.range(loop.context, first, std::min(first + take, loop.count));
    const Clock::time_point now = Clock::now();
    if (now >= end) return;
    if (now - before < kShortTake) take *= 2;
    if (now - before > kLongTake) take = std::max<int64_t>(1, take / 2);
    before = now;
  }
}

void ForSlices(LoopPause& pause, int64_t count, RangeFn range, const void* context) {
  Slices loop{count, range, context};
  const int cores = tbb::this_task_arena::max_concurrency();
  while (loop.next < count) {
    {
      const LoopPause::Nested nested;
      const Clock::time_point end = pause.slice_end();
      tbb::parallel_for(0, cores, [&](int) { RunSlice(loop, end); });
    }
    pause.SliceEnded();
  }
}

}  // namespace

void ForRanges(int64_t count, RangeFn range, const void* context) {
  if (count <= 0) return;
  if (LoopPause* const pause = LoopPause::OfThread()) return ForSlices(*pause, count, range, context);
  tbb::parallel_for(tbb::blocked_range<int64_t>(0, count),
                    [=](const tbb::blocked_range<int64_t>& r) { range(context, r.begin(), r.end()); });
}

}  // namespace intrawarp::parallel_internal
