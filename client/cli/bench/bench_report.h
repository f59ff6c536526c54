// SPDX-License-Identifier: Apache-2.0
// The results of intrawarp bench, as a table for people and as JSON, whose schema docs/operate/bench.md describes.
// Plain values; thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_BENCH_BENCH_REPORT_H_
#define INTRAWARP_CLIENT_CLI_BENCH_BENCH_REPORT_H_

#include <string>
#include <vector>

#include "client/cli/bench/bench_options.h"
#include "client/cli/bench/call_record.h"
#include "client/cli/bench/capacity.h"
#include "client/cli/bench/flood.h"
#include "client/cli/bench/summary.h"
#include "client/cli/report_json.h"
#include "intrawarp/v1/server.pb.h"

namespace intrawarp::cli::bench {

// One load, with the floods beside it.
struct LoadResult {
  // Empty for floods alone.
  std::vector<ClientLog> clients;
  Summary summary;
  std::vector<FloodResult> floods;
  bool interrupted = false;
};

// The name of the schema, in its first key.
inline constexpr char kBenchSchema[] = "intrawarp-bench/1";

// The keys that name the server and what was asked of it.
Json HeaderToJson(const v1::ServerInfo& server, const BenchOptions& options);
// "load" and "floods". Without `calls` the list of every call is left out.
Json LoadToJson(const LoadResult& result, double limit_ms, bool calls);
Json CapacityToJson(const Capacity& capacity);

// Lines with line ends.
std::string HeaderText(const v1::ServerInfo& server, const BenchOptions& options);
std::string LoadText(const LoadResult& result, const BenchOptions& options);

}  // namespace intrawarp::cli::bench

#endif  // INTRAWARP_CLIENT_CLI_BENCH_BENCH_REPORT_H_
