// SPDX-License-Identifier: Apache-2.0
// Frames beside other clients: a real server, as a process of its own made from this program, and real clients over
// loopback.
//
//   interference_bench --scenario=frames|capacity|overload|overhead|soak [--device=D] [--json=PATH] [...]
//
//   frames     sessions at --rates, alone and beside each of --floods: 4 clients that square a matrix (fem, rmat), 2
//              that upload volumes (uploads), 4 that register with affine,ffd (registrations), all of them (all), some
//              at once (fem+uploads).
//              It prints latencies, their ratio to the latencies without a flood, the mean of each phase of all frames
//              and of the slowest, and the rate of each flood against its rate without frames. Rates count an operation
//              in part that reaches over an end of the measurement.
//   capacity   1, 2, 3, ... sessions, for each of --sizes, --methods and --rates, until more than 1 % of the frames are
//              late.
//   overload   registrations by the method of --methods in a Poisson process at --percents of the rate that 8 clients
//              in a closed loop get. Printed: latencies of those that were done, time to refuse, the server's memory,
//              and the time from the end of the load until three calls in a row take at most 1.5 times a call alone.
//   overhead   one frame after the other, for each of --sizes and each encoding of the field: the client's time less
//              the phases upload, prepare, optimise, assess, encode and download; beside it the frame's bytes through a
//              plain loopback connection, CRC32C and memcpy in the same run.
//   soak       --soak_clients random clients for --seconds: every RPC and the HTTP port, with deadlines, cancels,
//              broken connections and resumed sessions. Printed: slopes after --warmup of the server's memory, device
//              memory, memory that its ledger has granted, descriptors and threads, fitted against the clients'
//              actions, with 95 % intervals; with --plant_leak=BYTES the server loses so much with every id that it
//              makes, and the slope of its memory must show it. A soak wants --server="--upload_ttl=5s".
//
// Latencies run from the moment when a frame or a call is due, ms, percentiles by nearest rank; a percentile that the
// number of samples does not support is "-". A frame is late when its answer comes later than its period after it was
// due, when it fails, and when no answer comes. A flag that the scenario does not use is refused. The frames of
// --size=32 --fem=fem27x3_8 --rmat=lap2d_100 --upload_mb=16 suit a CPU.
#include "absl/status/status.h"
#include "engine/base/flags.h"
#include "engine/base/status_macros.h"
#include "tests/bench/bench_support.h"
#include "tests/bench/interference/options.h"
#include "tests/bench/interference/scenarios.h"
#include "tests/bench/interference/server_process.h"
#include "tests/bench/interference/site.h"

namespace intrawarp::bench {
namespace {

absl::Status Run(const BenchOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<Site> site, Site::Open(options));
  std::printf("%s on %s, %.0f s each, seed %u\n", options.scenario.c_str(), site->server().device().c_str(),
              options.seconds, options.seed);
  if (options.scenario == "frames") return RunFramesScenario(*site);
  if (options.scenario == "capacity") return RunCapacityScenario(*site);
  if (options.scenario == "overload") return RunOverloadScenario(*site);
  if (options.scenario == "overhead") return RunOverheadScenario(*site);
  return RunSoakScenario(*site);
}

}  // namespace
}  // namespace intrawarp::bench

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (intrawarp::bench::IsServerProcess(arguments)) return intrawarp::bench::RunServerProcess(arguments);
  return intrawarp::MainWithOptions(intrawarp::bench::ParseOptions(arguments),
                                    intrawarp::FlagHelp(intrawarp::bench::Syntax()), intrawarp::bench::Run);
}
