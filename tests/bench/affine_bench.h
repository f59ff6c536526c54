// SPDX-License-Identifier: Apache-2.0
#ifndef INTRAWARP_TESTS_BENCH_AFFINE_BENCH_H_
#define INTRAWARP_TESTS_BENCH_AFFINE_BENCH_H_

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/metric/affine_objective.h"

namespace intrawarp::cuda {

// Seconds of one evaluation inside the device, by events around `launches` of them.
absl::StatusOr<double> TimeObjectiveLaunches(const ExecContext& ctx, const AffineObjective& objective,
                                             const AffineMap& w, int launches);

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_TESTS_BENCH_AFFINE_BENCH_H_
