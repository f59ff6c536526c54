// SPDX-License-Identifier: Apache-2.0
// intrawarpd as a process: its line on stdout, its signals, its exit status.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <regex>
#include <string>
#include <vector>

#include "intrawarp/v1/server.grpc.pb.h"
#include "tests/client/process.h"
#include "tests/server/http_client.h"

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;

using client::ProcessResult;

std::vector<std::string> Command(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), INTRAWARPD_PATH);
  return arguments;
}

ProcessResult RunServer(const std::vector<std::string>& arguments) { return client::RunProcess(Command(arguments)); }

const std::vector<std::string> kFreePorts = {"--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--pinned_bytes=64MiB",
                                             "--resident_bytes=64MiB"};

std::smatch Ready(client::Process& process, std::string& line) {
  line = process.WaitForLine("");
  std::smatch match;
  EXPECT_TRUE(std::regex_match(
      line, match,
      std::regex("ready grpc=(127\\.0\\.0\\.1:[1-9][0-9]*) http=(127\\.0\\.0\\.1:[1-9][0-9]*) device=(cpu|cuda:0)")))
      << line;
  return match;
}

TEST(Intrawarpd, SaysWhenItIsReadyServesAndStopsOnSigterm) {
  for (const int signal : {SIGTERM, SIGINT}) {
    client::Process process(Command(kFreePorts));
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
    const ProcessResult result = process.Wait();
    EXPECT_EQ(result.exit_status, 0);
    EXPECT_EQ(result.out, line + "\n");
    EXPECT_THAT(result.err, HasSubstr("event=started"));
    EXPECT_THAT(result.err, HasSubstr("event=stopped"));
  }
}

TEST(Intrawarpd, AHangUpOfTheTerminalChangesNothing) {
  client::Process process(Command(kFreePorts));
  std::string line;
  const std::smatch ready = Ready(process, line);
  ASSERT_EQ(ready.size(), 4u);
  process.Signal(SIGHUP);
  EXPECT_EQ(HttpGet(ready[2], "/healthz").status, 200);
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait().exit_status, 0);
}

TEST(Intrawarpd, AWrongCommandLineIsExitStatus2) {
  for (const char* argument : {"--bogus", "--listen=nowhere", "serve", "--reflection=1"}) {
    const ProcessResult result = RunServer({argument});
    EXPECT_EQ(result.exit_status, 2) << argument;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr("intrawarpd: "));
  }
}

TEST(Intrawarpd, HelpAndVersionExitWell) {
  const ProcessResult help = RunServer({"--help"});
  EXPECT_EQ(help.exit_status, 0);
  EXPECT_THAT(help.out, HasSubstr("--listen="));
  const ProcessResult version = RunServer({"--version"});
  EXPECT_EQ(version.exit_status, 0);
  EXPECT_THAT(version.out, HasSubstr("intrawarpd "));
}

TEST(Intrawarpd, CheckConfigOpensNoPort) {
  // The port is taken, which only a server that opens it would notice.
  client::Process server(Command(kFreePorts));
  std::string line;
  const std::smatch ready = Ready(server, line);
  ASSERT_EQ(ready.size(), 4u);
  const ProcessResult good =
      RunServer({"--check_config", "--device=cpu", "--listen=" + ready[1].str(), "--http=" + ready[2].str()});
  EXPECT_EQ(good.exit_status, 0);
  EXPECT_THAT(good.out, HasSubstr("the configuration is good"));
  for (const char* fault : {"--state_dir=/nonexistent", "--device=cuda:99", "--bogus", "--config=/nonexistent"}) {
    const ProcessResult bad = RunServer({"--check_config", fault});
    EXPECT_EQ(bad.exit_status, 1) << fault;
    EXPECT_THAT(bad.err, HasSubstr("intrawarpd: "));
  }
  EXPECT_EQ(RunServer({"--config=/nonexistent"}).exit_status, 2);
}

TEST(Intrawarpd, WhatCannotStartIsExitStatus1) {
  const ProcessResult result = RunServer({"--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cuda:99"});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("event=start_failed"));
}

}  // namespace
}  // namespace intrawarp::server
