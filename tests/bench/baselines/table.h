// SPDX-License-Identifier: Apache-2.0
// Plain text tables: a title, a first column of names, columns of numbers.
#ifndef INTRAWARP_TESTS_BENCH_BASELINES_TABLE_H_
#define INTRAWARP_TESTS_BENCH_BASELINES_TABLE_H_

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace intrawarp::baselines {

class Table {
 public:
  // `format` prints one number, at most kWidth characters of it.
  Table(std::string title, std::vector<std::string> columns, const char* format)
      : title_(std::move(title)), columns_(std::move(columns)), format_(format) {}

  // NaN prints as a dash.
  void Add(std::string name, std::vector<double> values) { rows_.push_back({std::move(name), std::move(values)}); }

  void Print() const {
    std::printf("\n%s\n%-*s", title_.c_str(), kNameWidth, "");
    for (const std::string& c : columns_) std::printf("%*s", kWidth, c.c_str());
    std::printf("\n");
    for (const Row& row : rows_) {
      std::printf("%-*s", kNameWidth, row.name.c_str());
      for (double v : row.values) PrintValue(v);
      std::printf("\n");
    }
    std::fflush(stdout);
  }

 private:
  static constexpr int kNameWidth = 34, kWidth = 12;
  struct Row {
    std::string name;
    std::vector<double> values;
  };

  void PrintValue(double v) const {
    char text[64];
    std::snprintf(text, sizeof(text), format_, v);
    std::printf("%*s", kWidth, std::isnan(v) ? "-" : text);
  }

  std::string title_;
  std::vector<std::string> columns_;
  const char* format_;
  std::vector<Row> rows_;
};

}  // namespace intrawarp::baselines

#endif  // INTRAWARP_TESTS_BENCH_BASELINES_TABLE_H_
