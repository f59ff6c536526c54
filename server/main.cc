// SPDX-License-Identifier: Apache-2.0
// intrawarpd: serves until SIGTERM or SIGINT, then stops gracefully; a second signal ends it at once. SIGHUP is
// ignored, so that the volumes outlive the terminal that the server was started from.
//
// Exit status: 0 after a stop, 1 when it cannot start, 2 for a wrong command line or configuration file, 3 when the
// device hung or was lost (--watchdog_exit), for a supervisor that starts it again. --check_config ends with 0 or 1.
#include <grpc/support/log.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/memory_end.h"
#include "google/protobuf/stubs/logging.h"
#include "server/base/version.h"
#include "server/flags.h"
#include "server/monitor/log.h"
#include "server/monitor/log_levels.h"
#include "server/options.h"
#include "server/server.h"

namespace intrawarp::server {
namespace {

constexpr int kWrongCommandLine = 2;
constexpr int kDeviceFailed = 3;

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Blocked in every thread, so that only sigwait takes them.
void BlockStopSignals() {
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

int WaitForStopSignal() {
  const sigset_t signals = StopSignals();
  int signal = 0;
  sigwait(&signals, &signal);
  return signal;
}

int Serve(const ServerOptions& options) {
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
  if (!server.ok()) {
    Log(Severity::kError, "start_failed", {{"cause", server.status().ToString()}});
    return EXIT_FAILURE;
  }
  const BuildInfo build = ThisBuild();
  const ServerLimits& limits = (*server)->context().limits;
  Log(Severity::kInfo, "started",
      {{"version", build.version},
       {"revision", build.revision},
       {"device", (*server)->device_name()},
       {"resident_bytes", absl::StrCat(limits.resident_capacity_bytes)},
       {"pinned_bytes", absl::StrCat(limits.pinned_capacity_bytes)}});
  const std::string dicom = (*server)->dicom_address();
  const std::string page = (*server)->page_address();
  std::printf("ready grpc=%s http=%s device=%s%s%s%s%s\n", (*server)->grpc_address().c_str(),
              (*server)->http_address().c_str(), (*server)->device_name().c_str(),
              dicom.empty() ? "" : " dicom=", dicom.c_str(), page.empty() ? "" : " page=", page.c_str());
  std::fflush(stdout);

  Log(Severity::kInfo, "stopping", {{"signal", strsignal(WaitForStopSignal())}});
  std::thread([] {
    WaitForStopSignal();
    Log(Severity::kWarning, "stopped_at_once");
    _exit(EXIT_FAILURE);
  }).detach();
  (*server)->Stop();
  server->reset();
  Log(Severity::kInfo, "stopped");
  return EXIT_SUCCESS;
}

// Its lines, in the form of ours.
void LogGrpc(gpr_log_func_args* args) {
  if (args->severity == GPR_LOG_SEVERITY_ERROR) Log(Severity::kError, "grpc", {{"message", args->message}});
}

// At once: a stop would wait for the device.
void GiveUp() {
  Log(Severity::kError, "gave_up", {{"exit_status", absl::StrCat(kDeviceFailed)}});
  _exit(kDeviceFailed);
}

int CheckConfig(const ServerOptions& options) {
  const absl::Status status = CheckOptions(options);
  if (!status.ok()) {
    std::fprintf(stderr, "intrawarpd: %s\n", std::string(status.message()).c_str());
    return EXIT_FAILURE;
  }
  std::puts("the configuration is good");
  return EXIT_SUCCESS;
}

int Main(const std::vector<std::string>& arguments) {
  absl::StatusOr<CommandLine> command_line = ParseCommandLine(arguments);
  if (!command_line.ok()) {
    std::fprintf(stderr, "intrawarpd: %s\n", std::string(command_line.status().message()).c_str());
    const bool is_check = std::count(arguments.begin(), arguments.end(), "--check_config") > 0;
    return is_check ? EXIT_FAILURE : kWrongCommandLine;
  }
  if (command_line->help) {
    std::fputs(CommandLineHelp().c_str(), stdout);
    return EXIT_SUCCESS;
  }
  if (command_line->print_config) {
    std::fputs(ConfigurationTemplate().c_str(), stdout);
    return EXIT_SUCCESS;
  }
  if (command_line->version) {
    std::printf("intrawarpd %s %s\n", ThisBuild().version.c_str(), ThisBuild().revision.c_str());
    return EXIT_SUCCESS;
  }
  if (command_line->check_config) return CheckConfig(command_line->options);
  // For CUDA, before its first call: no kernel is loaded while a frame waits, and no two streams share a queue.
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  BlockStopSignals();
  signal(SIGHUP, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets whose peer has gone
  // Its messages would name what a client sent.
  google::protobuf::SetLogHandler(nullptr);
  gpr_set_log_function(LogGrpc);
  command_line->options.give_up = GiveUp;
  TheLogLevels().Start(command_line->options.log_level);
  return Serve(command_line->options);
}

}  // namespace
}  // namespace intrawarp::server

int main(int argc, char** argv) {
  return intrawarp::RunWithinMemory(
      "intrawarpd", [&] { return intrawarp::server::Main(std::vector<std::string>(argv + 1, argv + argc)); });
}
