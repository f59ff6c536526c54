// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/interference/report.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tests/bench/interference/statistics.h"

namespace intrawarp::bench {
namespace {

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + "\"";
}

}  // namespace

Row& Row::Add(const std::string& column, const std::string& value) {
  cells_.push_back({column, value, Quoted(value)});
  return *this;
}

Row& Row::Add(const std::string& column, double value, int decimals) {
  if (!std::isfinite(value)) {
    cells_.push_back({column, "-", "null"});
  } else {
    cells_.push_back({column, absl::StrFormat("%.*f", decimals, value), absl::StrFormat("%.9g", value)});
  }
  return *this;
}

Row& Row::AddPercentiles(const std::vector<double>& milliseconds) {
  const std::pair<const char*, double> parts[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}};
  for (const auto& [name, part] : parts) Add(name, Percentile(milliseconds, part), 2);
  const auto largest = std::max_element(milliseconds.begin(), milliseconds.end());
  return Add("max", largest == milliseconds.end() ? std::nan("") : *largest, 2);
}

std::string Tally(const std::map<std::string, int64_t>& counts) {
  if (counts.empty()) return "-";
  const auto pair = [](std::string* out, const auto& item) { absl::StrAppend(out, item.second, " ", item.first); };
  return absl::StrJoin(counts, ", ", pair);
}

absl::StatusOr<Report> Report::Create(const std::string& json_path) {
  if (json_path.empty()) return Report(nullptr);
  FILE* const json = std::fopen(json_path.c_str(), "ae");
  if (json == nullptr) return absl::NotFoundError(absl::StrCat("--json: ", json_path, " cannot be written"));
  return Report(json);
}

Report::~Report() {
  if (json_ != nullptr) std::fclose(json_);
}

void Report::Print(const std::string& scenario, const Row& row) {
  std::vector<std::string> columns, texts, members = {absl::StrCat("\"scenario\":", Quoted(scenario))};
  for (const Row::Cell& cell : row.cells_) {
    columns.push_back(cell.column);
    texts.push_back(cell.text);
    members.push_back(absl::StrCat(Quoted(cell.column), ":", cell.json));
  }
  const std::string head = absl::StrCat("| ", absl::StrJoin(columns, " | "), " |");
  if (head != columns_) {
    const std::vector<std::string> rules(columns.size(), "---");
    std::printf("\n%s\n|%s|\n", head.c_str(), absl::StrJoin(rules, "|").c_str());
    columns_ = head;
  }
  std::printf("| %s |\n", absl::StrJoin(texts, " | ").c_str());
  std::fflush(stdout);
  if (json_ == nullptr) return;
  std::fprintf(json_, "{%s}\n", absl::StrJoin(members, ",").c_str());
  std::fflush(json_);
}

}  // namespace intrawarp::bench
