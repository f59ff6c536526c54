// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/baselines/bench_main.h"

#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/base/flags.h"
#include "engine/base/status_macros.h"
#include "engine/device/device.h"

namespace intrawarp::baselines {
namespace {

constexpr size_t kWorkspace = size_t{1} << 30;

CommandSyntax Syntax() {
  FlagSpec device{"device", FlagType::kString, "auto|cpu|cuda", "where to run; auto: on every device present"};
  device.choices = {"auto", "cpu", "cuda"};
  FlagSpec csv{"csv", FlagType::kSwitch, "", "lines to be read by programs instead of tables"};
  FlagSpec repeats{"repeats", FlagType::kInteger, "N", "runs that the median is taken of (20)"};
  repeats.minimum = 1;
  repeats.maximum = 1000;
  FlagSpec volume{"volume", FlagType::kString, "NAME", "this volume alone"};
  return {{device, csv, repeats, volume}};
}

absl::StatusOr<std::vector<std::unique_ptr<Device>>> OpenDevices(const std::string& name) {
  if (name == "auto") return AllDevices();
  std::vector<std::unique_ptr<Device>> devices(1);
  INTRAWARP_ASSIGN_OR_RETURN(devices[0], OpenDevice(name));
  return devices;
}

absl::Status RunAll(const BenchFlags& flags, absl::Status (*bench)(const ExecContext&, const BenchFlags&)) {
  INTRAWARP_ASSIGN_OR_RETURN(const auto devices, OpenDevices(flags.device));
  for (const auto& device : devices) {
    if (!flags.csv) std::cout << "\n" << device->name() << ": " << device->model() << std::endl;
    INTRAWARP_ASSIGN_OR_RETURN(OwnedContext owned, OwnedContext::Create(*device, kWorkspace));
    INTRAWARP_RETURN_IF_ERROR(bench(owned.context(), flags));
  }
  return absl::OkStatus();
}

}  // namespace

int BenchMain(int argc, char** argv, absl::string_view description,
              absl::Status (*bench)(const ExecContext&, const BenchFlags&)) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto parsed = ParseFlags(Syntax(), arguments);
  if (!parsed.ok()) {
    std::cerr << parsed.status().message() << "\n" << description << "\n";
    return 2;
  }
  const BenchFlags flags{parsed->String("device", "auto"), parsed->Has("csv"),
                         static_cast<int>(parsed->Integer("repeats", 20)), parsed->String("volume")};
  const absl::Status status = RunAll(flags, bench);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}

}  // namespace intrawarp::baselines
