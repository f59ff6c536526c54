// SPDX-License-Identifier: Apache-2.0
// The optimiser of registrations with many parameters: L-BFGS or nonlinear conjugate gradients with a backtracking line
// search, on vectors in device memory, as a state that one function carries from evaluation to evaluation.
//
// An evaluation at `trial` (value and gradient by the caller) is followed by one Descend, which accepts or refuses the
// trial, and writes the next. The host is not needed in between: it may enqueue several rounds and look at the state
// once. The directions are linear combinations of few basis vectors whose coefficients follow from their inner products
// alone (vector-free L-BFGS, Chen et al. 2014), so a round is two passes over the vectors.
//
// The step logic is one function for host and device (AdvanceDescent); sums run in a fixed order.
#ifndef INTRAWARP_ENGINE_REGISTRATION_DESCENT_H_
#define INTRAWARP_ENGINE_REGISTRATION_DESCENT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/metric/ffd_objective.h"

namespace intrawarp {

enum class DescentMethod : int { kLbfgs, kConjugateGradient };

enum class DescentStatus : int { kRunning, kConverged, kIterationLimit, kNoProgress, kTooLittleOverlap, kNotFinite };

// Pairs of steps and gradient changes that L-BFGS remembers.
inline constexpr int kDescentMemory = 6;

struct DescentProblem {
  DescentMethod method = DescentMethod::kLbfgs;
  int max_iterations = 150;
  // Converged when the value has fallen by less than this part of itself, over the last kDescentWindow iterations
  // together.
  double value_tolerance = 1e-4;
  // The first step, and the longest of any, in mm for the control point that moves most.
  double first_step = 1;
  double max_step = 4;
  // Fewer samples than this, and a position is refused.
  double min_samples = 0;
};

inline constexpr int kDescentWindow = 5;

// A plain value; on CUDA it lies in device memory. Its first member is what evaluations take as `skip`.
struct DescentState {
  // 0 while it runs; evaluations and Descend do nothing once it is not.
  int done = 0;
  DescentStatus status = DescentStatus::kRunning;
  DescentProblem problem;
  int iterations = 0;
  int evaluations = 0;
  double first_value = 0;
  double value = 0;
  double samples = 0;
  // The rest belongs to descent.cc and its kernels.
  double alpha = 0, slope = 0;
  int halvings = 0, stored = 0, newest = 0, accepted = 0;
  double history[kDescentWindow] = {};
  double gram[2 * kDescentMemory + 1][2 * kDescentMemory + 1] = {};
  double coefficients[2 * kDescentMemory + 2] = {};
};

// Vectors of n float32 and the state, in memory taken from the context's arena.
class Descent {
 public:
  static int64_t Bytes(int64_t n);
  // `start` (device memory) is copied into trial().
  static absl::StatusOr<Descent> Create(const ExecContext& ctx, const DescentProblem& problem, const float* start,
                                        int64_t n);

  // Where the objective is evaluated next, and where its gradient, value and penalty go. Device memory.
  const float* trial() const;
  float* gradient() const;
  FfdValue* value() const;
  double* penalty() const;
  const int* done() const;
  // The best position so far: the last that was accepted.
  const float* position() const;

  // After an evaluation at trial(): total value = value()->metric + *penalty(). Stream-ordered.
  absl::Status Descend(const ExecContext& ctx) const;
  // Waits for the stream.
  absl::StatusOr<DescentState> State(const ExecContext& ctx) const;

 private:
  float* memory_ = nullptr;
  DescentState* state_ = nullptr;
  int64_t n_ = 0;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_DESCENT_H_
