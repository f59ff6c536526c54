// SPDX-License-Identifier: Apache-2.0
// What the benches share: a clock, errors that end the program, and the bandwidth that floors are computed from.
#ifndef INTRAWARP_TESTS_BENCH_BENCH_SUPPORT_H_
#define INTRAWARP_TESTS_BENCH_BENCH_SUPPORT_H_

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"

namespace intrawarp {

using Clock = std::chrono::steady_clock;

inline double Seconds(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Prints an error and ends the program.
inline void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::exit(1);
}

template <typename T>
T Value(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

// Bytes a second of a plain copy on the device, read and written; the best of ten, measured once a program.
inline double CopyBandwidth(Device& device) {
  static auto* const cache = new std::map<std::string, double>();
  if (auto it = cache->find(device.name()); it != cache->end()) return it->second;
  const size_t bytes = device.kind() == DeviceKind::kCuda ? size_t{1} << 31 : size_t{1} << 28;
  OwnedContext owned = *OwnedContext::Create(device, 1);
  const ExecContext ctx = owned.context();
  Buffer from = *device.Allocate(bytes, ctx.stream()), to = *device.Allocate(bytes, ctx.stream());
  Check(device.Fill(from.as<void>(), 1, bytes, ctx.stream()));
  double best = 1e9;
  for (int i = 0; i < 10; ++i) {
    Check(device.Synchronize(ctx.stream()));
    const Clock::time_point begin = Clock::now();
    Check(device.Copy(to.as<void>(), from.as<void>(), bytes, ctx.stream()));
    Check(device.Synchronize(ctx.stream()));
    best = std::min(best, Seconds(begin));
  }
  return (*cache)[device.name()] = 2.0 * bytes / best;
}

// The whole of main for a bench that has options: prints what is wrong with them, and `help`, or the bench's error.
template <typename Options, typename Run>
int MainWithOptions(const absl::StatusOr<Options>& options, const std::string& help, const Run& run) {
  if (!options.ok()) {
    std::cerr << options.status().message() << "\n" << help;
    return 2;
  }
  const absl::Status status = run(*options);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_BENCH_BENCH_SUPPORT_H_
