// SPDX-License-Identifier: Apache-2.0
#include "tests/client/process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

extern char** environ;

namespace intrawarp::client {
namespace {

constexpr const char* kDefaults[] = {"INTRAWARP_CONFIG",      "INTRAWARP_SERVER",     "INTRAWARP_TLS_CA",
                                     "INTRAWARP_TLS_CERT",    "INTRAWARP_TLS_KEY",    "INTRAWARP_TOKEN_FILE",
                                     "INTRAWARP_ROUTING_KEY", "INTRAWARP_TRACEPARENT"};

constexpr const char* kNotes[] = {"verdict: ", "cost: ", "start: ", "sliding: "};

std::string MakeFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "intrawarp_test_XXXXXX").string();
  return mkdtemp(pattern.data()) == nullptr ? "" : pattern;
}

// The environment without what changes the command line's defaults.
std::vector<std::string> CleanEnvironment() {
  std::vector<std::string> variables = {"INTRAWARP_CONFIG="};
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string variable = *each;
    const bool is_default = std::any_of(std::begin(kDefaults), std::end(kDefaults), [&](const char* name) {
      return variable.rfind(std::string(name) + "=", 0) == 0;
    });
    if (!is_default) variables.push_back(variable);
  }
  return variables;
}

}  // namespace

TemporaryFolder::TemporaryFolder() : path_(MakeFolder()) {}

TemporaryFolder::~TemporaryFolder() {
  std::error_code error;
  if (!path_.empty()) std::filesystem::remove_all(path_, error);
}

std::string FileContents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream contents;
  contents << file.rdbuf();
  return contents.str();
}

std::string Word(const std::string& line, const std::string& name) {
  const size_t at = line.find(name);
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size();
  return line.substr(begin, line.find_first_of(" \n", begin) - begin);
}

std::string WithoutNotes(const std::string& text) {
  std::istringstream lines(text);
  std::string rest;
  for (std::string line; std::getline(lines, line);) {
    const bool is_note =
        std::any_of(std::begin(kNotes), std::end(kNotes), [&](const char* note) { return line.rfind(note, 0) == 0; });
    if (!is_note) rest += line + "\n";
  }
  return rest;
}

Process::Process(const std::vector<std::string>& arguments) : folder_(MakeFolder()) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::vector<std::string> variables = CleanEnvironment();
  std::vector<char*> environment;
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, (folder_ + "/out").c_str(), flags, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, (folder_ + "/err").c_str(), flags, 0600);
  if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environment.data()) != 0) pid_ = -1;
  posix_spawn_file_actions_destroy(&actions);
}

Process::~Process() {
  Signal(SIGKILL);
  Wait();
  std::error_code error;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, error);
}

void Process::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

ProcessResult Process::Wait() {
  ProcessResult result;
  int status = 0;
  if (pid_ > 0 && waitpid(pid_, &status, 0) == pid_) {
    result.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  pid_ = -1;
  result.out = FileContents(folder_ + "/out");
  result.err = FileContents(folder_ + "/err");
  return result;
}

std::string Process::Output() const { return FileContents(folder_ + "/out"); }

std::string Process::WaitForLine(const std::string& prefix) {
  for (int i = 0; i < 12000; ++i) {
    std::istringstream lines(Output());
    std::string line;
    while (std::getline(lines, line) && !lines.eof()) {
      if (line.rfind(prefix, 0) == 0) return line;
    }
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return "";
}

ProcessResult RunProcess(const std::vector<std::string>& arguments) { return Process(arguments).Wait(); }

}  // namespace intrawarp::client
