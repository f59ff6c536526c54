// SPDX-License-Identifier: Apache-2.0
// What a call does on the GPU: kernels, copies and fills with their times, from CUPTI, which is looked for when the
// program runs, so that the program starts without it.
#ifndef INTRAWARP_TESTS_BENCH_KERNEL_TRACE_H_
#define INTRAWARP_TESTS_BENCH_KERNEL_TRACE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace intrawarp {

struct TracedWork {
  std::string name;
  double begin = 0, end = 0;  // seconds, from the first
  int blocks = 0, threads = 0, shared_bytes = 0, registers = 0;
};

// In the order of their beginnings. NOT_FOUND without CUPTI. `call` waits for what it starts.
absl::StatusOr<std::vector<TracedWork>> TraceKernels(const std::function<absl::Status()>& call);

// Prints the kernels of `call` by the time that each takes, and where the device waits for more than 50 us; `what`
// names the call. Prints why there are none.
void PrintKernels(const std::string& what, const std::function<absl::Status()>& call);

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_BENCH_KERNEL_TRACE_H_
