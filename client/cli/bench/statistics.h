// SPDX-License-Identifier: Apache-2.0
// Percentiles of latencies, counts by name, and parts of spans of time. Pure functions, plain values.
#ifndef INTRAWARP_CLIENT_CLI_BENCH_STATISTICS_H_
#define INTRAWARP_CLIENT_CLI_BENCH_STATISTICS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace intrawarp::cli::bench {

// Counts by name.
using Tally = std::map<std::string, int64_t>;

// "3 RESOURCE_EXHAUSTED QUEUE_FULL, 1 CANCELLED"; "none" for an empty tally.
std::string TallyText(const Tally& tally);
int64_t Total(const Tally& tally);

// A percentile by nearest rank: the smallest value that at least `part` of the values do not exceed. Unset where fewer
// than 1 / (1 - part) values are there, so that the p99 of 50 values is not their maximum under another name. `part` is
// in [0, 1).
std::optional<double> Percentile(const std::vector<double>& sorted, double part);

struct Percentiles {
  int64_t count = 0;
  std::optional<double> mean, p50, p90, p99, p999, max;
};

// The values may be in any order; none is NaN.
Percentiles PercentilesOf(std::vector<double> values);

// The part of [begin, end] that lies in [from, to]; 0 for an empty span.
double OverlapPart(double begin, double end, double from, double to);

}  // namespace intrawarp::cli::bench

#endif  // INTRAWARP_CLIENT_CLI_BENCH_STATISTICS_H_
