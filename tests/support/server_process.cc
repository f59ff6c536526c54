// SPDX-License-Identifier: Apache-2.0
#include "tests/support/server_process.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace intrawarp::client {
namespace {

std::vector<std::string> Command(const std::string& program, const std::vector<std::string>& flags) {
  std::vector<std::string> command = {program, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cpu"};
  command.insert(command.end(), flags.begin(), flags.end());
  return command;
}

}  // namespace

ServerProcess::ServerProcess(const std::string& program, const std::vector<std::string>& flags)
    : process_(Command(program, flags)), ready_(process_.WaitForLine("ready ")) {
  EXPECT_NE(ready_, "") << "the server is not ready";
}

ProcessResult ServerProcess::Stop() {
  process_.Signal(SIGTERM);
  ProcessResult result = process_.Wait();
  EXPECT_EQ(result.exit_status, 0) << result.err;
  return result;
}

}  // namespace intrawarp::client
