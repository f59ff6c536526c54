// SPDX-License-Identifier: Apache-2.0
// Numbers about samples: percentiles that say when there are too few samples, and the slope of a series with its
// confidence. Pure functions.
#ifndef INTRAWARP_TESTS_BENCH_INTERFERENCE_STATISTICS_H_
#define INTRAWARP_TESTS_BENCH_INTERFERENCE_STATISTICS_H_

#include <vector>

namespace intrawarp::bench {

// By nearest rank. NaN where fewer than 1 / (1 - part) samples stand above or at it, so that p99 of 50 samples is not
// their maximum under another name; the median needs two.
double Percentile(std::vector<double> values, double part);

double Median(std::vector<double> values);

// Seconds of `begin` to `end` that lie in `from` to `to`, as a part of the whole; 0 for an empty span.
double Overlap(double begin, double end, double from, double to);

// A line through (x, y) by least squares.
struct Slope {
  double per_unit = 0;  // of y for a unit of x
  // Half of the width of the 95 % confidence interval. Residuals of neighbouring samples are correlated; the number of
  // samples is reduced to n (1 - r) / (1 + r), r being their lag-1 autocorrelation (Bartlett 1935; at least 0).
  double confidence = 0;
  // The interval lies above 0.
  bool rises() const { return per_unit - confidence > 0; }
};

// At least 8 samples; otherwise a slope of 0 with an infinite interval.
Slope FitSlope(const std::vector<double>& x, const std::vector<double>& y);

}  // namespace intrawarp::bench

#endif  // INTRAWARP_TESTS_BENCH_INTERFERENCE_STATISTICS_H_
