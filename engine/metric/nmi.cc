// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/nmi.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace intrawarp {
namespace {

double SafeInverse(double range) { return range > 0 ? 1 / range : 0; }

NmiScale MakeNmiScale(float minimum, float maximum, int cells) {
  const double range = static_cast<double>(maximum) - minimum;
  return {minimum, static_cast<float>(cells * SafeInverse(range))};
}

double Entropy(const double* p, int count) {
  double h = 0;
  for (int i = 0; i < count; ++i) {
    if (p[i] > 0) h -= p[i] * std::log(p[i]);
  }
  return h;
}

// B N E[(dD/dm(i))^2 | f], the score being sampled where a window is centred on a bin.
float Curvature(const double* joint, const float* derivative, double fixed_bin, double scale) {
  if (!(fixed_bin > 0)) return 0;
  double sum = 0;
  for (int m = 1; m + 1 < kNmiBins; ++m) {
    const double score = 0.5 * (static_cast<double>(derivative[m + 1]) - derivative[m - 1]);
    sum += joint[m] * score * score;
  }
  return static_cast<float>(scale * sum / fixed_bin);
}

}  // namespace

int NmiBinsFor(double samples) { return static_cast<int>(std::clamp(std::cbrt(samples), 8.0, double{kNmiBins})); }
NmiScale NmiFixedScale(float minimum, float maximum, int bins) { return MakeNmiScale(minimum, maximum, bins); }
NmiScale NmiMovingScale(float minimum, float maximum, int bins) { return MakeNmiScale(minimum, maximum, bins - 3); }

MetricValue NmiFromHistogram(const int64_t* counts, NmiScale moving, float* derivative, float* curvature) {
  int64_t total = 0;
  for (int i = 0; i < kNmiBins * kNmiBins; ++i) total += counts[i];
  if (total == 0) {
    if (derivative != nullptr) std::fill_n(derivative, kNmiBins * kNmiBins, 0.0f);
    if (curvature != nullptr) std::fill_n(curvature, kNmiBins, 0.0f);
    return {std::numeric_limits<double>::quiet_NaN(), 0};
  }
  std::vector<double> joint(kNmiBins * kNmiBins), fixed_bins(kNmiBins), moving_bins(kNmiBins);
  for (int f = 0; f < kNmiBins; ++f) {
    for (int m = 0; m < kNmiBins; ++m) {
      const double p = static_cast<double>(counts[f * kNmiBins + m]) / static_cast<double>(total);
      joint[f * kNmiBins + m] = p;
      fixed_bins[f] += p;
      moving_bins[m] += p;
    }
  }
  const double marginals = Entropy(fixed_bins.data(), kNmiBins) + Entropy(moving_bins.data(), kNmiBins);
  const double together = Entropy(joint.data(), kNmiBins * kNmiBins);
  const double weight = static_cast<double>(total) / kNmiOne;
  if (derivative != nullptr) {
    // d(2 - A / B)/dp(f, m) = (B log p(m) - A log p(f, m)) / B^2 up to what is the same for all bins, which the
    // derivatives of a window, summing to 0, cancel. Bins that rounding left empty count as half a unit.
    const double floor = 0.5 / static_cast<double>(total), scale = moving.scale / (weight * together * together);
    for (int f = 0; f < kNmiBins; ++f) {
      for (int m = 0; m < kNmiBins; ++m) {
        derivative[f * kNmiBins + m] =
            static_cast<float>(scale * (together * std::log(std::max(moving_bins[m], floor)) -
                                        marginals * std::log(std::max(joint[f * kNmiBins + m], floor))));
      }
    }
  }
  for (int f = 0; f < kNmiBins && curvature != nullptr; ++f) {
    curvature[f] = Curvature(&joint[f * kNmiBins], derivative + f * kNmiBins, fixed_bins[f], together * weight);
  }
  return {2 - marginals / together, weight};
}

}  // namespace intrawarp
