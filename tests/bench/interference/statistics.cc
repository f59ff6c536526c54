// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/interference/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

namespace intrawarp::bench {
namespace {

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// How many independent samples the residuals are worth.
double EffectiveCount(const std::vector<double>& residuals) {
  double product = 0, square = 0;
  for (size_t i = 0; i < residuals.size(); ++i) {
    square += residuals[i] * residuals[i];
    if (i > 0) product += residuals[i] * residuals[i - 1];
  }
  const double r = square > 0 ? std::clamp(product / square, 0.0, 0.999) : 0;
  return static_cast<double>(residuals.size()) * (1 - r) / (1 + r);
}

}  // namespace

double Percentile(std::vector<double> values, double part) {
  const auto count = static_cast<double>(values.size());
  if (values.empty() || count * (1 - part) < 1 - 1e-9) return std::nan("");
  const auto rank = static_cast<size_t>(std::max(1.0, std::ceil(part * count)));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rank - 1), values.end());
  return values[rank - 1];
}

double Median(std::vector<double> values) { return Percentile(std::move(values), 0.5); }

double Overlap(double begin, double end, double from, double to) {
  if (end <= begin) return 0;
  return std::max(0.0, std::min(end, to) - std::max(begin, from)) / (end - begin);
}

Slope FitSlope(const std::vector<double>& x, const std::vector<double>& y) {
  if (x.size() != y.size() || x.size() < 8) return {0, std::numeric_limits<double>::infinity()};
  const double mean_x = Mean(x), mean_y = Mean(y);
  double xx = 0, xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    xy += (x[i] - mean_x) * (y[i] - mean_y);
  }
  if (xx <= 0) return {0, std::numeric_limits<double>::infinity()};
  Slope slope{xy / xx, 0};
  std::vector<double> residuals;
  double square = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    residuals.push_back(y[i] - mean_y - slope.per_unit * (x[i] - mean_x));
    square += residuals.back() * residuals.back();
  }
  const double count = EffectiveCount(residuals);
  if (count <= 2.5) return {slope.per_unit, std::numeric_limits<double>::infinity()};
  const double variance = square / static_cast<double>(x.size()) * count / (count - 2);
  slope.confidence = 1.96 * (1 + 2.5 / count) * std::sqrt(variance / (xx * count / static_cast<double>(x.size())));
  return slope;
}

}  // namespace intrawarp::bench
