// SPDX-License-Identifier: Apache-2.0
// intrawarpd as a process: its line on stdout, its signals, its exit status.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "intrawarp/v1/server.grpc.pb.h"
#include "tests/server/http_client.h"

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;

class Process {
 public:
  explicit Process(std::vector<std::string> arguments) {
    int out[2], err[2];
    EXPECT_EQ(pipe(out), 0);
    EXPECT_EQ(pipe(err), 0);
    arguments.insert(arguments.begin(), INTRAWARPD_PATH);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], STDOUT_FILENO);
      dup2(err[1], STDERR_FILENO);
      for (int fd : {out[0], out[1], err[0], err[1]}) close(fd);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(out[1]);
    close(err[1]);
    out_ = out[0];
    err_ = err[0];
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(out_);
    close(err_);
  }

  std::string ReadLine() {
    std::string line;
    for (char c; read(out_, &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
  void Signal(int signal) { kill(pid_, signal); }
  // Exit status, or -1 when a signal ended it.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // What is left, once it has ended.
  std::string Output() { return ReadAll(out_); }
  std::string Errors() { return ReadAll(err_); }

 private:
  static std::string ReadAll(int fd) {
    std::string all;
    char buffer[4096];
    for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) all.append(buffer, n);
    return all;
  }
  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
};

const std::vector<std::string> kFreePorts = {"--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--pinned_bytes=64MiB",
                                             "--resident_bytes=64MiB"};

std::smatch Ready(Process& process, std::string& line) {
  line = process.ReadLine();
  std::smatch match;
  EXPECT_TRUE(std::regex_match(
      line, match,
      std::regex("ready grpc=(127\\.0\\.0\\.1:[1-9][0-9]*) http=(127\\.0\\.0\\.1:[1-9][0-9]*) device=(cpu|cuda:0)")))
      << line;
  return match;
}

TEST(Intrawarpd, SaysWhenItIsReadyServesAndStopsOnSigterm) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Process process(kFreePorts);
    std::string line;
    const std::smatch ready = Ready(process, line);
    ASSERT_EQ(ready.size(), 4u);
    auto stub = v1::ServerService::NewStub(grpc::CreateChannel(ready[1], grpc::InsecureChannelCredentials()));
    grpc::ClientContext call;
    v1::GetServerInfoResponse response;
    ASSERT_TRUE(stub->GetServerInfo(&call, {}, &response).ok());
    EXPECT_EQ(response.info().devices(0).name(), ready[3]);
    EXPECT_EQ(response.info().limits().resident_capacity_bytes(), 64 << 20);
    EXPECT_EQ(HttpGet(ready[2], "/healthz").status, 200);
    process.Signal(signal);
    EXPECT_EQ(process.Wait(), 0);
    EXPECT_EQ(process.Output(), "");
    const std::string log = process.Errors();
    EXPECT_THAT(log, HasSubstr("event=started"));
    EXPECT_THAT(log, HasSubstr("event=stopped"));
  }
}

TEST(Intrawarpd, AHangUpOfTheTerminalChangesNothing) {
  Process process(kFreePorts);
  std::string line;
  const std::smatch ready = Ready(process, line);
  ASSERT_EQ(ready.size(), 4u);
  process.Signal(SIGHUP);
  EXPECT_EQ(HttpGet(ready[2], "/healthz").status, 200);
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
}

TEST(Intrawarpd, AWrongCommandLineIsExitStatus2) {
  for (const char* argument : {"--bogus", "--listen=nowhere", "serve", "--reflection=1"}) {
    Process process({argument});
    EXPECT_EQ(process.Wait(), 2) << argument;
    EXPECT_EQ(process.Output(), "");
    EXPECT_THAT(process.Errors(), HasSubstr("intrawarpd: "));
  }
}

TEST(Intrawarpd, HelpAndVersionExitWell) {
  Process help({"--help"});
  EXPECT_EQ(help.Wait(), 0);
  EXPECT_THAT(help.Output(), HasSubstr("--listen="));
  Process version({"--version"});
  EXPECT_EQ(version.Wait(), 0);
  EXPECT_THAT(version.Output(), HasSubstr("intrawarpd "));
}

TEST(Intrawarpd, CheckConfigOpensNoPort) {
  // The port is taken, which only a server that opens it would notice.
  Process server(kFreePorts);
  std::string line;
  const std::smatch ready = Ready(server, line);
  ASSERT_EQ(ready.size(), 4u);
  Process good({"--check_config", "--device=cpu", "--listen=" + ready[1].str(), "--http=" + ready[2].str()});
  EXPECT_EQ(good.Wait(), 0);
  EXPECT_THAT(good.Output(), HasSubstr("the configuration is good"));
  for (const char* fault : {"--state_dir=/nonexistent", "--device=cuda:99", "--bogus", "--config=/nonexistent"}) {
    Process bad({"--check_config", fault});
    EXPECT_EQ(bad.Wait(), 1) << fault;
    EXPECT_THAT(bad.Errors(), HasSubstr("intrawarpd: "));
  }
  Process without_check({"--config=/nonexistent"});
  EXPECT_EQ(without_check.Wait(), 2);
}

TEST(Intrawarpd, WhatCannotStartIsExitStatus1) {
  Process process({"--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cuda:99"});
  EXPECT_EQ(process.Wait(), 1);
  EXPECT_EQ(process.Output(), "");
  EXPECT_THAT(process.Errors(), HasSubstr("event=start_failed"));
}

}  // namespace
}  // namespace intrawarp::server
