// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/interference/server_process.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/options.h"
#include "server/server.h"

namespace intrawarp::bench {
namespace {

constexpr char kServe[] = "--serve_with_leak=";

std::string ThisProgram() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  return length > 0 ? std::string(path, length) : "";
}

// The value of "name=VALUE" in the line "ready grpc=... http=... device=...".
std::string ValueIn(const std::string& line, const std::string& name) {
  for (absl::string_view word : absl::StrSplit(line, ' ')) {
    if (absl::ConsumePrefix(&word, name + "=")) return std::string(word);
  }
  return "";
}

// The line of /proc/PID/status.
double StatusNumber(pid_t pid, const std::string& name) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string word; status >> word;) {
    double number = 0;
    if (word == name + ":" && status >> number) return number;
  }
  return 0;
}

double CountFiles(const std::string& folder) {
  std::error_code error;
  double count = 0;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) ++count;
  return count;
}

// Every call keeps `bytes` of memory for ever.
std::function<uint32_t()> Leaking(std::function<uint32_t()> random, int64_t bytes) {
  return [random = std::move(random), bytes] {
    static std::mutex mutex;
    static auto* const kept = new std::vector<char*>();
    char* const lost = new char[bytes];
    std::memset(lost, 1, bytes);
    std::lock_guard<std::mutex> lock(mutex);
    kept->push_back(lost);
    return random();
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(std::vector<std::string> arguments,
                                                                    int64_t leak_bytes) {
  std::vector<std::string> all = {ThisProgram(), absl::StrCat(kServe, leak_bytes)};
  for (std::string& argument : arguments) all.push_back(std::move(argument));
  std::unique_ptr<ServerProcess> server(new ServerProcess(all));
  std::string line;
  // A GPU's first context can take longer than one wait.
  for (int waits = 0; waits < 6 && line.empty(); ++waits) line = server->process_.WaitForLine("ready grpc=");
  if (line.empty())
    return absl::UnavailableError(absl::StrCat("the server does not serve: ", server->process_.Output()));
  server->grpc_address_ = ValueIn(line, "grpc");
  server->http_address_ = ValueIn(line, "http");
  server->device_ = ValueIn(line, "device");
  return server;
}

ProcessUsage ServerProcess::Usage() const {
  const pid_t pid = process_.pid();
  return {StatusNumber(pid, "VmRSS") * 1024, CountFiles(absl::StrCat("/proc/", pid, "/fd")),
          StatusNumber(pid, "Threads")};
}

bool IsServerProcess(const std::vector<std::string>& arguments) {
  return !arguments.empty() && arguments[0].rfind(kServe, 0) == 0;
}

int RunServerProcess(const std::vector<std::string>& arguments) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  int64_t leak_bytes = 0;
  absl::string_view leak = arguments[0];
  if (!absl::ConsumePrefix(&leak, kServe) || !absl::SimpleAtoi(leak, &leak_bytes)) return 2;
  absl::StatusOr<server::CommandLine> line = server::ParseCommandLine({arguments.begin() + 1, arguments.end()});
  if (!line.ok()) {
    std::cout << line.status().message() << std::endl;
    return 2;
  }
  if (leak_bytes > 0) line->options.seams.random = Leaking(line->options.seams.random, leak_bytes);
  auto server = server::Server::Start(line->options);
  if (!server.ok()) {
    std::cout << server.status() << std::endl;
    return 1;
  }
  std::cout << "ready grpc=" << (*server)->grpc_address() << " http=" << (*server)->http_address()
            << " device=" << (*server)->device_name() << std::endl;
  int signal = 0;
  sigwait(&signals, &signal);
  (*server)->Stop();
  return 0;
}

}  // namespace intrawarp::bench
