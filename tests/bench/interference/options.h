// SPDX-License-Identifier: Apache-2.0
// The options of interference_bench, and how flags become them. Plain values, thread-safe functions.
#ifndef INTRAWARP_TESTS_BENCH_INTERFERENCE_OPTIONS_H_
#define INTRAWARP_TESTS_BENCH_INTERFERENCE_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/flags.h"

namespace intrawarp::bench {

struct BenchOptions {
  std::string scenario;
  std::string device;
  std::vector<std::string> server_flags;
  int size = 128;                    // of frames, overload and soak
  std::vector<int> sizes;            // of capacity and overhead
  std::vector<std::string> methods;  // overload has one
  std::vector<std::string> encodings;
  std::vector<double> rates;  // frames a second; 0: the next one as soon as one is answered
  std::vector<std::string> floods;
  std::string fem, rmat;
  bool products_sent = false;
  int64_t upload_bytes = 0;
  double seconds = 20;
  double warmup = 3;
  int max_sessions = 16;
  std::vector<double> percents;
  double call_deadline_ms = 0;
  int soak_clients = 8;
  int64_t leak_bytes = 0;
  uint32_t seed = 1;
  std::string json;
};

CommandSyntax Syntax();

// INVALID_ARGUMENT names the flag: for a value that is wrong, and for a flag that the scenario does not use.
absl::StatusOr<BenchOptions> ParseOptions(const std::vector<std::string>& arguments);

// The kinds of clients in a flood: fem, rmat, uploads, registrations. "all" is all of them, and "fem+uploads" two.
std::vector<std::string> FloodsOf(const std::string& names);

}  // namespace intrawarp::bench

#endif  // INTRAWARP_TESTS_BENCH_INTERFERENCE_OPTIONS_H_
