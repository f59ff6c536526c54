// SPDX-License-Identifier: Apache-2.0
// Flood: clients that work without pause beside a load: products, uploads, registrations. A client that is refused
// waits for 10 ms; a flood that has failed 100 times otherwise ends.
//
// Thread safety: one thread uses a flood; the flood's own threads run from Start to Finish.
#ifndef INTRAWARP_CLIENT_CLI_BENCH_FLOOD_H_
#define INTRAWARP_CLIENT_CLI_BENCH_FLOOD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/bench/load_client.h"
#include "client/cli/bench/statistics.h"
#include "client/cpp/client.h"

namespace intrawarp::cli::bench {

struct FloodResult {
  std::string name;
  int clients = 0;
  // All operations that ended while the flood ran, its warm-up included.
  int64_t done = 0;
  Tally refused;
  Tally failed;
  absl::Status first_failure;
  // Payload of uploads. Products and transforms stay on the server, so that nothing is received.
  int64_t bytes_sent = 0;
  // Over the span of the load: operations a second, one that reaches over an end counting in part; and the times of
  // those that ended well in it. At most the first million operations count here.
  double per_second = 0;
  Percentiles milliseconds;
};

class Flood {
 public:
  // Adds the payload that it sends.
  using Operation =
      std::function<absl::Status(client::Client& client, const client::CallOptions& options, int64_t* sent)>;

  Flood(std::string name, int clients, Operation operation);
  ~Flood();
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

  // Errors of `connect`.
  absl::Status Start(const ConnectFunction& connect, LoadClock::Clock::time_point begin);
  // No operation begins any more.
  void Stop() { stopped_ = true; }
  bool finished() const { return running_ == 0; }
  // Ends the operations under way.
  void Cancel() { cancellation_.Cancel(); }
  // Waits for the threads. The span of the load is in seconds after `begin`.
  FloodResult Finish(double from, double to);

 private:
  struct Done {
    double begin = 0, end = 0;
  };
  void Loop(client::Client& client);
  void Note(const Done& done, const absl::Status& status, int64_t sent);
  void Join();

  const std::string name_;
  const int wanted_;
  const Operation operation_;
  client::Cancellation cancellation_;
  std::atomic<bool> stopped_{false};
  std::atomic<int> running_{0};
  LoadClock::Clock::time_point begin_;
  std::mutex mutex_;  // guards the next two
  std::vector<Done> done_;
  FloodResult result_;
  std::vector<std::unique_ptr<client::Client>> clients_;
  std::vector<std::thread> threads_;
};

// The names of resident matrices and the voxels of uploads that floods work on. Empty without a flood that needs them.
struct FloodGround {
  std::string fem_matrix;
  std::string random_matrix;
  std::shared_ptr<const io::HostVolume> noise;
};

// Makes it, and makes the matrices resident.
absl::StatusOr<FloodGround> PrepareFloods(const FloodOptions& options, uint32_t seed, Holdings* holdings,
                                          client::Client& client, const client::CallOptions& call);

// The floods of the options; none runs yet. `images`, the pair of the flood of registrations, may be null without one.
// Floods do not outlive `holdings`.
std::vector<std::unique_ptr<Flood>> MakeFloods(const FloodOptions& options, const FloodGround& ground,
                                               const ClientImages* images, Holdings* holdings);

}  // namespace intrawarp::cli::bench

#endif  // INTRAWARP_CLIENT_CLI_BENCH_FLOOD_H_
