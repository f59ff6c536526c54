// SPDX-License-Identifier: Apache-2.0
// The server as a process of its own, from this very program, so that its memory, descriptors and threads can be told
// from those of the clients, and one program is all that a machine needs.
#ifndef INTRAWARP_TESTS_BENCH_INTERFERENCE_SERVER_PROCESS_H_
#define INTRAWARP_TESTS_BENCH_INTERFERENCE_SERVER_PROCESS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/client/process.h"

namespace intrawarp::bench {

struct ProcessUsage {
  double resident_bytes = 0;
  double descriptors = 0;
  double threads = 0;
};

class ServerProcess {
 public:
  // `arguments`: of intrawarpd. `leak_bytes`: what the server is to lose with every id that it makes (one or two for
  // every stored result), as the control of a soak; 0: nothing. UNAVAILABLE when it does not serve.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(std::vector<std::string> arguments, int64_t leak_bytes);

  // HOST:PORT.
  const std::string& grpc_address() const { return grpc_address_; }
  const std::string& http_address() const { return http_address_; }
  const std::string& device() const { return device_; }
  // From /proc.
  ProcessUsage Usage() const;

 private:
  explicit ServerProcess(const std::vector<std::string>& arguments) : process_(arguments) {}

  client::Process process_;
  std::string grpc_address_, http_address_, device_;
};

// The other side: whether these are the arguments of such a process, and its life until a SIGTERM. The exit status.
bool IsServerProcess(const std::vector<std::string>& arguments);
int RunServerProcess(const std::vector<std::string>& arguments);

}  // namespace intrawarp::bench

#endif  // INTRAWARP_TESTS_BENCH_INTERFERENCE_SERVER_PROCESS_H_
