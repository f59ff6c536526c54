// SPDX-License-Identifier: Apache-2.0
#ifndef INTRAWARP_TESTS_BENCH_BSPLINE_BENCH_H_
#define INTRAWARP_TESTS_BENCH_BSPLINE_BENCH_H_

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"

namespace intrawarp::cuda {

// Seconds of one of `launches` calls in a row inside the device, by events around them, after one that is not counted.
absl::StatusOr<double> TimeLaunches(const ExecContext& ctx, int launches, const std::function<absl::Status()>& launch);

// Writes `count` floats (a multiple of 4) in vectors of 16 bytes.
absl::Status FillVectors(const ExecContext& ctx, float* out, int64_t count);

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_TESTS_BENCH_BSPLINE_BENCH_H_
