// SPDX-License-Identifier: Apache-2.0
// The optimiser of affine and rigid registration: Gauss-Newton with an Armijo line search and the five stopping rules
// of Tramnitzke 2014 (section 2.1.7; affine.h has the title), as a state that one function carries from evaluation to
// evaluation.
//
// The state is a plain value. On the CPU it lies on the host; on CUDA it lies in device memory and the last block of
// the objective's kernel advances it, so that evaluations follow each other without the host. Both run the code below.
//
// The map W takes normalised fixed coordinates to moving indices (metric/affine_objective.h). Affine: all entries of W
// are free (in 2-D the six in the plane; of a slice in a volume the nine of columns 0, 1 and 3, since column 2 has no
// influence on the points of a plane). Rigid: W's linear part is turned, exp(omega) applied in LPS after it, and its
// translation moves; what scale and shear it starts with, it keeps.
#ifndef INTRAWARP_ENGINE_REGISTRATION_OPTIMISE_GAUSS_NEWTON_H_
#define INTRAWARP_ENGINE_REGISTRATION_OPTIMISE_GAUSS_NEWTON_H_

#include <cmath>

#include "absl/types/span.h"
#include "engine/base/host_device.h"
#include "engine/geometry/vec.h"
#include "engine/metric/affine_objective.h"
#include "engine/registration/optimise/affine_pull.h"

namespace intrawarp {

enum class GaussNewtonStatus : int {
  kRunning,
  kConverged,
  kIterationLimit,
  kNoProgress,
  // The rest: there is no value at the start. Too few samples; samples whose weights are all 0; a sum that overflows.
  kTooLittleOverlap,
  kNoWeight,
  kNotFinite,
};

// The constants of one level.
struct GaussNewtonProblem {
  bool rigid = false;
  // 2: W's row and column 2 stay as they are.
  int dimensions = 3;
  // The fixed image is one plane in three dimensions: an affine W keeps its column 2.
  bool is_slice = false;
  // Rigid: LPS mm to moving indices, and back (linear parts); LPS axes of rotation, of which 2-D uses the first alone,
  // and of translation, of which it uses two.
  double to_moving[3][3] = {};
  double from_moving[3][3] = {};
  double rotation_axis[3][3] = {};
  double translation_axis[3][3] = {};
  // A position with fewer samples is refused.
  double min_samples = 0;
  // The moving image's voxels weigh differently (ConstMaskView), so that weights change from place to place.
  bool has_moving_weights = false;
  int max_iterations = 50;
  // Stops 1 to 3. Values are about 1 at a bad start (SSD is in variances of the fixed image), steps and W are in
  // moving voxels at the faces of the fixed image.
  double value_tolerance = 2.5e-6;
  double step_tolerance = 1e-5;
  double gradient_tolerance = 2.5e-4;
  // Landmarks: their term is added to the mean of the metric.
  AffinePull pull;

  INTRAWARP_HD int parameters() const {
    return rigid ? (dimensions == 3 ? 6 : 3) : dimensions == 2 ? 6 : is_slice ? 9 : kAffineParameters;
  }
  // The entry of W that parameter `p` of an affine map is.
  INTRAWARP_HD int entry(int p) const {
    return dimensions == 3 && !is_slice ? p : p / 3 * 4 + (p % 3 == 2 ? 3 : p % 3);
  }
};

struct GaussNewtonState {
  GaussNewtonProblem problem;
  GaussNewtonStatus status = GaussNewtonStatus::kRunning;
  // Where the objective is evaluated next.
  AffineMap trial;
  // The last position that was accepted; valid once started.
  AffineMap current;
  bool started = false;
  int iterations = 0;
  int evaluations = 0;
  int halvings = 0;
  double first_value = 0;
  double value = 0;
  double samples = 0;
  // Directional derivative along `step`, and the part of it that `trial` tries.
  double slope = 0;
  double alpha = 1;
  // Where the last line had its minimum, by the secant through the derivatives at its ends; the next line starts there.
  double stretch = 1;
  double step[kAffineParameters] = {};
};

// Scratch of a step; on CUDA in shared memory.
struct GaussNewtonScratch {
  double basis[kAffineParameters][kAffineParameters];    // dW / d parameter: [entry of W][parameter]
  double product[kAffineParameters][kAffineParameters];  // H * basis
  double hessian[kAffineParameters][kAffineParameters];  // in the parameters; then its Cholesky factor
  double gradient[kAffineParameters];
  double right[kAffineParameters];
  bool solved;
};

// One lane: the host's way to run the cooperative functions below.
struct SingleLane {
  INTRAWARP_HD int rank() const { return 0; }
  INTRAWARP_HD int size() const { return 1; }
  INTRAWARP_HD void Sync() const {}
};

namespace gauss_newton_internal {

inline constexpr double kArmijo = 1e-4;
inline constexpr int kMaxHalvings = 6;
// A step may move the faces of the fixed image by at most this part of its extent in the moving image.
inline constexpr double kStepLimit = 0.5;
inline constexpr double kStop4 = 1e-7;
// A mean that rises by more than this part is not explained by samples that enter or leave the overlap.
inline constexpr double kOverlapSlack = 0.02;
inline constexpr double kMaxStretch = 4;

INTRAWARP_HD inline void Cross(const double* a, const double* b, double* c) {
  c[0] = a[1] * b[2] - a[2] * b[1];
  c[1] = a[2] * b[0] - a[0] * b[2];
  c[2] = a[0] * b[1] - a[1] * b[0];
}

// Column `p` of the basis at W.
INTRAWARP_HD inline void BasisColumn(const GaussNewtonProblem& problem, const AffineMap& w, int p,
                                     double (*basis)[kAffineParameters]) {
  for (int e = 0; e < kAffineParameters; ++e) basis[e][p] = 0;
  if (!problem.rigid) {
    basis[problem.entry(p)][p] = 1;
    return;
  }
  const int rotations = problem.dimensions == 3 ? 3 : 1;
  const int rows = problem.dimensions;
  if (p >= rotations) {
    const double* axis = problem.translation_axis[p - rotations];
    for (int r = 0; r < rows; ++r) {
      const double* m = problem.to_moving[r];
      basis[r * 4 + 3][p] = m[0] * axis[0] + m[1] * axis[1] + m[2] * axis[2];
    }
    return;
  }
  for (int c = 0; c < rows; ++c) {
    double column[3], turned[3];
    for (int r = 0; r < 3; ++r) {
      const double* m = problem.from_moving[r];
      column[r] = m[0] * w.m[0][c] + m[1] * w.m[1][c] + m[2] * w.m[2][c];
    }
    Cross(problem.rotation_axis[p], column, turned);
    for (int r = 0; r < rows; ++r) {
      const double* m = problem.to_moving[r];
      basis[r * 4 + c][p] = m[0] * turned[0] + m[1] * turned[1] + m[2] * turned[2];
    }
  }
}

// Rodrigues: the rotation by |omega| about omega.
INTRAWARP_HD inline void Rotate(const double* omega, const double* v, double* out) {
  const double angle2 = omega[0] * omega[0] + omega[1] * omega[1] + omega[2] * omega[2];
  const double angle = sqrt(angle2);
  const double a = angle > 1e-8 ? sin(angle) / angle : 1 - angle2 / 6;
  const double b = angle > 1e-4 ? (1 - cos(angle)) / angle2 : 0.5 - angle2 / 24;
  double cross1[3], cross2[3];
  Cross(omega, v, cross1);
  Cross(omega, cross1, cross2);
  for (int i = 0; i < 3; ++i) out[i] = v[i] + a * cross1[i] + b * cross2[i];
}

// W moved by scale * step.
INTRAWARP_HD inline AffineMap Retract(const GaussNewtonProblem& problem, const AffineMap& w, const double* step,
                                      double scale) {
  AffineMap moved = w;
  if (!problem.rigid) {
    for (int p = 0; p < problem.parameters(); ++p) {
      const int e = problem.entry(p);
      moved.m[e / 4][e % 4] += scale * step[p];
    }
    return moved;
  }
  const int rotations = problem.dimensions == 3 ? 3 : 1;
  double omega[3] = {0, 0, 0};
  for (int p = 0; p < rotations; ++p)
    for (int i = 0; i < 3; ++i) omega[i] += scale * step[p] * problem.rotation_axis[p][i];
  for (int c = 0; c < problem.dimensions; ++c) {
    double column[3], turned[3];
    for (int r = 0; r < 3; ++r) {
      const double* m = problem.from_moving[r];
      column[r] = m[0] * w.m[0][c] + m[1] * w.m[1][c] + m[2] * w.m[2][c];
    }
    Rotate(omega, column, turned);
    for (int r = 0; r < problem.dimensions; ++r) {
      const double* m = problem.to_moving[r];
      moved.m[r][c] = m[0] * turned[0] + m[1] * turned[1] + m[2] * turned[2];
    }
  }
  for (int p = 0; p < problem.dimensions; ++p) {
    const double* axis = problem.translation_axis[p];
    for (int r = 0; r < problem.dimensions; ++r) {
      const double* m = problem.to_moving[r];
      moved.m[r][3] += scale * step[rotations + p] * (m[0] * axis[0] + m[1] * axis[1] + m[2] * axis[2]);
    }
  }
  return moved;
}

INTRAWARP_HD inline double Distance(const AffineMap& a, const AffineMap& b) {
  double sum = 0;
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 4; ++c) sum += (a.m[r][c] - b.m[r][c]) * (a.m[r][c] - b.m[r][c]);
  return sqrt(sum);
}

INTRAWARP_HD inline double Norm(const AffineMap& a) {
  double sum = 0;
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 4; ++c) sum += a.m[r][c] * a.m[r][c];
  return sqrt(sum);
}

// Row `e` of the landmarks' Hessian times column `p` of the basis.
INTRAWARP_HD inline double PullProduct(const AffinePull& pull, int e, int p, const double (*basis)[kAffineParameters]) {
  double sum = 0;
  for (int k = 0; k < kAffineParameters; ++k) sum += pull.Hessian(e, k) * basis[k][p];
  return sum;
}

// The mean of the metric at W, with the term of landmarks.
INTRAWARP_HD inline double ValueAt(const GaussNewtonProblem& problem, const AffineMap& w, const NormalEquations& sums) {
  const double mean = sums.value / sums.weight;
  return problem.pull.is_active ? mean + problem.pull.Value(w) : mean;
}

// Gradient and Hessian of the mean, in the parameters, at W. All lanes call it.
template <typename Lanes>
INTRAWARP_HD void Reduce(const GaussNewtonProblem& problem, const AffineMap& w, const NormalEquations& sums,
                         GaussNewtonScratch& s, const Lanes& lanes) {
  const int n = problem.parameters();
  const double inverse = 1 / sums.weight;
  for (int p = lanes.rank(); p < n; p += lanes.size()) BasisColumn(problem, w, p, s.basis);
  lanes.Sync();
  for (int i = lanes.rank(); i < kAffineParameters * n; i += lanes.size()) {
    const int e = i / n, p = i % n;
    double sum = 0;
    for (int k = 0; k < kAffineParameters; ++k) {
      sum += sums.hessian[e <= k ? HessianEntry(e, k) : HessianEntry(k, e)] * s.basis[k][p];
    }
    s.product[e][p] = sum * inverse;
    if (problem.pull.is_active) s.product[e][p] += PullProduct(problem.pull, e, p, s.basis);
  }
  lanes.Sync();
  for (int i = lanes.rank(); i < n * n; i += lanes.size()) {
    const int p = i / n, q = i % n;
    double sum = 0;
    for (int e = 0; e < kAffineParameters; ++e) sum += s.basis[e][p] * s.product[e][q];
    s.hessian[p][q] = sum;
  }
  for (int p = lanes.rank(); p < n; p += lanes.size()) {
    double sum = 0;
    for (int e = 0; e < kAffineParameters; ++e) sum += s.basis[e][p] * sums.gradient[e];
    s.gradient[p] = sum * inverse;
    if (!problem.pull.is_active) continue;
    for (int e = 0; e < kAffineParameters; ++e) s.gradient[p] += s.basis[e][p] * problem.pull.Gradient(w, e);
  }
  lanes.Sync();
}

// Factors s.hessian + load * diag in place of its lower triangle (the upper keeps the matrix) and solves for -gradient
// into s.right. s.solved: whether every pivot was positive.
template <typename Lanes>
INTRAWARP_HD void SolveLoaded(int n, double load, GaussNewtonScratch& s, const Lanes& lanes) {
  double(*a)[kAffineParameters] = s.product;  // no longer needed
  double largest = 0;
  for (int i = 0; i < n; ++i) largest = fmax(largest, s.hessian[i][i]);
  for (int i = lanes.rank(); i < n * n; i += lanes.size()) {
    const int p = i / n, q = i % n;
    a[p][q] = s.hessian[p][q] + (p == q ? load * (s.hessian[p][p] + 1e-3 * largest) : 0);
  }
  for (int p = lanes.rank(); p < n; p += lanes.size()) s.right[p] = -s.gradient[p];
  if (lanes.rank() == 0) s.solved = largest > 0;
  lanes.Sync();
  for (int k = 0; k < n; ++k) {
    const double pivot = a[k][k];
    if (lanes.rank() == 0 && !(pivot > 1e-12 * s.hessian[k][k])) s.solved = false;
    lanes.Sync();
    if (!s.solved) return;
    const double root = sqrt(pivot), inverse = 1 / root;
    for (int i = k + 1 + lanes.rank(); i < n; i += lanes.size()) a[i][k] *= inverse;
    if (lanes.rank() == 0) a[k][k] = root;
    lanes.Sync();
    const int m = n - k - 1;
    for (int t = lanes.rank(); t < m * m; t += lanes.size()) {
      const int i = k + 1 + t / m, j = k + 1 + t % m;
      if (j <= i) a[i][j] -= a[i][k] * a[j][k];
    }
    lanes.Sync();
  }
  for (int k = 0; k < n; ++k) {
    const double y = s.right[k] / a[k][k];
    lanes.Sync();
    for (int i = k + 1 + lanes.rank(); i < n; i += lanes.size()) s.right[i] -= a[i][k] * y;
    if (lanes.rank() == 0) s.right[k] = y;
    lanes.Sync();
  }
  for (int k = n - 1; k >= 0; --k) {
    const double x = s.right[k] / a[k][k];
    lanes.Sync();
    for (int i = lanes.rank(); i < k; i += lanes.size()) s.right[i] -= a[k][i] * x;
    if (lanes.rank() == 0) s.right[k] = x;
    lanes.Sync();
  }
}

// The change of the objective from state.current to state.trial. Samples that enter or leave the overlap change the
// mean by more than a small step can gain. Unless the rise is large, the change is then judged by the directional
// derivative at both ends (trapezoid), to which such samples add little. The same holds for samples whose weights
// change.
INTRAWARP_HD inline double Change(const GaussNewtonState& state, double value, double samples, double end_slope) {
  const bool same = samples == state.samples && !state.problem.has_moving_weights;
  if (same || value > (1 + kOverlapSlack) * state.value) return value - state.value;
  return fmin(value - state.value, 0.5 * state.alpha * (state.slope + end_slope));
}

// The factor by which the last step was too short. On images that never match perfectly the Gauss-Newton matrix is too
// large or too small, and so consecutive steps are too short or too long in the same proportion.
INTRAWARP_HD inline double Stretch(const GaussNewtonState& state, double end_slope) {
  const double drop = state.slope - end_slope;
  const double minimum = drop < 0 ? state.alpha * state.slope / drop : kMaxStretch;
  return fmin(fmax(minimum, 1 / kMaxStretch), kMaxStretch);
}

INTRAWARP_HD inline double DirectionalDerivative(const GaussNewtonState& state, const double* gradient) {
  double slope = 0;
  for (int p = 0; p < state.problem.parameters(); ++p) slope += gradient[p] * state.step[p];
  return slope;
}

// Rules 1 to 4 after an accepted step (rule 5 is the limit of iterations); `moved` and `change` are those of the step
// just made.
INTRAWARP_HD inline bool HasConverged(const GaussNewtonState& state, double change, double moved,
                                      double gradient_norm) {
  const GaussNewtonProblem& p = state.problem;
  const double scale = 1 + fabs(state.first_value);
  const bool stop1 = fabs(change) <= p.value_tolerance * scale;
  const bool stop2 = moved <= p.step_tolerance * (1 + Norm(state.current));
  const bool stop3 = gradient_norm <= p.gradient_tolerance * scale;
  const bool stop4 = gradient_norm <= kStop4;
  return (stop1 && stop2 && stop3) || stop4;
}

// Why there is no value at the start.
INTRAWARP_HD inline GaussNewtonStatus WhyNotStarted(const GaussNewtonProblem& problem, const NormalEquations& sums) {
  if (sums.samples < problem.min_samples) return GaussNewtonStatus::kTooLittleOverlap;
  return sums.weight == 0 ? GaussNewtonStatus::kNoWeight : GaussNewtonStatus::kNotFinite;
}

// Sets the next trial along a fresh Gauss-Newton direction from s.gradient and s.hessian.
template <typename Lanes>
INTRAWARP_HD void StartStep(GaussNewtonState& state, GaussNewtonScratch& s, const Lanes& lanes) {
  const int n = state.problem.parameters();
  double load = 0;
  SolveLoaded(n, load, s, lanes);
  for (int attempt = 0; attempt < 6 && !s.solved; ++attempt) {
    load = attempt == 0 ? 1e-8 : load * 100;
    lanes.Sync();
    SolveLoaded(n, load, s, lanes);
  }
  if (lanes.rank() != 0) return;
  if (!s.solved) {
    state.status = GaussNewtonStatus::kNoProgress;
    return;
  }
  state.slope = 0;
  for (int p = 0; p < n; ++p) {
    state.step[p] = s.right[p];
    state.slope += s.gradient[p] * s.right[p];
  }
  state.halvings = 0;
  state.alpha = state.stretch;
  state.trial = Retract(state.problem, state.current, state.step, state.alpha);
  double extent = 0;
  for (int r = 0; r < state.problem.dimensions; ++r)
    for (int c = 0; c < 3; ++c) extent = fmax(extent, fabs(state.current.m[r][c]));
  const double moved = Distance(state.trial, state.current);
  if (moved > kStepLimit * extent) {
    state.alpha *= kStepLimit * extent / moved;
    state.trial = Retract(state.problem, state.current, state.step, state.alpha);
  }
}

}  // namespace gauss_newton_internal

// Takes the sums at state.trial; leaves the next trial, or a status other than kRunning. All lanes call it; state, sums
// and scratch are shared between them.
template <typename Lanes>
INTRAWARP_HD void AdvanceGaussNewton(GaussNewtonState& state, const NormalEquations& sums, GaussNewtonScratch& scratch,
                                     const Lanes& lanes) {
  using namespace gauss_newton_internal;
  const GaussNewtonProblem& problem = state.problem;
  const bool enough = sums.samples >= problem.min_samples && sums.weight > 0;
  const double value = enough ? ValueAt(problem, state.trial, sums) : 0;
  const bool started = state.started, usable = enough && value - value == 0;  // neither NaN nor infinite
  if (usable) Reduce(problem, state.trial, sums, scratch, lanes);
  const double end_slope = usable && started ? DirectionalDerivative(state, scratch.gradient) : 0;
  const double change = usable && started ? Change(state, value, sums.samples, end_slope) : 0;
  const bool accepted = usable && (!started || change <= kArmijo * state.alpha * state.slope);
  lanes.Sync();
  if (!accepted) {
    if (lanes.rank() == 0) {
      ++state.evaluations;
      if (!started) {
        state.status = WhyNotStarted(problem, sums);
      } else if (++state.halvings > kMaxHalvings) {
        // The line is flat to rounding when the step itself is below the tolerance.
        const double moved = Distance(Retract(problem, state.current, state.step, 1), state.current);
        const bool tiny = moved <= 10 * problem.step_tolerance * (1 + Norm(state.current));
        state.status = tiny ? GaussNewtonStatus::kConverged : GaussNewtonStatus::kNoProgress;
      } else {
        state.alpha *= 0.5;
        state.trial = Retract(problem, state.current, state.step, state.alpha);
      }
    }
    lanes.Sync();
    return;
  }
  if (lanes.rank() == 0) {
    const double moved = Distance(state.trial, state.current);
    double norm = 0;
    for (int p = 0; p < problem.parameters(); ++p) norm += scratch.gradient[p] * scratch.gradient[p];
    norm = sqrt(norm);
    ++state.evaluations;
    state.current = state.trial;
    state.value = value;
    state.samples = sums.samples;
    if (!started) {
      state.started = true;
      state.first_value = value;
      if (norm <= kStop4) state.status = GaussNewtonStatus::kConverged;
    } else {
      ++state.iterations;
      state.stretch = Stretch(state, end_slope);
      if (HasConverged(state, change, moved, norm)) state.status = GaussNewtonStatus::kConverged;
    }
    if (state.status == GaussNewtonStatus::kRunning && state.iterations >= problem.max_iterations) {
      state.status = GaussNewtonStatus::kIterationLimit;
    }
  }
  lanes.Sync();
  if (state.status != GaussNewtonStatus::kRunning) return;
  StartStep(state, scratch, lanes);
  lanes.Sync();
}

// For each of `states` (on the host), at most kMaxAffineMaps: up to `evaluations` evaluations of the objective from its
// trial on, each followed by AdvanceGaussNewton, until its status is no longer kRunning. No state depends on another.
// On CUDA all evaluations are enqueued together, and several states are evaluated side by side
// (EvaluateAffineObjectives). Waits for the stream.
absl::Status RunGaussNewton(const ExecContext& ctx, const AffineObjective& objective, int evaluations,
                            absl::Span<GaussNewtonState> states);

INTRAWARP_DECLARE_ON_DEVICES(absl::Status RunGaussNewton(const ExecContext& ctx, const AffineObjective& objective,
                                                         int evaluations, absl::Span<GaussNewtonState> states);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_OPTIMISE_GAUSS_NEWTON_H_
