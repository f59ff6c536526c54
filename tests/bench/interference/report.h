// SPDX-License-Identifier: Apache-2.0
// Rows of figures, printed as tables for people and, when asked for, as JSON lines for programs.
#ifndef INTRAWARP_TESTS_BENCH_INTERFERENCE_REPORT_H_
#define INTRAWARP_TESTS_BENCH_INTERFERENCE_REPORT_H_

#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace intrawarp::bench {

// Columns in order.
class Row {
 public:
  Row& Add(const std::string& column, const std::string& value);
  // NaN: there is no such number ("-", and null in JSON).
  Row& Add(const std::string& column, double value, int decimals = 1);
  // The latencies' p50, p90, p99, p99.9 and max, which are ms.
  Row& AddPercentiles(const std::vector<double>& milliseconds);

 private:
  friend class Report;
  struct Cell {
    std::string column, text, json;
  };
  std::vector<Cell> cells_;
};

// "3 RESOURCE_EXHAUSTED QUEUE_FULL, 1 CANCELLED"; "-" for none.
std::string Tally(const std::map<std::string, int64_t>& counts);

// Thread-compatible.
class Report {
 public:
  // `json_path`: the file to which JSON lines are appended; empty: none.
  static absl::StatusOr<Report> Create(const std::string& json_path);
  Report(Report&& other) noexcept : json_(std::exchange(other.json_, nullptr)), columns_(std::move(other.columns_)) {}
  ~Report();

  // A new table begins with the first row, and wherever columns change.
  void Print(const std::string& scenario, const Row& row);

 private:
  explicit Report(FILE* json) : json_(json) {}

  FILE* json_ = nullptr;
  std::string columns_;
};

}  // namespace intrawarp::bench

#endif  // INTRAWARP_TESTS_BENCH_INTERFERENCE_REPORT_H_
