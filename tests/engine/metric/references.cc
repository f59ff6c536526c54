// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/metric/references.h"

#include <algorithm>
#include <cmath>

namespace intrawarp {
namespace {

double Entropy(double p) { return p > 0 ? -p * std::log(p) : 0; }

double LogOf(double p, double floor) { return std::log(std::max(p, floor)); }

double Rounded(double value, double unit) { return unit > 0 ? unit * std::nearbyint(value / unit) : value; }

// The weights of four neighbouring bins, which add up to that of the sample.
std::array<double, 4> WindowAt(const NmiPlace& place, double unit) {
  std::array<double, 4> w;
  for (int k = 0; k < 4; ++k) w[k] = place.weight * CubicSpline(place.t + 1 - k);
  if (unit > 0) {
    for (int k : {0, 1, 3}) w[k] = Rounded(w[k], unit);
    w[2] = Rounded(place.weight, unit) - w[0] - w[1] - w[3];
  }
  return w;
}

}  // namespace

uint8_t SlowWeight(Int3 voxel, uint32_t seed) {
  const double wave = std::sin(seed + 0.025 * voxel.x + 0.02 * voxel.y + 0.03 * voxel.z);
  return static_cast<uint8_t>(std::clamp(128 + 130 * wave, 0.0, 255.0));
}

Sample SampleReference(const HostVolume& v, Vec3d index, double cell_rounding) {
  const Int3 n = v.geometry.size;
  Int3 lower, nearest;
  Vec3d weight;
  bool interior[3];
  Sample s;
  for (int a = 0; a < 3; ++a) {
    if (!(index[a] >= -0.5 && index[a] <= n[a] - 0.5)) return s;
    const double clamped = std::clamp(index[a], 0.0, n[a] - 1.0);
    interior[a] = clamped == index[a] && n[a] > 1;
    lower[a] = std::max(0, std::min(static_cast<int>(std::floor(clamped)), n[a] - 2));
    weight[a] = clamped - lower[a];
    nearest[a] = std::clamp(static_cast<int>(std::floor(index[a] + 0.5)), 0, n[a] - 1);
    s.ambiguous |= n[a] > 1 && std::abs(index[a] - std::round(index[a])) < cell_rounding;
    // Another voxel may be the nearest, of another weight.
    const bool is_soft = !v.mask.empty() && v.weight_per_unit < 1;
    s.ambiguous |= is_soft && std::abs(index[a] - std::floor(index[a]) - 0.5) < cell_rounding;
  }
  if (!v.InMask(nearest)) return s;
  s.counts = true;
  s.weight = v.Weight(nearest);
  for (int corner = 0; corner < 8; ++corner) {
    Int3 p;
    double w[3], dw[3];
    for (int a = 0; a < 3; ++a) {
      const int bit = corner >> a & 1;
      p[a] = std::min(lower[a] + bit, n[a] - 1);
      w[a] = bit ? weight[a] : 1 - weight[a];
      dw[a] = interior[a] ? (bit ? 1 : -1) : 0;
    }
    s.value += w[0] * w[1] * w[2] * v.At(p);
    s.gradient = s.gradient + v.At(p) * Vec3d{dw[0] * w[1] * w[2], w[0] * dw[1] * w[2], w[0] * w[1] * dw[2]};
  }
  return s;
}

double CubicSpline(double x) {
  x = std::abs(x);
  if (x >= 2) return 0;
  return x < 1 ? (4 - 6 * x * x + 3 * x * x * x) / 6 : (2 - x) * (2 - x) * (2 - x) / 6;
}

AffineMap Rotation(Vec3d degrees) {
  AffineMap all = AffineMap::Identity();
  for (int a = 0; a < 3; ++a) {
    const double t = degrees[a] * M_PI / 180;
    const int b = (a + 1) % 3, c = (a + 2) % 3;
    AffineMap one = AffineMap::Identity();
    one.m[b][b] = one.m[c][c] = std::cos(t);
    one.m[b][c] = -std::sin(t);
    one.m[c][b] = std::sin(t);
    all = Compose(one, all);
  }
  return all;
}

NmiReference::NmiReference(const std::vector<NmiPlace>& places, double unit)
    : samples_(static_cast<double>(places.size())) {
  for (const NmiPlace& p : places) weight_ += Rounded(p.weight, unit);
  if (weight_ == 0) return;
  floor_ = 0.5 * unit / weight_ + 1e-300;
  for (const NmiPlace& p : places) {
    const std::array<double, 4> w = WindowAt(p, unit);
    for (int k = 0; k < 4; ++k) joint_[kBins * p.bin + p.cell + k] += w[k];
  }
  for (int i = 0; i < kBins * kBins; ++i) {
    joint_[i] /= weight_;
    fixed_[i / kBins] += joint_[i];
    moving_[i % kBins] += joint_[i];
    joint_entropy_ += Entropy(joint_[i]);
  }
  for (int i = 0; i < kBins; ++i) marginal_entropies_ += Entropy(fixed_[i]) + Entropy(moving_[i]);
  value_ = 2 - marginal_entropies_ / joint_entropy_;
}

double NmiReference::Slope(int bin, int k) const {
  // -d/dp of each entropy is log p + 1, and the ones cancel.
  return (joint_entropy_ * LogOf(moving_[k], floor_) - marginal_entropies_ * LogOf(joint(bin, k), floor_)) /
         (joint_entropy_ * joint_entropy_);
}

NmiReference::Derivative NmiReference::DerivativeAt(const NmiPlace& place) const {
  const double t = place.t, s = 1 - t;
  const double d[4] = {-s * s / 2, t * (3 * t - 4) / 2, s * (4 - 3 * s) / 2, t * t / 2};
  Derivative derivative;
  for (int k = 0; k < 4; ++k) {
    const double slope = Slope(place.bin, place.cell + k);
    derivative.value += place.weight * slope * d[k] / weight_;
    derivative.largest_slope = std::max(derivative.largest_slope, std::abs(slope));
  }
  return derivative;
}

}  // namespace intrawarp
