// SPDX-License-Identifier: Apache-2.0
// LoadRun: one load with its floods on a running server, from its images to its results.
//
// Thread safety: thread-compatible.
#ifndef INTRAWARP_CLIENT_CLI_BENCH_LOAD_RUN_H_
#define INTRAWARP_CLIENT_CLI_BENCH_LOAD_RUN_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/bench/bench_options.h"
#include "client/cli/bench/bench_report.h"
#include "client/cli/bench/flood.h"
#include "client/cli/bench/holdings.h"
#include "client/cli/bench/load_client.h"
#include "client/cli/command_context.h"

namespace intrawarp::cli::bench {

class LoadRun {
 public:
  // Everything outlives the run.
  LoadRun(const BenchOptions& options, CommandContext& context, Holdings* holdings);

  // A load of `clients` clients, each with images of its own: the phantom of the seed of the options and the client's
  // number. Images stay resident for the next load of the same size. CANCELLED when it was interrupted before its
  // begin; later an interruption ends the load early, and the results say so. A refused client is part of the results;
  // other errors of preparation and of opening are returned.
  absl::StatusOr<LoadResult> Run(const Task& task, int clients);

 private:
  absl::Status PrepareImages(int size, int clients);
  absl::Status AddImages(int size);
  absl::StatusOr<std::vector<std::unique_ptr<Flood>>> StartFloods(LoadClock::Clock::time_point begin);
  // A client that was refused leaves a log and no client.
  absl::Status OpenClients(const LoadContext& context, int clients, std::vector<std::unique_ptr<LoadClient>>* opened,
                           std::vector<ClientLog>* refused);
  void Await(const LoadClock& clock, const std::vector<std::unique_ptr<LoadClient>>& clients);
  std::vector<FloodResult> EndFloods(const std::vector<std::unique_ptr<Flood>>& floods, double from, double to);
  bool needs_fixed() const;

  const BenchOptions& options_;
  CommandContext& context_;
  Holdings* const holdings_;
  int size_ = 0;
  std::vector<std::unique_ptr<ClientImages>> images_;
  bool is_ground_ready_ = false;
  FloodGround ground_;
};

}  // namespace intrawarp::cli::bench

#endif  // INTRAWARP_CLIENT_CLI_BENCH_LOAD_RUN_H_
