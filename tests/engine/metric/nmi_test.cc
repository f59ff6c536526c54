// SPDX-License-Identifier: Apache-2.0
// The histogram of NMI and its windows.
#include "engine/metric/nmi.h"

#include <cmath>
#include <vector>

#include "engine/metric/ffd_objective.h"
#include "tests/engine/device_test.h"
#include "tests/engine/metric/ffd_objective_fixture.h"
#include "tests/engine/metric/references.h"

namespace intrawarp::ffd_objective_test {
namespace {

// ---- The plan. ----

TEST(NmiHistogram, MatchesEntropiesAndTheirDerivative) {
  std::vector<int64_t> counts(kNmiBins * kNmiBins);
  const std::vector<float> random = RandomFloats(counts.size(), 1000);
  int64_t total = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    counts[i] = random[i] < 0.3f ? 0 : static_cast<int64_t>(random[i] * 4000 * (i % 7));
    total += counts[i];
  }
  counts[0] += kNmiOne - total % kNmiOne;
  total += kNmiOne - total % kNmiOne;
  std::vector<float> derivative(counts.size());
  const MetricValue value = NmiFromHistogram(counts.data(), {0, 2.5f}, derivative.data());
  EXPECT_EQ(value.samples, static_cast<double>(total / kNmiOne));
  // Moving weight from one bin of a row to another changes the metric as the table says.
  const double step = 64;
  for (int f : {0, 17, 63}) {
    for (int m : {0, 30, 62}) {
      const int i = f * kNmiBins + m;
      if (counts[i] < 1000 || counts[i + 1] < 1000) continue;
      std::vector<int64_t> plus = counts, minus = counts;
      plus[i] += static_cast<int64_t>(step), plus[i + 1] -= static_cast<int64_t>(step);
      minus[i] -= static_cast<int64_t>(step), minus[i + 1] += static_cast<int64_t>(step);
      const double change = NmiFromHistogram(plus.data(), {0, 2.5f}, nullptr).metric -
                            NmiFromHistogram(minus.data(), {0, 2.5f}, nullptr).metric;
      const double expected = 2 * step / kNmiOne * (derivative[i] - derivative[i + 1]) / 2.5;
      EXPECT_NEAR(change, expected, 1e-2 * std::abs(expected) + 1e-12) << f << " " << m;
    }
  }
}

TEST(NmiWindow, CountsSumToOneUnit) {
  const NmiScale scale{-3.0f, 61 / 7.0f};
  for (float m : RandomFloats(1000, 1001, -4, 5)) {
    const NmiWindow window = MakeNmiWindow(scale, m);
    ASSERT_GE(window.cell, 0);
    ASSERT_LE(window.cell + 3, kNmiBins - 1);
    ASSERT_EQ(window.inside, m >= -3 && (m + 3) * scale.scale <= 61);
    float w[4];
    for (int k = 0; k < 4; ++k) w[k] = static_cast<float>(CubicSpline(window.t + 1.0 - k));
    uint32_t counts[4];
    NmiCounts(w, counts);
    ASSERT_EQ(counts[0] + counts[1] + counts[2] + counts[3], uint32_t{kNmiOne});
    for (int k = 0; k < 4; ++k) ASSERT_NEAR(counts[k], w[k] * kNmiOne, 2.01);
  }
}

}  // namespace
}  // namespace intrawarp::ffd_objective_test
