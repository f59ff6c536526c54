// SPDX-License-Identifier: Apache-2.0
// A picture of a load: latency over time, and latency by percentile, as the client and as the server saw it.
// Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_BENCH_LATENCY_PLOT_H_
#define INTRAWARP_CLIENT_CLI_BENCH_LATENCY_PLOT_H_

#include <string>
#include <vector>

#include "client/cli/bench/call_record.h"

namespace intrawarp::cli::bench {

// An SVG file. However many calls there are, it has at most some thousand marks: over time a bar for each column of
// pixels, from the fastest to the slowest call that was due there, with a dot at their median and a red tick on top
// where a call had no good answer. `limit_ms` 0: no limit is drawn. `title` may hold any characters.
std::string LatencyPlot(const std::string& title, const std::vector<ClientLog>& clients, double seconds,
                        double limit_ms);

}  // namespace intrawarp::cli::bench

#endif  // INTRAWARP_CLIENT_CLI_BENCH_LATENCY_PLOT_H_
