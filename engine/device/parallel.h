// SPDX-License-Identifier: Apache-2.0
// Deterministic loops for the CPU device, on oneTBB. Results never depend on the number of cores: work is cut into
// pieces by its size alone, and partial results are combined in the order of the pieces.
#ifndef INTRAWARP_ENGINE_DEVICE_PARALLEL_H_
#define INTRAWARP_ENGINE_DEVICE_PARALLEL_H_

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>

#include <cstdint>
#include <vector>

namespace intrawarp {

// body(i) for i in [0, count), in any order, on all cores. `body` writes only what belongs to its i.
template <typename Body>
void ParallelFor(int64_t count, const Body& body) {
  tbb::parallel_for(tbb::blocked_range<int64_t>(0, count), [&](const tbb::blocked_range<int64_t>& range) {
    for (int64_t i = range.begin(); i != range.end(); ++i) body(i);
  });
}

// body(i) gives the partial result of piece i; combine(total, partial) is called for i = 0, 1, ... in that order.
template <typename T, typename Body, typename Combine>
T OrderedReduce(int64_t count, T init, const Body& body, const Combine& combine) {
  std::vector<T> partial(count);
  ParallelFor(count, [&](int64_t i) { partial[i] = body(i); });
  for (const T& p : partial) combine(init, p);
  return init;
}

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_DEVICE_PARALLEL_H_
