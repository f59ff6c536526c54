// SPDX-License-Identifier: Apache-2.0
// The command line beside a CPU server, as processes; one server serves all tests of a suite.
#ifndef INTRAWARP_TESTS_IO_DICOM_CLI_SERVER_H_
#define INTRAWARP_TESTS_IO_DICOM_CLI_SERVER_H_

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/client/process.h"
#include "tests/io/io_test.h"
#include "tests/support/server_process.h"

namespace intrawarp::io {

class CliServerTest : public FileTest {
 protected:
  static void SetUpTestSuite() {
    server_ = new client::ServerProcess(INTRAWARPD);
    address_ = server_->grpc();
  }
  static void TearDownTestSuite() {
    server_->Stop();
    delete server_;
  }

  static client::ProcessResult Run(const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {INTRAWARP_CLI, absl::StrCat("--server=", address_)};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return client::RunProcess(all);
  }

 private:
  inline static client::ServerProcess* server_ = nullptr;
  inline static std::string address_;
};

}  // namespace intrawarp::io

#endif  // INTRAWARP_TESTS_IO_DICOM_CLI_SERVER_H_
