// SPDX-License-Identifier: Apache-2.0
// intrawarpd on a CPU device that fails when it is told to on stdin, for tests/deploy/planted_faults:
//
//   lost       the next call of the device fails in a way that only a restart repairs
//   hang       no call of the device comes back any more
//   slow N     from now on each allocation of the device takes N ms longer; 0: no longer
//
// Takes intrawarpd's flags and prints its line. Ends when stdin does: at once after `hang`, otherwise by a stop.
#include <google/protobuf/stubs/logging.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "server/options.h"
#include "server/server.h"
#include "tests/engine/device/faulty_device.h"
#include "tests/server/interference/faulty_server.h"

namespace intrawarp::server {
namespace {

// More calls than the jobs and probes of a server make that waits for them.
constexpr int kBlockedCalls = 1000;

// Delays every allocation, a fault striking only once.
class Slowness {
 public:
  explicit Slowness(FaultyDevice& device) : device_(device) {}
  void Set(int ms) {
    if (ms_.exchange(ms) == 0 && ms > 0) Arm();
  }

 private:
  void Arm() {
    device_.RunAt(
        1,
        [this] {
          const int ms = ms_;
          if (ms == 0) return;
          Arm();
          std::this_thread::sleep_for(std::chrono::milliseconds(ms));
        },
        DeviceCall::kAllocate);
  }

  FaultyDevice& device_;
  std::atomic<int> ms_{0};
};

// False for a word that is not a fault.
bool Plant(absl::string_view fault, FaultyDevice& device, Slowness& slowness, bool& hangs) {
  int ms = 0;
  if (fault == "lost") {
    device.FailAt(1, absl::UnavailableError("planted"));
  } else if (fault == "hang") {
    for (int call = 1; call <= kBlockedCalls; ++call) device.BlockAt(call);
    hangs = true;
  } else if (absl::ConsumePrefix(&fault, "slow ") && absl::SimpleAtoi(fault, &ms) && ms >= 0) {
    slowness.Set(ms);
  } else {
    return false;
  }
  return true;
}

int Main(const std::vector<std::string>& arguments) {
  absl::StatusOr<CommandLine> command_line = ParseCommandLine(arguments);
  if (!command_line.ok()) {
    std::cerr << command_line.status() << "\n";
    return EXIT_FAILURE;
  }
  google::protobuf::SetLogHandler(nullptr);
  FaultyDevice* device = nullptr;
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(OnFaultyDevice(command_line->options, &device));
  if (!server.ok()) {
    std::cerr << server.status() << "\n";
    return EXIT_FAILURE;
  }
  Slowness slowness(*device);
  std::printf("ready grpc=%s http=%s device=%s\n", (*server)->grpc_address().c_str(), (*server)->http_address().c_str(),
              (*server)->device_name().c_str());
  std::fflush(stdout);
  bool hangs = false;
  for (std::string line; std::getline(std::cin, line);) {
    if (!Plant(line, *device, slowness, hangs)) std::cerr << line << ": no such fault\n";
  }
  if (hangs) _exit(EXIT_SUCCESS);
  slowness.Set(0);
  server->reset();
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace intrawarp::server

int main(int argc, char** argv) { return intrawarp::server::Main(std::vector<std::string>(argv + 1, argv + argc)); }
