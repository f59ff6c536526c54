// SPDX-License-Identifier: Apache-2.0
// The step logic of Descent, for host and device, and the two versions of its passes. Internal.
//
// A round has three passes. The first sums the inner products of the vectors that an accepted step adds to the basis,
// and calls AdvanceDescent. The second moves the vectors, sums the new direction, and calls FinishDirection with its
// largest component. The third writes the next trial.
#ifndef INTRAWARP_ENGINE_REGISTRATION_OPTIMISE_DESCENT_KERNELS_H_
#define INTRAWARP_ENGINE_REGISTRATION_OPTIMISE_DESCENT_KERNELS_H_

#include <cmath>

#include "engine/registration/optimise/descent.h"

namespace intrawarp {

// Pairs that stay when a new one comes.
inline constexpr int kDescentOlder = kDescentMemory - 1;
// The order of a round's inner products: the new step s, gradient change y and gradient g with each other, then each
// with the older pairs, newest first.
enum DescentDot : int { kDotSS, kDotSY, kDotSG, kDotYY, kDotYG, kDotGG, kDotOlder };
enum DescentOlderDot : int { kDotSStep, kDotSChange, kDotYStep, kDotYChange, kDotGStep, kDotGChange, kDotsPerOlder };
inline constexpr int kDescentDots = kDotOlder + kDescentOlder * kDotsPerOlder;

namespace descent_internal {

// The part of the decrease promised by the slope that Armijo's condition demands.
inline constexpr double kArmijo = 1e-4;
inline constexpr int kMaxHalvings = 12;
// A promised decrease below this part of the value is lost in rounding.
inline constexpr double kRounding = 1e-9;
// Steps below this part of the first one are as good as none.
inline constexpr double kTinyStep = 1e-3;
// Pairs are kept when the cosine between step and gradient change is above this.
inline constexpr double kCurvature = 1e-6;
inline constexpr double kFirstValuePart = 1e-3;
inline constexpr int kGradient = 2 * kDescentMemory;
inline constexpr int kOldDirection = kGradient + 1;

INTRAWARP_HD inline bool IsFinite(double x) { return x - x == 0; }

INTRAWARP_HD inline bool IsUsable(const DescentState& state, double value, double samples) {
  return IsFinite(value) && samples >= state.problem.min_samples;
}

INTRAWARP_HD inline int Slot(const DescentState& state, int age) {
  return (state.newest - age + kDescentMemory) % kDescentMemory;
}

INTRAWARP_HD inline void Stop(DescentState& state, DescentStatus status, DescentAction action) {
  state.status = status;
  state.action = action;
  state.done = 1;
}

INTRAWARP_HD inline void SetSteepest(DescentState& state) {
  state.stored = 0;
  state.steepest = true;
  for (double& c : state.coefficients) c = 0;
  state.coefficients[kGradient] = -1;
  state.slope = -state.gram[kGradient][kGradient];
}

INTRAWARP_HD inline void SetGram(DescentState& state, int i, int j, double value) {
  state.gram[i][j] = state.gram[j][i] = value;
}

// The products of basis vector `row` (s, y or g) with the older pairs; `first` is its kDotXStep, `ages` how much older
// the pairs are than at the time of the products.
INTRAWARP_HD inline void SetOlder(DescentState& state, int row, const double* dots, int first, int ages) {
  for (int j = 0; j + ages < state.stored && j < kDescentOlder; ++j) {
    const int slot = Slot(state, j + ages);
    const double* older = dots + kDotOlder + j * kDotsPerOlder;
    SetGram(state, row, slot, older[first]);
    SetGram(state, row, kDescentMemory + slot, older[first + 1]);
  }
}

// Takes the step just made into the memory, unless the curvature along it is not positive.
INTRAWARP_HD inline void Remember(DescentState& state, const double* dots) {
  state.keep = dots[kDotSY] > kCurvature * sqrt(dots[kDotSS] * dots[kDotYY]);
  if (!state.keep) {
    state.stored = state.stored < kDescentOlder ? state.stored : kDescentOlder;
    return;
  }
  state.newest = (state.newest + 1) % kDescentMemory;
  state.stored = state.stored < kDescentMemory ? state.stored + 1 : kDescentMemory;
  const int s = state.newest, y = kDescentMemory + state.newest;
  SetGram(state, s, s, dots[kDotSS]);
  SetGram(state, s, y, dots[kDotSY]);
  SetGram(state, y, y, dots[kDotYY]);
  SetGram(state, s, kGradient, dots[kDotSG]);
  SetGram(state, y, kGradient, dots[kDotYG]);
  SetOlder(state, s, dots, kDotSStep, 1);
  SetOlder(state, y, dots, kDotYStep, 1);
}

// The two loops of L-BFGS (Nocedal 1980) on the coefficients. The inner products of the combination with the basis are
// updated along, so that no product waits for another.
INTRAWARP_HD inline void SetLbfgs(DescentState& state) {
  double products[kGradient + 1], a[kDescentMemory], inverse[kDescentMemory];
  for (int i = 0; i <= kGradient; ++i) products[i] = -state.gram[kGradient][i];
  for (double& c : state.coefficients) c = 0;
  state.coefficients[kGradient] = -1;
  const auto add = [&](int vector, double factor) {
    state.coefficients[vector] += factor;
    for (int i = 0; i <= kGradient; ++i) products[i] += factor * state.gram[vector][i];
  };
  for (int age = 0; age < state.stored; ++age) {
    const int s = Slot(state, age);
    inverse[age] = 1 / state.gram[s][kDescentMemory + s];
  }
  for (int age = 0; age < state.stored; ++age) {
    const int s = Slot(state, age);
    a[age] = products[s] * inverse[age];
    add(kDescentMemory + s, -a[age]);
  }
  const int s = state.newest, y = kDescentMemory + s;
  const double scale = state.gram[s][y] / state.gram[y][y];
  for (double& c : state.coefficients) c *= scale;
  for (double& p : products) p *= scale;
  for (int age = state.stored - 1; age >= 0; --age) {
    const int slot = Slot(state, age);
    add(slot, a[age] - products[kDescentMemory + slot] * inverse[age]);
  }
  state.slope = products[kGradient];
  state.steepest = false;
}

// Polak-Ribiere; `old_gg` is the squared length of the gradient before.
INTRAWARP_HD inline void SetConjugate(DescentState& state, const double* dots, double old_gg) {
  const double beta = fmax(0.0, dots[kDotYG] / old_gg);
  SetSteepest(state);
  state.coefficients[kOldDirection] = beta;
  state.steepest = !(beta > 0);
  state.slope += beta * dots[kDotSG] / state.alpha;
}

INTRAWARP_HD inline void SetDirection(DescentState& state, const double* dots, double old_gg, bool first) {
  state.halvings = 0;
  state.keep = false;
  const bool lbfgs = state.problem.method == DescentMethod::kLbfgs;
  if (!first && lbfgs) Remember(state, dots);
  SetOlder(state, kGradient, dots, kDotGStep, state.keep ? 1 : 0);
  if (!first && lbfgs && state.stored > 0) {
    SetLbfgs(state);
  } else if (!first && !lbfgs) {
    SetConjugate(state, dots, old_gg);
  } else {
    SetSteepest(state);
  }
  // Also where it is not finite.
  if (!(state.slope < 0 && IsFinite(state.slope))) {
    state.keep = false;
    SetSteepest(state);
  }
}

INTRAWARP_HD inline bool HasConverged(DescentState& state) {
  double& oldest = state.history[state.iterations % kDescentWindow];
  const double fall = oldest - state.value;
  oldest = state.value;
  if (state.iterations < kDescentWindow) return false;
  return fall <= state.problem.value_tolerance * fmax(fabs(state.value), kFirstValuePart * fabs(state.first_value));
}

INTRAWARP_HD inline void Accept(DescentState& state, double value, double samples, const double* dots) {
  const bool first = state.evaluations == 1;
  const double old_gg = state.gram[kGradient][kGradient];
  state.value = value;
  state.samples = samples;
  state.gram[kGradient][kGradient] = dots[kDotGG];
  if (first) {
    state.first_value = value;
  } else {
    ++state.iterations;
    state.last_move = state.alpha * state.largest;
  }
  if (HasConverged(state) || dots[kDotGG] == 0)
    return Stop(state, DescentStatus::kConverged, DescentAction::kAcceptLast);
  if (state.iterations >= state.problem.max_iterations) {
    return Stop(state, DescentStatus::kIterationLimit, DescentAction::kAcceptLast);
  }
  SetDirection(state, dots, old_gg, first);
  state.action = DescentAction::kAccept;
}

INTRAWARP_HD inline void Refuse(DescentState& state, double value, double samples) {
  const bool usable = IsUsable(state, value, samples);
  if (state.evaluations == 1) {
    const bool overlap = samples >= state.problem.min_samples;
    return Stop(state, overlap ? DescentStatus::kNotFinite : DescentStatus::kTooLittleOverlap, DescentAction::kNothing);
  }
  const double promised = -state.slope * state.alpha;
  if (++state.halvings > kMaxHalvings || (usable && promised <= kRounding * fabs(state.value))) {
    if (!state.steepest) {
      SetSteepest(state);
      state.halvings = 0;
      state.action = DescentAction::kRestart;
      return;
    }
    const bool tiny = state.alpha * state.largest <= kTinyStep * state.problem.first_step;
    return Stop(state, usable && tiny ? DescentStatus::kConverged : DescentStatus::kNoProgress,
                DescentAction::kNothing);
  }
  // The minimum of the parabola through the value and slope at 0 and the value here.
  const double minimum = 0.5 * promised / (value - state.value + promised);
  state.alpha *= usable ? fmin(fmax(minimum, 0.1), 0.5) : 0.25;
  state.action = DescentAction::kRefuse;
}

}  // namespace descent_internal

// Whether the value at the trial allows it to be accepted (its gradient is yet to be looked at).
INTRAWARP_HD inline bool IsAcceptable(const DescentState& state, double value, double samples) {
  using namespace descent_internal;
  if (!IsUsable(state, value, samples)) return false;
  return state.evaluations == 0 || value <= state.value + kArmijo * state.alpha * state.slope;
}

// Takes the value at the trial and, when it is acceptable, the inner products `dots`. Sets state.action, which the next
// pass applies to the vectors.
INTRAWARP_HD inline void AdvanceDescent(DescentState& state, double value, double samples, const double* dots) {
  using namespace descent_internal;
  state.action = DescentAction::kNothing;
  if (state.done) return;
  const bool acceptable = IsAcceptable(state, value, samples);
  ++state.evaluations;
  if (acceptable && IsFinite(dots[kDotGG])) return Accept(state, value, samples, dots);
  // A gradient that is not finite makes the value as good as not finite.
  Refuse(state, acceptable ? HUGE_VAL : value, samples);
}

// Sets the step along a new direction with the given largest component.
INTRAWARP_HD inline void FinishDirection(DescentState& state, double largest) {
  using namespace descent_internal;
  const DescentProblem& p = state.problem;
  state.largest = largest;
  if (!(largest > 0 && IsFinite(largest))) {
    // The direction is below or above the range of float32.
    return Stop(state, largest == 0 ? DescentStatus::kConverged : DescentStatus::kNoProgress, state.action);
  }
  const double longest = p.max_step / largest;
  if (state.steepest) {
    state.alpha = fmin(p.first_step, p.max_step) / largest;
  } else if (p.method == DescentMethod::kConjugateGradient) {
    state.alpha = fmin(2 * state.last_move / largest, longest);
  } else {
    state.alpha = fmin(1.0, longest);
  }
}

// One round after an evaluation.
namespace cpu {
absl::Status Descend(const ExecContext& ctx, const DescentVectors& vectors);
}  // namespace cpu
namespace cuda {
absl::Status Descend(const ExecContext& ctx, const DescentVectors& vectors);
}  // namespace cuda

// Blocks of a reduction over n on CUDA. The number depends on n alone, and so does the order of the sums.
inline constexpr int kDescentThreads = 256;
inline constexpr int kMaxDescentBlocks = 256;
inline int DescentBlocks(int64_t n) {
  constexpr int64_t kPerBlock = 8 * kDescentThreads;
  const int64_t blocks = (n + kPerBlock - 1) / kPerBlock;
  return static_cast<int>(blocks < 1 ? 1 : blocks > kMaxDescentBlocks ? kMaxDescentBlocks : blocks);
}

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_OPTIMISE_DESCENT_KERNELS_H_
