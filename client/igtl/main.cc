// SPDX-License-Identifier: Apache-2.0
// intrawarp-igtl: the bridge between OpenIGTLink devices and a server. Exit status: 0; 1 when it cannot listen; 2 for a
// wrong command line or configuration file.
#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/igtl/bridge.h"

namespace intrawarp::igtl {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongCommandLine = 2;

std::string Help() {
  return absl::StrCat(
      "intrawarp-igtl [--config=PATH] [--NAME=VALUE ...]\n"
      "intrawarp-igtl --check_config ... | --help | --version\n",
      FlagHelp(BridgeSyntax()));
}

int Serve(const BridgeOptions& options) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  const absl::StatusOr<std::unique_ptr<Bridge>> bridge = Bridge::Create(options);
  if (!bridge.ok()) {
    std::fprintf(stderr, "intrawarp-igtl: %s\n", std::string(bridge.status().message()).c_str());
    return kFailed;
  }
  std::printf("ready igtl=%d metrics=%d\n", (*bridge)->port(), (*bridge)->metrics_port());
  std::fflush(stdout);
  std::thread runner([&] { (*bridge)->Run(); });
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  (*bridge)->Stop();
  runner.join();
  return 0;
}

int Main(std::vector<std::string> arguments) {
  bool only_checks = false;
  for (const std::string& each : arguments) {
    if (each == "--help") return std::fputs(Help().c_str(), stdout) < 0 ? kFailed : 0;
    if (each == "--version") return std::puts("intrawarp-igtl " INTRAWARP_VERSION) < 0 ? kFailed : 0;
    only_checks |= each == "--check_config";
  }
  std::erase(arguments, "--check_config");
  const absl::StatusOr<BridgeOptions> options = ParseOptions(arguments);
  if (!options.ok()) {
    std::fprintf(stderr, "intrawarp-igtl: %s\n", std::string(options.status().message()).c_str());
    return kWrongCommandLine;
  }
  return only_checks ? 0 : Serve(*options);
}

}  // namespace
}  // namespace intrawarp::igtl

int main(int argc, char** argv) { return intrawarp::igtl::Main({argv + 1, argv + argc}); }
