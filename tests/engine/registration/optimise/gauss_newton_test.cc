// SPDX-License-Identifier: Apache-2.0
// The optimiser on objectives whose minimum is known: quadratic forms of W, without images.
#include "engine/registration/optimise/gauss_newton.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace intrawarp {
namespace {

double& Entry(AffineMap& w, int e) { return w.m[e / 4][e % 4]; }

// 1/2 |M (W - target)|^2 over 1000 samples, M a random matrix with a good condition.
class Quadratic {
 public:
  Quadratic(const AffineMap& target, uint32_t seed) : target_(target) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal;
    double m[12][12];
    for (auto& row : m)
      for (double& v : row) v = 0.2 * normal(engine);
    for (int i = 0; i < 12; ++i) m[i][i] += 1.5;
    for (int i = 0; i < 12; ++i)
      for (int j = 0; j < 12; ++j) {
        h_[i][j] = 0;
        for (int k = 0; k < 12; ++k) h_[i][j] += m[k][i] * m[k][j];
      }
  }
  NormalEquations operator()(AffineMap w) const {
    NormalEquations sums;
    sums.samples = sums.weight = 1000;
    AffineMap target = target_;
    int entry = 0;
    for (int i = 0; i < 12; ++i) {
      for (int j = 0; j < 12; ++j) {
        const double di = Entry(w, i) - Entry(target, i), dj = Entry(w, j) - Entry(target, j);
        sums.value += 0.5 * sums.samples * di * h_[i][j] * dj;
        sums.gradient[i] += sums.samples * h_[i][j] * dj;
        if (j >= i) sums.hessian[entry++] = sums.samples * h_[i][j];
      }
    }
    return sums;
  }

 private:
  AffineMap target_;
  double h_[12][12];
};

template <typename Objective>
GaussNewtonState Minimise(const GaussNewtonProblem& problem, const AffineMap& start, const Objective& objective) {
  GaussNewtonState state;
  state.problem = problem;
  state.trial = state.current = start;
  GaussNewtonScratch scratch;
  for (int i = 0; i < 500 && state.status == GaussNewtonStatus::kRunning; ++i) {
    AdvanceGaussNewton(state, objective(state.trial), scratch, SingleLane());
  }
  return state;
}

AffineMap Scaled(double scale) {
  AffineMap w = AffineMap::Identity();
  for (int i = 0; i < 3; ++i) w.m[i][i] = scale;
  return w;
}

TEST(GaussNewtonTest, FindsTheMinimumOfAQuadraticInOneStep) {
  AffineMap target = Scaled(50);
  target.m[0][1] = 3;
  target.m[1][3] = 55;
  target.m[2][0] = -4;
  const GaussNewtonState state = Minimise({}, Scaled(48), Quadratic(target, 1));
  EXPECT_EQ(state.status, GaussNewtonStatus::kConverged);
  EXPECT_LE(state.iterations, 3);
  AffineMap found = state.current, wanted = target;
  for (int e = 0; e < 12; ++e) EXPECT_NEAR(Entry(found, e), Entry(wanted, e), 1e-6) << e;
}

TEST(GaussNewtonTest, In2dLeavesTheThirdRowAndColumnAlone) {
  GaussNewtonProblem problem;
  problem.dimensions = 2;
  AffineMap start = Scaled(48), target = Scaled(50);
  start.m[2][2] = 0.5;
  target.m[0][2] = 9;
  const GaussNewtonState state = Minimise(problem, start, Quadratic(target, 2));
  EXPECT_EQ(state.status, GaussNewtonStatus::kConverged);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(state.current.m[2][i], start.m[2][i]);
  EXPECT_EQ(state.current.m[0][2], 0);
  EXPECT_EQ(state.current.m[1][2], 0);
  EXPECT_NE(state.current.m[0][0], start.m[0][0]);
}

TEST(GaussNewtonTest, AffineMapOfASliceLeavesTheThirdColumnAlone) {
  GaussNewtonProblem problem;
  problem.is_slice = true;
  AffineMap start = Scaled(48), target = Scaled(50);
  target.m[2][1] = 7;
  target.m[2][3] = -3;
  for (int r = 0; r < 3; ++r) target.m[r][2] = start.m[r][2];
  // Nothing of the third column is known.
  const Quadratic quadratic(target, 6);
  const GaussNewtonState state = Minimise(problem, start, [&](const AffineMap& w) {
    NormalEquations sums = quadratic(w);
    for (int i = 0; i < 12; ++i) {
      if (i % 4 == 2) sums.gradient[i] = 0;
      for (int j = i; j < 12; ++j)
        if (i % 4 == 2 || j % 4 == 2) sums.hessian[HessianEntry(i, j)] = 0;
    }
    return sums;
  });
  EXPECT_EQ(problem.parameters(), 9);
  EXPECT_EQ(state.status, GaussNewtonStatus::kConverged);
  EXPECT_LE(state.iterations, 3);
  AffineMap found = state.current;
  for (int e = 0; e < 12; ++e) EXPECT_NEAR(Entry(found, e), Entry(target, e), 1e-6) << e;
  for (int r = 0; r < 3; ++r) EXPECT_EQ(found.m[r][2], start.m[r][2]);
}

TEST(GaussNewtonTest, RigidFindsARotationAndKeepsTheShape) {
  GaussNewtonProblem problem;
  problem.rigid = true;
  for (int i = 0; i < 3; ++i) {
    problem.to_moving[i][i] = 0.5 + 0.25 * i;
    problem.from_moving[i][i] = 1 / problem.to_moving[i][i];
    problem.rotation_axis[i][i] = problem.translation_axis[i][i] = 1;
  }
  const AffineMap start = Scaled(40);
  const double omega[3] = {0.2, -0.1, 0.15};
  AffineMap target = start;
  for (int c = 0; c < 3; ++c) {
    double column[3], turned[3];
    for (int r = 0; r < 3; ++r) column[r] = problem.from_moving[r][r] * start.m[r][c];
    gauss_newton_internal::Rotate(omega, column, turned);
    for (int r = 0; r < 3; ++r) target.m[r][c] = problem.to_moving[r][r] * turned[r];
  }
  target.m[1][3] = 6;
  const GaussNewtonState state = Minimise(problem, start, Quadratic(target, 3));
  EXPECT_EQ(state.status, GaussNewtonStatus::kConverged);
  AffineMap found = state.current;
  for (int e = 0; e < 12; ++e) EXPECT_NEAR(Entry(found, e), Entry(target, e), 1e-4) << e;
}

TEST(GaussNewtonTest, StepsBackUntilTheValueFallsEnough) {
  // A Hessian ten times too small makes every full step overshoot.
  AffineMap target = Scaled(50);
  const Quadratic quadratic(target, 4);
  const GaussNewtonState state = Minimise({}, Scaled(49), [&](const AffineMap& w) {
    NormalEquations sums = quadratic(w);
    for (double& h : sums.hessian) h /= 10;
    return sums;
  });
  EXPECT_GT(state.evaluations, state.iterations + 1);
  EXPECT_LT(state.value, 1e-3);
}

TEST(GaussNewtonTest, SaysWhyItStops) {
  const Quadratic quadratic(Scaled(50), 5);
  GaussNewtonProblem problem;
  problem.min_samples = 2000;
  EXPECT_EQ(Minimise(problem, Scaled(40), quadratic).status, GaussNewtonStatus::kTooLittleOverlap);
  problem = {};
  problem.max_iterations = 3;
  const auto slow = [&](const AffineMap& w) {
    NormalEquations sums = quadratic(w);
    for (double& h : sums.hessian) h *= 10;
    return sums;
  };
  const GaussNewtonState limited = Minimise(problem, Scaled(40), slow);
  EXPECT_EQ(limited.status, GaussNewtonStatus::kIterationLimit);
  EXPECT_EQ(limited.iterations, 3);
  const auto uphill = [&](const AffineMap& w) {
    NormalEquations sums = quadratic(w);
    for (double& g : sums.gradient) g = -g;
    return sums;
  };
  EXPECT_EQ(Minimise({}, Scaled(49), uphill).status, GaussNewtonStatus::kNoProgress);
  const auto flat = [&](const AffineMap&) {
    NormalEquations sums;
    sums.samples = sums.weight = 10;
    sums.value = 3;
    return sums;
  };
  EXPECT_EQ(Minimise({}, Scaled(49), flat).status, GaussNewtonStatus::kConverged);
}

TEST(GaussNewtonTest, GoesOnWhereTheHessianIsSingular) {
  // Only the translation along x matters: the other eleven parameters have neither gradient nor curvature.
  const auto objective = [](const AffineMap& w) {
    NormalEquations sums;
    sums.samples = sums.weight = 100;
    const double d = w.m[0][3] - 7;
    sums.value = 0.5 * d * d * sums.samples;
    sums.gradient[3] = d * sums.samples;
    sums.hessian[HessianEntry(3, 3)] = sums.samples;
    return sums;
  };
  const GaussNewtonState state = Minimise({}, Scaled(30), objective);
  EXPECT_EQ(state.status, GaussNewtonStatus::kConverged);
  EXPECT_NEAR(state.current.m[0][3], 7, 1e-3);
}

}  // namespace
}  // namespace intrawarp
