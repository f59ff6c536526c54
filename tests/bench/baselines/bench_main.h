// SPDX-License-Identifier: Apache-2.0
// Shared by the programs: their flags, the device, the volumes of Zachariadis (2020, PhD thesis, University of
// Córdoba).
#ifndef INTRAWARP_TESTS_BENCH_BASELINES_BENCH_MAIN_H_
#define INTRAWARP_TESTS_BENCH_BASELINES_BENCH_MAIN_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/vec.h"

namespace intrawarp::baselines {

struct NamedVolume {
  const char* name;
  Int3 size;
};
// Zachariadis (2020), table 2.1.
inline const std::vector<NamedVolume> kPaperVolumes = {{"Phantom1", {512, 228, 385}},
                                                       {"Phantom2", {294, 130, 208}},
                                                       {"Phantom3", {294, 130, 208}},
                                                       {"Pig1", {303, 167, 212}},
                                                       {"Pig2", {267, 169, 237}}};

struct BenchFlags {
  std::string device = "auto";
  bool csv = false;
  int repeats = 20;
  std::string volume;  // the only volume to measure; empty: all
};

// The whole of main: reads --device=auto|cpu|cuda, --csv, --repeats=N and --volume=NAME, and calls `bench` for the
// device named; auto is the CPU, then CUDA where there is one. `description` says what the program prints.
int BenchMain(int argc, char** argv, absl::string_view description,
              absl::Status (*bench)(const ExecContext& ctx, const BenchFlags& flags));

}  // namespace intrawarp::baselines

#endif  // INTRAWARP_TESTS_BENCH_BASELINES_BENCH_MAIN_H_
