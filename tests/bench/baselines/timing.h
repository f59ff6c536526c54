// SPDX-License-Identifier: Apache-2.0
// Times on either device, and the floors that they are held against.
#ifndef INTRAWARP_TESTS_BENCH_BASELINES_TIMING_H_
#define INTRAWARP_TESTS_BENCH_BASELINES_TIMING_H_

#include <cstddef>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"

namespace intrawarp::baselines {

// Does one piece of work, or on CUDA enqueues it.
using Work = std::function<absl::Status()>;

// Median of `repeats` after a warm-up. On CUDA between two events around each run, all enqueued before any is waited
// for, so that the host's time to launch does not count where it is shorter than the run. On the CPU by the wall clock,
// and as few as three repeats where more would take longer than two seconds.
absl::StatusOr<double> MedianSeconds(const ExecContext& ctx, int repeats, const Work& work);

// Plain stores of `bytes` (a multiple of 16), and a plain copy: 16 bytes a thread on CUDA, memset and memcpy of
// pieces on all cores of the CPU.
absl::Status Fill(const ExecContext& ctx, void* data, size_t bytes);
absl::Status Copy(const ExecContext& ctx, void* to, const void* from, size_t bytes);

namespace cuda {
absl::StatusOr<double> MedianSeconds(const ExecContext& ctx, int repeats, const Work& work);
absl::Status Fill(const ExecContext& ctx, void* data, size_t bytes);
absl::Status Copy(const ExecContext& ctx, void* to, const void* from, size_t bytes);
}  // namespace cuda
namespace cpu {
absl::StatusOr<double> MedianSeconds(const ExecContext& ctx, int repeats, const Work& work);
absl::Status Fill(const ExecContext& ctx, void* data, size_t bytes);
absl::Status Copy(const ExecContext& ctx, void* to, const void* from, size_t bytes);
}  // namespace cpu

}  // namespace intrawarp::baselines

#endif  // INTRAWARP_TESTS_BENCH_BASELINES_TIMING_H_
