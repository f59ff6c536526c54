// SPDX-License-Identifier: Apache-2.0
// The optimiser of registrations with many parameters: L-BFGS or nonlinear conjugate gradients with a backtracking line
// search, on vectors in device memory, as a state that one function carries from evaluation to evaluation.
//
// The caller evaluates value and gradient at `trial` and calls Descend, which accepts or refuses the trial and writes
// the next. The host is not needed in between: it may enqueue several rounds and look at the state once. Directions are
// linear combinations of a few basis vectors, with coefficients that follow from inner products alone (vector-free
// L-BFGS, Chen et al. 2014). An accepted step costs two passes over all vectors and one over two of them; a refused
// step costs the last pass alone.
//
// The step logic is one function for host and device (AdvanceDescent, descent_kernels.h); sums run in an order that
// depends on n alone.
#ifndef INTRAWARP_ENGINE_REGISTRATION_OPTIMISE_DESCENT_H_
#define INTRAWARP_ENGINE_REGISTRATION_OPTIMISE_DESCENT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/metric/ffd_objective.h"
#include "engine/registration/stage/stage.h"

namespace intrawarp {

// kConverged: the value is within the tolerance, the gradient is 0, or steps far below first_step find nothing better.
// kNoProgress: no trial along the steepest descent has a value. kTooLittleOverlap, kNotFinite: the start has no value.
enum class DescentStatus : int { kRunning, kConverged, kIterationLimit, kNoProgress, kTooLittleOverlap, kNotFinite };

// Pairs of steps and gradient changes that L-BFGS remembers.
inline constexpr int kDescentMemory = 6;

struct DescentProblem {
  DescentMethod method = DescentMethod::kLbfgs;
  int max_iterations = 150;
  // Converged when the value has fallen by less than this part of itself (or of a thousandth of the first value), over
  // the last kDescentWindow iterations together.
  double value_tolerance = 1e-4;
  // The first step along a direction of steepest descent, and the longest of any, for the component (of a control
  // point, in mm) that changes most.
  double first_step = 1;
  double max_step = 4;
  // A position with fewer samples is refused.
  double min_samples = 0;
};

inline constexpr int kDescentWindow = 5;

// The effect of a round on the vectors.
enum class DescentAction : int { kNothing, kRefuse, kAccept, kAcceptLast, kRestart };

// A plain value; on CUDA it lies in device memory. Its first member is what evaluations take as `skip`.
struct DescentState {
  // 0 while the descent runs. Evaluations and Descend do nothing afterwards.
  int done = 0;
  DescentStatus status = DescentStatus::kRunning;
  DescentProblem problem;
  int iterations = 0;
  int evaluations = 0;
  double first_value = 0;
  double value = 0;
  double samples = 0;

  // The rest belongs to descent_kernels.h. Trial = position + alpha * direction; slope: the derivative along the
  // direction; largest: the direction's largest component; last_move: the largest component of the last accepted step.
  DescentAction action = DescentAction::kNothing;
  double alpha = 0, slope = 0, largest = 0, last_move = 0;
  int halvings = 0;
  bool steepest = true;
  // Pairs in memory; the slot of the newest; whether the step just accepted became a pair.
  int stored = 0, newest = 0;
  bool keep = false;
  double history[kDescentWindow] = {};
  // Inner products of the basis: steps by slot, gradient changes by slot, gradient.
  double gram[2 * kDescentMemory + 1][2 * kDescentMemory + 1] = {};
  // The direction in terms of the basis and of the direction before.
  double coefficients[2 * kDescentMemory + 2] = {};
};

// The vectors of a descent, in device memory. Vectors are padded with zeros to a multiple of 64.
struct DescentVectors {
  int64_t n = 0, stride = 0;
  float *position = nullptr, *gradient = nullptr;                    // accepted
  float *trial = nullptr, *trial_gradient = nullptr;                 // evaluated
  float *direction = nullptr, *steps = nullptr, *changes = nullptr;  // steps, changes: kDescentMemory vectors each
  DescentState* state = nullptr;
  MetricValue* value = nullptr;
  double* penalty = nullptr;
  // Reductions on CUDA.
  double* partial = nullptr;
  float* partial_largest = nullptr;
  unsigned* ticket = nullptr;
};

// An optimisation of n float32, in memory taken from the context's arena.
class Descent {
 public:
  static int64_t Bytes(int64_t n);
  // `start` (device memory) is copied into trial() and position().
  static absl::StatusOr<Descent> Create(const ExecContext& ctx, const DescentProblem& problem, const float* start,
                                        int64_t n);

  // The position to evaluate next, and the places of its gradient, value and penalty (0 unless written). Device memory.
  const float* trial() const { return vectors_.trial; }
  float* gradient() const { return vectors_.trial_gradient; }
  MetricValue* value() const { return vectors_.value; }
  double* penalty() const { return vectors_.penalty; }
  const int* done() const { return &vectors_.state->done; }
  // The best position so far: the last that was accepted.
  const float* position() const { return vectors_.position; }

  // After an evaluation at trial(): total value = value()->metric + *penalty(). Stream-ordered.
  absl::Status Descend(const ExecContext& ctx) const;
  // Waits for the stream.
  absl::StatusOr<DescentState> State(const ExecContext& ctx) const;

 private:
  DescentVectors vectors_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_OPTIMISE_DESCENT_H_
