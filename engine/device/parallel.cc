// SPDX-License-Identifier: Apache-2.0
#include "engine/device/parallel.h"

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>

namespace intrawarp::parallel_internal {

void ForRanges(int64_t count, void (*range)(const void* context, int64_t first, int64_t last), const void* context) {
  tbb::parallel_for(tbb::blocked_range<int64_t>(0, count),
                    [=](const tbb::blocked_range<int64_t>& r) { range(context, r.begin(), r.end()); });
}

}  // namespace intrawarp::parallel_internal
