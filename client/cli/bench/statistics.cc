// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace intrawarp::cli::bench {

std::string TallyText(const Tally& tally) {
  if (tally.empty()) return "none";
  return absl::StrJoin(
      tally, ", ", [](std::string* out, const auto& entry) { absl::StrAppend(out, entry.second, " ", entry.first); });
}

int64_t Total(const Tally& tally) {
  return std::accumulate(tally.begin(), tally.end(), int64_t{0},
                         [](int64_t sum, const auto& entry) { return sum + entry.second; });
}

std::optional<double> Percentile(const std::vector<double>& sorted, double part) {
  const auto count = static_cast<double>(sorted.size());
  // The products are of decimal fractions, which binary ones miss by a little.
  constexpr double kRounding = 1e-9;
  if (sorted.empty() || count * (1 - part) < 1 - kRounding) return std::nullopt;
  const auto rank = static_cast<size_t>(std::max(1.0, std::ceil(part * count - kRounding)));
  return sorted[rank - 1];
}

Percentiles PercentilesOf(std::vector<double> values) {
  Percentiles result;
  result.count = static_cast<int64_t>(values.size());
  if (values.empty()) return result;
  std::sort(values.begin(), values.end());
  result.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  result.p50 = Percentile(values, 0.5);
  result.p90 = Percentile(values, 0.9);
  result.p99 = Percentile(values, 0.99);
  result.p999 = Percentile(values, 0.999);
  result.max = values.back();
  return result;
}

double OverlapPart(double begin, double end, double from, double to) {
  if (end <= begin) return 0;
  return std::max(0.0, std::min(end, to) - std::max(begin, from)) / (end - begin);
}

}  // namespace intrawarp::cli::bench
