// SPDX-License-Identifier: Apache-2.0
// intrawarpd as a process of its own.
#ifndef INTRAWARP_TESTS_SUPPORT_SERVER_PROCESS_H_
#define INTRAWARP_TESTS_SUPPORT_SERVER_PROCESS_H_

#include <string>
#include <vector>

#include "tests/client/process.h"

namespace intrawarp::client {

// A server on the CPU and on ports of the kernel's choice, ready when the constructor returns; a test fails when it is
// not. The destructor kills it unless Stop was called. Thread-compatible.
class ServerProcess {
 public:
  // `program`: intrawarpd's path.
  explicit ServerProcess(const std::string& program, const std::vector<std::string>& flags = {});

  // HOST:PORT.
  std::string grpc() const { return Word(ready_, "grpc="); }
  std::string http() const { return Word(ready_, "http="); }
  // The line on stdout that says that it is ready; empty when it is not.
  const std::string& ready() const { return ready_; }
  Process& process() { return process_; }

  // Asks it to stop and waits; a test fails when the exit status is not 0.
  ProcessResult Stop();

 private:
  Process process_;
  std::string ready_;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_TESTS_SUPPORT_SERVER_PROCESS_H_
