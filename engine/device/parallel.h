// SPDX-License-Identifier: Apache-2.0
// Deterministic loops for the CPU device, on oneTBB. Results never depend on the number of cores: work is cut into
// pieces by its size alone, and partial results are combined in the order of the pieces.
#ifndef INTRAWARP_ENGINE_DEVICE_PARALLEL_H_
#define INTRAWARP_ENGINE_DEVICE_PARALLEL_H_

#include <tbb/cache_aligned_allocator.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace intrawarp {
namespace parallel_internal {

// range(context, first, last) for ranges that cover [0, count), in any order, on all cores; back when all are done.
void ForRanges(int64_t count, void (*range)(const void* context, int64_t first, int64_t last), const void* context);

// What a loop runs on, and the order that ThreadSanitizer is told: everything before the loop, then its ranges, then
// everything after it. oneTBB's library is not instrumented, so the hand-over of work between its threads is invisible;
// parallel.cc, which holds oneTBB's templates, is built like the library. It knows an order by an address; with one
// for both ends of a range, it would order the ranges by when they happened to run and miss a race between two.
struct Order {
#ifdef __SANITIZE_THREAD__
  void LoopBegins() const { __tsan_release(const_cast<char*>(begin)); }
  void RangeBegins() const { __tsan_acquire(const_cast<char*>(begin)); }
  void RangeEnds() const { __tsan_release(const_cast<char*>(&end)); }
  void LoopEnds() const { __tsan_acquire(const_cast<char*>(&end)); }
  char begin[8] = {}, end = 0;
#else
  void LoopBegins() const {}
  void RangeBegins() const {}
  void RangeEnds() const {}
  void LoopEnds() const {}
#endif
};

template <typename Body>
struct Loop : Order {
  explicit Loop(const Body& b) : body(b) {}
  const Body& body;
};

}  // namespace parallel_internal

// body(i) for i in [0, count), in any order, on all cores. `body` writes only what belongs to its i.
template <typename Body>
void ParallelFor(int64_t count, const Body& body) {
  using Loop = parallel_internal::Loop<Body>;
  const Loop loop(body);
  loop.LoopBegins();
  parallel_internal::ForRanges(
      count,
      [](const void* context, int64_t first, int64_t last) {
        const Loop& loop = *static_cast<const Loop*>(context);
        loop.RangeBegins();
        for (int64_t i = first; i != last; ++i) loop.body(i);
        loop.RangeEnds();
      },
      &loop);
  loop.LoopEnds();
}

// body(i) gives the partial result of piece i; combine(total, partial) is called for i = 0, 1, ... in that order.
template <typename T, typename Body, typename Combine>
T OrderedReduce(int64_t count, T init, const Body& body, const Combine& combine) {
  std::vector<T> partial(count);
  ParallelFor(count, [&](int64_t i) { partial[i] = body(i); });
  for (const T& p : partial) combine(init, p);
  return init;
}

// At least `count` elements of the calling thread's scratch memory, aligned to a cache line, with whatever the last
// user left in them. Memory grows to the largest request of a thread and stays until the thread ends. A pointer is
// valid until the thread asks for the same T again, so a body of a loop asks once, and does not loop in parallel
// itself.
template <typename T>
T* ThreadScratch(size_t count) {
  thread_local std::vector<T, tbb::cache_aligned_allocator<T>> scratch;
  if (scratch.size() < count) scratch.resize(count);
  return scratch.data();
}

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_DEVICE_PARALLEL_H_
