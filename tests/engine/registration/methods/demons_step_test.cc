// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/methods/demons_step.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "hwy/highway.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

size_t Voxels(Int3 size) { return size_t{1} * size.x * size.y * size.z; }

struct Expected {
  // N of all voxels, then D.
  std::vector<double> force;
  double squares = 0;
  double samples = 0;
  double weight = 0;
};

// The weights of both images, as a mask's bytes; none where empty.
struct Weights {
  std::vector<uint8_t> fixed, warped;
  double At(size_t i) const { return Of(fixed, i) * Of(warped, i); }

 private:
  static double Of(const std::vector<uint8_t>& bytes, size_t i) { return bytes.empty() ? 1 : bytes[i] / 255.0; }
};

std::vector<uint8_t> RandomBytes(size_t count, uint32_t seed) {
  std::vector<uint8_t> bytes;
  for (const float byte : RandomFloats(count, seed, 1, 256)) bytes.push_back(static_cast<uint8_t>(byte));
  return bytes;
}

// The header's formula in float64.
Expected Force(const DemonsForceTask& task, const std::vector<float>& f, const std::vector<float>& m,
               const Weights& weights) {
  const Int3 n = task.size;
  const auto at = [&](const std::vector<float>& v, Int3 i) -> double {
    for (int a = 0; a < 3; ++a)
      if (i[a] < 0 || i[a] >= n[a]) return kNone;
    return v[(size_t(i.z) * n.y + i.y) * n.x + i.x];
  };
  const auto difference = [&](const std::vector<float>& v, Int3 i, int a) {
    Int3 low = i, high = i;
    --low[a];
    ++high[a];
    const double l = at(v, low), h = at(v, high), c = at(v, i);
    if (std::isnan(l) && std::isnan(h)) return 0.0;
    if (std::isnan(l)) return h - c;
    if (std::isnan(h)) return c - l;
    return (h - l) / 2;
  };
  Expected e;
  std::vector<double> denominators;
  for (int z = 0; z < n.z; ++z)
    for (int y = 0; y < n.y; ++y)
      for (int x = 0; x < n.x; ++x) {
        const Int3 i{x, y, z};
        const double d = at(f, i) - at(m, i);
        double g[3], norm = 0;
        for (int a = 0; a < 3; ++a) {
          const double df = difference(f, i, a), dm = difference(m, i, a);
          g[a] = task.gradient == DemonsGradient::kSymmetric ? (df + dm) / 2
                 : task.gradient == DemonsGradient::kFixed   ? df
                                                             : dm;
          g[a] /= task.sides[a];
          norm += g[a] * g[a];
        }
        norm += d * d / (4 * task.max_step * task.max_step) + task.weak_gradient * task.weak_gradient;
        const double w = weights.At(denominators.size());
        for (int a = 0; a < 3; ++a) {
          e.force.push_back(std::isnan(d) ? 0 : w * task.weight * d * g[a] / task.sides[a]);
        }
        denominators.push_back(std::isnan(d) ? 0 : w * std::abs(task.weight) * norm);
        if (std::isnan(d)) continue;
        e.squares += w * d * d;
        e.samples += 1;
        e.weight += w;
      }
  e.force.insert(e.force.end(), denominators.begin(), denominators.end());
  return e;
}

class DemonsStepTest : public DeviceTest {
 protected:
  void CheckForce(bool fixed_weights = false, bool warped_weights = false) {
    for (const Int3 size :
         {Int3{1, 1, 1}, Int3{2, 1, 1}, Int3{40, 1, 1}, Int3{33, 9, 1}, Int3{31, 8, 9}, Int3{70, 17, 18}}) {
      for (const DemonsGradient gradient :
           {DemonsGradient::kSymmetric, DemonsGradient::kFixed, DemonsGradient::kWarped}) {
        std::vector<float> f = RandomFloats(Voxels(size), 1, -1, 1), m = RandomFloats(Voxels(size), 2, -1, 1);
        const std::vector<float> holes = RandomFloats(Voxels(size), 3);
        for (size_t i = 0; i < f.size() && f.size() > 2; ++i) {
          if (holes[i] < 0.1) f[i] = kNone;
          if (holes[i] > 0.9) m[i] = kNone;
        }
        DemonsForceTask task;
        task.fixed = Upload(f);
        task.warped = Upload(m);
        task.size = task.force_size = size;
        task.sides = {0.8f, 0.9f, 1.4f};
        task.gradient = gradient;
        task.max_step = 1.5f;
        task.weak_gradient = gradient == DemonsGradient::kFixed ? 0 : 0.3f;
        task.weight = 0.5f;
        Weights weights;
        if (fixed_weights) weights.fixed = RandomBytes(f.size(), 11);
        if (warped_weights) weights.warped = RandomBytes(f.size(), 12);
        if (fixed_weights) task.fixed_weights = {Upload(weights.fixed), kWeightPerUnit};
        if (warped_weights) task.warped_weights = {Upload(weights.warped), kWeightPerUnit};
        Expected expected = Force(task, f, m, weights);
        DemonsState start;
        DemonsState* state = Upload(std::vector<DemonsState>{start});
        float* force = Poisoned<float>(4 * f.size());
        ASSERT_OK(DemonsForce(ctx(), task, force, state, &state->done));
        std::vector<float> got = Download(force, 4 * f.size());
        for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected.force[i], 2e-6) << i;
        const DemonsState after = Download(state, 1)[0];
        EXPECT_EQ(after.samples, expected.samples);
        EXPECT_NEAR(after.value, expected.squares / expected.weight, 1e-6);
        EXPECT_EQ(after.iterations, after.done ? 0 : 1);
        task.accumulate = true;
        task.weight = -0.25f;
        ASSERT_OK(DemonsForce(ctx(), task, force, nullptr));
        got = Download(force, 4 * f.size());
        // Half of N is taken away, and half of D is added.
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_NEAR(got[i], (i < 3 * f.size() ? 0.5 : 1.5) * expected.force[i], 3e-6) << i;
        }
      }
    }
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(DemonsStepTest);

TEST_P(DemonsStepTest, ForceIsTheFormula) { CheckForce(); }

TEST_P(DemonsStepTest, ForceIsTheFormulaUnderWeights) {
  CheckForce(true, false);
  CheckForce(false, true);
  CheckForce(true, true);
}

// On the images' grid and on a coarser one.
TEST_P(DemonsStepTest, WeightsOfOneAreTheBitsOfNone) {
  const Int3 size{70, 17, 18};
  std::vector<float> f = RandomFloats(Voxels(size), 13, -1, 1), m = RandomFloats(Voxels(size), 14, -1, 1);
  for (size_t i = 0; i < f.size(); i += 7) f[i] = kNone;
  for (const Int3 force_size : {size, Int3{35, 8, 9}}) {
    DemonsForceTask task;
    task.fixed = Upload(f);
    task.warped = Upload(m);
    task.size = size;
    task.force_size = force_size;
    task.weak_gradient = 0.2f;
    std::vector<std::vector<float>> forces;
    std::vector<double> values;
    for (const bool weighted : {false, true}) {
      const DemonsWeights ones{Upload(std::vector<uint8_t>(f.size(), 255)), kWeightPerUnit};
      if (weighted) task.fixed_weights = task.warped_weights = ones;
      DemonsState* state = Upload(std::vector<DemonsState>(1));
      float* force = Poisoned<float>(4 * Voxels(force_size));
      ASSERT_OK(DemonsForce(ctx(), task, force, state));
      forces.push_back(Download(force, 4 * Voxels(force_size)));
      values.push_back(Download(state, 1)[0].value);
    }
    EXPECT_EQ(forces[0], forces[1]);
    EXPECT_EQ(values[0], values[1]);
  }
}

// The mean over a cell is that of weighted voxels.
TEST_P(DemonsStepTest, CoarserForceUnderWeights) {
  const Int3 size{37, 12, 9}, cells{12, 6, 3};
  const std::vector<float> f = RandomFloats(Voxels(size), 15, -1, 1), m = RandomFloats(Voxels(size), 16, -1, 1);
  const Weights weights{RandomBytes(f.size(), 17), RandomBytes(f.size(), 18)};
  DemonsForceTask task;
  task.fixed = Upload(f);
  task.warped = Upload(m);
  task.size = size;
  task.force_size = cells;
  task.fixed_weights = {Upload(weights.fixed), kWeightPerUnit};
  task.warped_weights = {Upload(weights.warped), kWeightPerUnit};
  const Expected fine = Force(task, f, m, weights);
  std::vector<double> denominators(Voxels(cells)), counts(Voxels(cells));
  size_t i = 0;
  for (int z = 0; z < size.z; ++z)
    for (int y = 0; y < size.y; ++y)
      for (int x = 0; x < size.x; ++x, ++i) {
        const Int3 at{x, y, z};
        Int3 cell;
        for (int a = 0; a < 3; ++a) cell[a] = (2 * at[a] + 1) * cells[a] / (2 * size[a]);
        const size_t to = (size_t(cell.z) * cells.y + cell.y) * cells.x + cell.x;
        denominators[to] += fine.force[3 * f.size() + i];
        counts[to] += 1;
      }
  float* force = Poisoned<float>(4 * Voxels(cells));
  DemonsState* state = Upload(std::vector<DemonsState>(1));
  ASSERT_OK(DemonsForce(ctx(), task, force, state));
  const std::vector<float> got = Download(force, 4 * Voxels(cells));
  for (size_t c = 0; c < Voxels(cells); ++c) {
    ASSERT_NEAR(got[3 * Voxels(cells) + c], denominators[c] / counts[c], 1e-5) << c;
  }
  EXPECT_NEAR(Download(state, 1)[0].value, fine.squares / fine.weight, 1e-6);
}

// Every instruction set that this processor has.
TEST_P(DemonsStepTest, ForceIsTheFormulaOnEveryVectorTarget) {
  if (ctx().is_cuda()) GTEST_SKIP() << "only for the CPU";
  const int64_t supported = hwy::SupportedTargets();
  for (int64_t rest = supported; rest != 0; rest &= rest - 1) {
    SCOPED_TRACE(hwy::TargetName(rest & -rest));
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    CheckForce();
    CheckForce(true, true);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST_P(DemonsStepTest, ForceIsNoLongerThanTheStep) {
  const Int3 size{50, 20, 10};
  DemonsForceTask task;
  task.fixed = Upload(RandomFloats(Voxels(size), 4, -100, 100));
  task.warped = Upload(RandomFloats(Voxels(size), 5, -100, 100));
  task.size = task.force_size = size;
  task.max_step = 0.7f;
  float* force = Poisoned<float>(4 * Voxels(size));
  ASSERT_OK(DemonsForce(ctx(), task, force, nullptr));
  const std::vector<float> n = Download(force, 4 * Voxels(size));
  const float* const denominators = n.data() + 3 * Voxels(size);
  double largest = 0;
  for (size_t i = 0; i < Voxels(size); ++i) {
    largest = std::max(largest, std::hypot(double{n[3 * i]}, n[3 * i + 1], n[3 * i + 2]) / denominators[i]);
  }
  EXPECT_LE(largest, 0.7 + 1e-5);
  EXPECT_GT(largest, 0.65);
}

TEST_P(DemonsStepTest, ImagesAreScaledAndMasked) {
  Geometry g;
  g.size = {37, 5, 3};
  const std::vector<float> image = RandomFloats(g.voxels(), 6, -5, 5);
  std::vector<uint8_t> mask(g.voxels());
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3;
  float* out = Poisoned<float>(g.voxels());
  ASSERT_OK(PrepareDemonsImage(ctx(), {Upload(image), g}, {Upload(mask), g}, 0.5f, 2.0f, out));
  const std::vector<float> got = Download(out, g.voxels());
  for (size_t i = 0; i < got.size(); ++i) {
    if (mask[i] == 0) {
      EXPECT_TRUE(std::isnan(got[i]));
    } else {
      EXPECT_NEAR(got[i], 0.5f * image[i] + 2, 1e-6);
    }
  }
}

TEST_P(DemonsStepTest, MomentsAreOfWhatBothHave) {
  for (const int64_t n : {1, 255, 8192, 8193, 40000}) {
    std::vector<float> f = RandomFloats(n, 7, -3, 3), m = RandomFloats(n, 8, 2, 9);
    PairMoments expected;
    for (int64_t i = 0; i < n; ++i) {
      if (i % 5 == 3) f[i] = kNone;
      if (i % 7 == 2) m[i] = kNone;
      if (std::isnan(f[i]) || std::isnan(m[i])) continue;
      expected.samples += 1;
      expected.fixed += f[i];
      expected.fixed_squares += double{f[i]} * f[i];
      expected.moving += m[i];
      expected.moving_squares += double{m[i]} * m[i];
    }
    PairMoments* moments = Poisoned<PairMoments>(1);
    ASSERT_OK(MeasurePair(ctx(), Upload(f), Upload(m), n, moments));
    const PairMoments got = Download(moments, 1)[0];
    EXPECT_EQ(got.samples, expected.samples);
    EXPECT_NEAR(got.fixed, expected.fixed, 1e-9 * n);
    EXPECT_NEAR(got.fixed_squares, expected.fixed_squares, 1e-9 * n);
    EXPECT_NEAR(got.moving, expected.moving, 1e-9 * n);
    EXPECT_NEAR(got.moving_squares, expected.moving_squares, 1e-9 * n);
  }
}

TEST_P(DemonsStepTest, MomentsAreByWeights) {
  const int64_t n = 9000;
  std::vector<float> f = RandomFloats(n, 21, -3, 3), m = RandomFloats(n, 22, 2, 9);
  f[17] = kNone;
  const std::vector<uint8_t> of_fixed = RandomBytes(n, 23), of_moving = RandomBytes(n, 24);
  PairMoments expected;
  for (int64_t i = 0; i < n; ++i) {
    if (std::isnan(f[i])) continue;
    const double w = of_fixed[i] / 255.0 * of_moving[i] / 255.0;
    expected.weight += w;
    expected.fixed += w * f[i];
    expected.fixed_squares += w * f[i] * f[i];
    expected.moving += w * m[i];
    expected.moving_squares += w * m[i] * m[i];
  }
  PairMoments* moments = Poisoned<PairMoments>(1);
  ASSERT_OK(MeasurePair(ctx(), Upload(f), Upload(m), n, moments, {Upload(of_fixed), kWeightPerUnit},
                        {Upload(of_moving), kWeightPerUnit}));
  const PairMoments got = Download(moments, 1)[0];
  EXPECT_EQ(got.samples, n - 1);
  EXPECT_NEAR(got.weight, expected.weight, 1e-6 * n);
  EXPECT_NEAR(got.fixed, expected.fixed, 1e-6 * n);
  EXPECT_NEAR(got.fixed_squares, expected.fixed_squares, 1e-6 * n);
  EXPECT_NEAR(got.moving, expected.moving, 1e-5 * n);
  EXPECT_NEAR(got.moving_squares, expected.moving_squares, 1e-5 * n);
}

TEST(DemonsStateTest, StopsWhenTheValueIsFlat) {
  DemonsState s;
  s.max_iterations = 1000;
  s.tolerance = 0.01;
  int evaluations = 0;
  // Halves every four iterations, and then stays.
  while (!s.done && evaluations < 900) AdvanceDemons(10 * std::pow(0.5, std::min(evaluations++, 100) / 4), 10, &s);
  EXPECT_EQ(s.status, DemonsStatus::kConverged);
  EXPECT_EQ(s.iterations, 100 + kDemonsWindow);
  EXPECT_EQ(s.first_value, 1);
}

TEST(DemonsStateTest, MomentumGrowsUntilTheValueRises) {
  DemonsState s;
  s.most_momentum = 0.6f;
  const double values[] = {9, 8, 7, 6, 5, 5.5, 5, 4};
  const float expected[] = {1 / 4.0f, 2 / 5.0f, 3 / 6.0f, 4 / 7.0f, 0.6f, 0, 1 / 4.0f, 2 / 5.0f};
  for (int i = 0; i < 8; ++i) {
    AdvanceDemons(values[i], 1, &s);
    EXPECT_FLOAT_EQ(s.momentum, expected[i]) << i;
  }
  s = DemonsState();
  AdvanceDemons(1, 1, &s);
  EXPECT_EQ(s.momentum, 0);
}

TEST(DemonsStateTest, StopsForEachOtherReason) {
  DemonsState s;
  s.max_iterations = 3;
  for (int i = 0; i < 4; ++i) AdvanceDemons(10 - i, 1, &s);
  EXPECT_EQ(s.status, DemonsStatus::kIterationLimit);
  EXPECT_EQ(s.iterations, 3);
  EXPECT_EQ(s.value, 7);
  s = DemonsState();
  s.min_samples = 5;
  AdvanceDemons(1, 4, &s);
  EXPECT_EQ(s.status, DemonsStatus::kTooLittleOverlap);
  s = DemonsState();
  AdvanceDemons(INFINITY, 4, &s);
  EXPECT_EQ(s.status, DemonsStatus::kNotFinite);
  s = DemonsState();
  AdvanceDemons(0, 4, &s);
  EXPECT_EQ(s.status, DemonsStatus::kConverged);
}

}  // namespace
}  // namespace intrawarp
