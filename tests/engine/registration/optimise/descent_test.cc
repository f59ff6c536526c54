// SPDX-License-Identifier: Apache-2.0
// The optimiser on functions whose minimum is known, evaluated on the host in float64.
#include "engine/registration/optimise/descent.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Value and gradient.
using Function = std::function<double(const std::vector<double>& x, std::vector<double>* gradient)>;

// 1/2 sum of eigenvalue_i (x_i - i-th target)^2, eigenvalues from 1 to `condition`.
Function Bowl(double condition) {
  return [condition](const std::vector<double>& x, std::vector<double>* gradient) {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double eigenvalue = std::pow(condition, (i % 17) / 16.0), d = x[i] - std::sin(0.7 * i);
      sum += 0.5 * eigenvalue * d * d / x.size();
      (*gradient)[i] = eigenvalue * d / x.size();
    }
    return sum;
  };
}

double DistanceFromBowl(const std::vector<float>& x) {
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::abs(x[i] - std::sin(0.7 * i)));
  return largest;
}

// Chained (Moré 1981, extended): every pair of neighbours, minimum 0 at (1, ..., 1).
double Rosenbrock(const std::vector<double>& x, std::vector<double>* gradient) {
  std::fill(gradient->begin(), gradient->end(), 0);
  double sum = 0;
  for (size_t i = 0; i + 1 < x.size(); i += 2) {
    const double a = 1 - x[i], b = x[i + 1] - x[i] * x[i];
    sum += a * a + 100 * b * b;
    (*gradient)[i] = -2 * a - 400 * x[i] * b;
    (*gradient)[i + 1] = 200 * b;
  }
  return sum;
}

struct Minimum {
  DescentState state;
  std::vector<float> position;
  // The largest component of each accepted step.
  std::vector<double> moves;
};

class DescentTest : public DeviceTest {
 protected:
  void Evaluate(const Descent& descent, const Function& function, int64_t n, double samples) {
    const std::vector<float> trial = Download(descent.trial(), n);
    std::vector<double> gradient(n);
    const MetricValue value{function({trial.begin(), trial.end()}, &gradient), samples};
    const std::vector<float> rounded(gradient.begin(), gradient.end());
    EXPECT_OK(device().Copy(descent.gradient(), rounded.data(), n * sizeof(float), ctx().stream()));
    EXPECT_OK(device().Copy(descent.value(), &value, sizeof(value), ctx().stream()));
    EXPECT_OK(device().Synchronize(ctx().stream()));
  }

  Minimum Minimise(const DescentProblem& problem, const std::vector<float>& start, const Function& function,
                   int rounds = 2000) {
    const int64_t n = static_cast<int64_t>(start.size());
    Minimum run;
    OwnedContext owned = *OwnedContext::Create(device(), Descent::Bytes(n));
    const Descent descent = *Descent::Create(owned.context(), problem, Upload(start), n);
    // Evaluate works in the fixture's stream.
    EXPECT_OK(device().Synchronize(owned.context().stream()));
    run.position = start;
    for (int i = 0; i < rounds; ++i) {
      Evaluate(descent, function, n, 100);
      EXPECT_OK(descent.Descend(owned.context()));
      run.state = *descent.State(owned.context());
      const std::vector<float> position = Download(descent.position(), n);
      double move = 0;
      for (int64_t k = 0; k < n; ++k) move = std::max<double>(move, std::abs(position[k] - run.position[k]));
      if (move > 0) run.moves.push_back(move);
      run.position = position;
      if (run.state.done) break;
    }
    return run;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(DescentTest);

TEST_P(DescentTest, FindsTheMinimumOfIllConditionedBowls) {
  for (DescentMethod method : {DescentMethod::kLbfgs, DescentMethod::kConjugateGradient}) {
    for (int64_t n : {1, 3, 7, 64, 1025, 20011}) {
      DescentProblem problem{method, 1000, 1e-9};
      const Minimum run = Minimise(problem, RandomFloats(n, 5, -3, 3), Bowl(1e3));
      EXPECT_EQ(run.state.status, DescentStatus::kConverged) << n;
      EXPECT_LT(DistanceFromBowl(run.position), 2e-2) << n;
      EXPECT_LT(run.state.value, 1e-6 * run.state.first_value) << n;
      EXPECT_EQ(run.moves.size(), run.state.iterations) << n;
    }
  }
}

TEST_P(DescentTest, LbfgsTakesFewerIterationsThanConjugateGradients) {
  const std::vector<float> start = RandomFloats(3000, 6, -3, 3);
  const Minimum lbfgs = Minimise({DescentMethod::kLbfgs, 1000, 1e-6}, start, Bowl(1e3));
  const Minimum cg = Minimise({DescentMethod::kConjugateGradient, 1000, 1e-6}, start, Bowl(1e3));
  EXPECT_LT(lbfgs.state.evaluations, cg.state.evaluations);
  EXPECT_LT(lbfgs.state.iterations, 150);
}

TEST_P(DescentTest, FindsTheMinimumOfRosenbrock) {
  for (DescentMethod method : {DescentMethod::kLbfgs, DescentMethod::kConjugateGradient}) {
    DescentProblem problem{method, 5000, 1e-6};
    problem.first_step = 0.1;
    problem.max_step = 0.5;
    std::vector<float> start = RandomFloats(200, 3, -0.3f, 0.3f);
    for (size_t i = 0; i < start.size(); i += 2) start[i] -= 1.2f, start[i + 1] += 1;
    const Minimum run = Minimise(problem, start, Rosenbrock, 5000);
    EXPECT_LT(run.state.value, 1e-3 * run.state.first_value) << run.state.iterations;
    if (method == DescentMethod::kLbfgs) {
      for (float x : run.position) EXPECT_NEAR(x, 1, 0.05);
    }
    for (double move : run.moves) EXPECT_LE(move, 0.5001);
  }
}

TEST_P(DescentTest, StepsRoundWhatHasNoValue) {
  const auto hole = [](const std::vector<double>& x, std::vector<double>* gradient) {
    const double value = Bowl(10)(x, gradient);
    return x[1] > 1.5 ? kNan : value;
  };
  // The first step leads from below 0 to beyond 1.5, where there is no value.
  DescentProblem problem{DescentMethod::kLbfgs, 200, 1e-10};
  problem.first_step = problem.max_step = 50;
  const Minimum run = Minimise(problem, std::vector<float>(9, -2), hole);
  EXPECT_EQ(run.state.status, DescentStatus::kConverged);
  EXPECT_LT(DistanceFromBowl(run.position), 1e-2);
  EXPECT_GT(run.state.evaluations, run.state.iterations + 1);
}

TEST_P(DescentTest, GivesUpWhereNothingHasAValue) {
  bool first = true;
  const auto cliff = [&](const std::vector<double>& x, std::vector<double>* gradient) {
    const double value = Bowl(10)(x, gradient);
    return std::exchange(first, false) ? value : kNan;
  };
  const std::vector<float> start(9, -2);
  const Minimum run = Minimise({}, start, cliff);
  EXPECT_EQ(run.state.status, DescentStatus::kNoProgress);
  EXPECT_EQ(run.position, start);
  EXPECT_EQ(run.state.iterations, 0);
}

TEST_P(DescentTest, RefusesGradientsThatAreNotFinite) {
  int calls = 0;
  const auto broken = [&](const std::vector<double>& x, std::vector<double>* gradient) {
    const double value = Bowl(10)(x, gradient);
    if (++calls == 3) (*gradient)[4] = kNan;
    return value;
  };
  const Minimum run = Minimise({DescentMethod::kLbfgs, 200, 1e-10}, std::vector<float>(9, -2), broken);
  EXPECT_EQ(run.state.status, DescentStatus::kConverged);
  EXPECT_LT(DistanceFromBowl(run.position), 1e-2);
}

TEST_P(DescentTest, StopsAtTheIterationLimit) {
  for (DescentMethod method : {DescentMethod::kLbfgs, DescentMethod::kConjugateGradient}) {
    const Minimum run = Minimise({method, 7, 1e-12}, RandomFloats(501, 5, -3, 3), Bowl(1e4));
    EXPECT_EQ(run.state.status, DescentStatus::kIterationLimit);
    EXPECT_EQ(run.state.iterations, 7);
    EXPECT_EQ(run.moves.size(), 7u);
    std::vector<double> gradient(501);
    const double at_position = Bowl(1e4)({run.position.begin(), run.position.end()}, &gradient);
    EXPECT_EQ(run.state.value, at_position);
    EXPECT_LT(run.state.value, run.state.first_value);
  }
}

TEST_P(DescentTest, SaysWhyThereIsNoStart) {
  const auto nothing = [](const std::vector<double>&, std::vector<double>*) { return kNan; };
  EXPECT_EQ(Minimise({}, {1, 2, 3}, nothing).state.status, DescentStatus::kNotFinite);
  DescentProblem problem;
  problem.min_samples = 101;
  EXPECT_EQ(Minimise(problem, {1, 2, 3}, Bowl(1)).state.status, DescentStatus::kTooLittleOverlap);
}

TEST_P(DescentTest, AStartAtTheMinimumConverges) {
  const auto flat = [](const std::vector<double>& x, std::vector<double>* gradient) {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += (*gradient)[i] = 2 * x[i], sum += x[i] * x[i] - 2 * x[i];
    return sum;
  };
  const Minimum run = Minimise({}, std::vector<float>(5, 0), flat);
  EXPECT_EQ(run.state.status, DescentStatus::kConverged);
  EXPECT_EQ(run.state.evaluations, 1);
  // A gradient that leads nowhere, as rounding leaves it at a minimum.
  const auto noise = [](const std::vector<double>& x, std::vector<double>* gradient) {
    double sum = 1;
    for (size_t i = 0; i < x.size(); ++i) (*gradient)[i] = 1e-6, sum += std::abs(x[i]);
    return sum;
  };
  const Minimum stuck = Minimise({}, std::vector<float>(5, 0), noise);
  EXPECT_EQ(stuck.state.status, DescentStatus::kConverged);
  EXPECT_EQ(stuck.position, std::vector<float>(5, 0));
}

TEST_P(DescentTest, RoundsAfterTheEndDoNothing) {
  const int64_t n = 333;
  const Descent descent =
      *Descent::Create(ctx(), {DescentMethod::kLbfgs, 3, 1e-12}, Upload(RandomFloats(n, 5, -3, 3)), n);
  DescentState state;
  while (!state.done) {
    Evaluate(descent, Bowl(100), n, 100);
    ASSERT_OK(descent.Descend(ctx()));
    state = *descent.State(ctx());
  }
  const std::vector<float> position = Download(descent.position(), n);
  for (int i = 0; i < 3; ++i) {
    Evaluate(descent, Bowl(10), n, 100);
    ASSERT_OK(descent.Descend(ctx()));
  }
  const DescentState later = *descent.State(ctx());
  EXPECT_EQ(later.evaluations, state.evaluations);
  EXPECT_EQ(later.value, state.value);
  EXPECT_EQ(later.status, DescentStatus::kIterationLimit);
  EXPECT_EQ(Download(descent.position(), n), position);
}

TEST_P(DescentTest, PenaltyCounts) {
  const std::vector<float> start(4, 2);
  const Descent descent = *Descent::Create(ctx(), {}, Upload(start), 4);
  const double penalty = 0.25;
  ASSERT_OK(device().Copy(descent.penalty(), &penalty, sizeof(penalty), ctx().stream()));
  Evaluate(descent, Bowl(1), 4, 100);
  ASSERT_OK(descent.Descend(ctx()));
  std::vector<double> gradient(4);
  EXPECT_EQ(descent.State(ctx())->value, Bowl(1)({2, 2, 2, 2}, &gradient) + penalty);
}

TEST_P(DescentTest, BitIdentical) {
  for (DescentMethod method : {DescentMethod::kLbfgs, DescentMethod::kConjugateGradient}) {
    const std::vector<float> start = RandomFloats(300007, 8, -3, 3);
    const Minimum first = Minimise({method, 10, 1e-12}, start, Bowl(1e3));
    const Minimum second = Minimise({method, 10, 1e-12}, start, Bowl(1e3));
    EXPECT_EQ(first.position, second.position);
    EXPECT_EQ(std::memcmp(&first.state.gram, &second.state.gram, sizeof(first.state.gram)), 0);
  }
}

TEST_P(DescentTest, AgreesWithTheCpu) {
  if (GetParam() == "cpu") GTEST_SKIP() << "compares another device with the CPU";
  for (DescentMethod method : {DescentMethod::kLbfgs, DescentMethod::kConjugateGradient}) {
    const int64_t n = 300007;
    const std::vector<float> start = RandomFloats(n, 8, -3, 3);
    const DescentProblem problem{method, 12, 1e-12};
    const Minimum here = Minimise(problem, start, Bowl(1e2));
    OwnedContext cpu = *OwnedContext::Create(TestDevice("cpu"), Descent::Bytes(n));
    const Descent descent = *Descent::Create(cpu.context(), problem, start.data(), n);
    DescentState state;
    while (!state.done) {
      std::vector<double> gradient(n);
      *descent.value() = {Bowl(1e2)({descent.trial(), descent.trial() + n}, &gradient), 100};
      std::copy(gradient.begin(), gradient.end(), descent.gradient());
      ASSERT_OK(descent.Descend(cpu.context()));
      state = *descent.State(cpu.context());
    }
    EXPECT_EQ(here.state.evaluations, state.evaluations);
    EXPECT_NEAR(here.state.value, state.value, 1e-4 * state.first_value);
    double apart = 0;
    for (int64_t i = 0; i < n; ++i) apart = std::max<double>(apart, std::abs(here.position[i] - descent.position()[i]));
    EXPECT_LT(apart, 1e-2);
  }
}

}  // namespace
}  // namespace intrawarp
