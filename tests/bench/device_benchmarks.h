// SPDX-License-Identifier: Apache-2.0
// The whole of main for a program of Google Benchmark that runs on every device.
#ifndef INTRAWARP_TESTS_BENCH_DEVICE_BENCHMARKS_H_
#define INTRAWARP_TESTS_BENCH_DEVICE_BENCHMARKS_H_

#include <benchmark/benchmark.h>

#include "absl/strings/str_cat.h"
#include "tests/bench/bench_support.h"

namespace intrawarp {

// Names the devices and their copy bandwidths, and runs what `register_all` registers for each.
inline int DeviceBenchmarksMain(int argc, char** argv, void (*register_all)(Device*)) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const auto devices = AllDevices();
  for (const auto& device : devices) {
    benchmark::AddCustomContext(device->name(),
                                absl::StrCat(device->model(), ", copy ", CopyBandwidth(*device) / 1e9, " GB/s"));
    register_all(device.get());
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_BENCH_DEVICE_BENCHMARKS_H_
