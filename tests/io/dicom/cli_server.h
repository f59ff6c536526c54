// SPDX-License-Identifier: Apache-2.0
// The command line beside a CPU server, as processes; one server serves all tests of a suite.
#ifndef INTRAWARP_TESTS_IO_DICOM_CLI_SERVER_H_
#define INTRAWARP_TESTS_IO_DICOM_CLI_SERVER_H_

#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/client/process.h"
#include "tests/io/io_test.h"

namespace intrawarp::io {

class CliServerTest : public FileTest {
 protected:
  static void SetUpTestSuite() {
    server_ = new client::Process({INTRAWARPD, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cpu"});
    const std::string ready = server_->WaitForLine("ready ");
    const size_t begin = ready.find("grpc=") + 5;
    address_ = ready.substr(begin, ready.find(' ', begin) - begin);
  }
  static void TearDownTestSuite() {
    server_->Signal(SIGTERM);
    EXPECT_EQ(server_->Wait().exit_status, 0);
    delete server_;
  }

  static client::ProcessResult Run(const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {INTRAWARP_CLI, absl::StrCat("--server=", address_)};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return client::RunProcess(all);
  }

 private:
  inline static client::Process* server_ = nullptr;
  inline static std::string address_;
};

}  // namespace intrawarp::io

#endif  // INTRAWARP_TESTS_IO_DICOM_CLI_SERVER_H_
