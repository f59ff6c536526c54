// SPDX-License-Identifier: Apache-2.0
// The parts of a log-demons iteration that are not operators on vector fields: images made ready, the force, and the
// state that decides when to stop. Index units of the fixed level throughout.
//
// An image made ready has its intensities in the unit of the metric and NaN at every voxel that is not a sample
// (masked). A warped image has NaN where it has no source, and where it would interpolate over such a voxel.
//
// The force (Vercauteren et al. 2009, "Diffeomorphic demons", eq. 5, with the noise of a voxel estimated by the
// difference, sigma_i = |f - m|): with d = f - m and g the gradient, per mean voxel side,
//
//   N = d g,    D = |g|^2 + n^2 + d^2 / (2 max_step)^2,    u = (G * N) / (G * D),    |u| <= max_step
//
// G is the Gaussian of the fluid sigma. N and D are smoothed apart and divided then: u is the mean of the pulls N / D
// of a neighbourhood, each with its D as certainty (normalised convolution; Knutsson and Westin 1993). The mean of N /
// D without that gives the flat voxels beside an edge as much weight as the edge. Gradients below n pull the less the
// weaker they are.
// g is (grad f + grad m) / 2 for the efficient second-order (symmetric) step, with m the warped image, so that grad m
// needs no Jacobian; central differences, over the samples there are. N and D are 0 where there is no sample; u is 0
// where G * D is below kLeastDenominator (vector_field_kernels.h).
//
// Where masks have weights (ConstMaskView), N, D and the square of the difference are multiplied by the voxel's weight,
// the fixed image's times the warped one's: a voxel of little certainty follows its neighbourhood.
#ifndef INTRAWARP_ENGINE_REGISTRATION_METHODS_DEMONS_STEP_H_
#define INTRAWARP_ENGINE_REGISTRATION_METHODS_DEMONS_STEP_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"
#include "engine/registration/stage/stage.h"

namespace intrawarp {

// out = scale * image + offset; NaN where `mask` (on the image's grid, or without data) does not select.
// Stream-ordered.
absl::Status PrepareDemonsImage(const ExecContext& ctx, ConstVolumeView image, ConstMaskView mask, float scale,
                                float offset, float* out);

// The weights of an image's voxels as a mask has them, one byte each (MaskWeight). Without bytes all weigh 1.
struct DemonsWeights {
  const uint8_t* bytes = nullptr;
  float per_unit = 1;
};

// Sums over the voxels where both images are samples, for matching their intensities there: their number, and by the
// voxels' weights the rest.
struct PairMoments {
  double samples = 0;
  double weight = 0;
  double fixed = 0, fixed_squares = 0;
  double moving = 0, moving_squares = 0;
};
// Writes `moments` in device memory; the order of the sums depends on `voxels` alone. Stream-ordered. Workspace:
// PairMomentsWorkspaceBytes.
absl::Status MeasurePair(const ExecContext& ctx, const float* fixed, const float* moving, int64_t voxels,
                         PairMoments* moments, const DemonsWeights& fixed_weights = {},
                         const DemonsWeights& moving_weights = {});
size_t PairMomentsWorkspaceBytes(int64_t voxels);

// kConverged: the value fell by less than the tolerance over kDemonsWindow iterations.
enum class DemonsStatus : int { kRunning, kConverged, kIterationLimit, kTooLittleOverlap, kNotFinite };

inline constexpr int kDemonsWindow = 10;

// A plain value; on CUDA it lies in device memory. Operators take its first member as `skip`.
struct DemonsState {
  int done = 0;
  DemonsStatus status = DemonsStatus::kRunning;
  int max_iterations = 100;
  double tolerance = 1e-3;
  double min_samples = 1;
  // Updates of the velocity so far.
  int iterations = 0;
  // The mean squared difference before the first update and after the last.
  double first_value = 0;
  double value = 0;
  double samples = 0;
  // The term of landmarks (landmark_force.h) at the velocity, which is part of the values.
  double landmarks = 0;
  // The largest |component| of the velocity.
  float largest = 0;
  // The part of its last change by which the velocity goes on after an update (NextMomentum), and how large it may
  // become; and the evaluations since the value last rose.
  float momentum = 0;
  float most_momentum = 0;
  int falls = 0;
  double history[kDemonsWindow] = {};
};

// k / (k + 3) after k evaluations, from 0 again whenever the value has risen (O'Donoghue and Candes 2015, "Adaptive
// restart for accelerated gradient schemes", eq. 4 and section 3.2).
INTRAWARP_HD inline void NextMomentum(bool rose, DemonsState* s) {
  s->falls = rose ? 0 : s->falls + 1;
  const float next = static_cast<float>(s->falls) / static_cast<float>(s->falls + 3);
  s->momentum = next < s->most_momentum ? next : s->most_momentum;
}

// One evaluation: the sum of squared differences of `samples` voxels, by their weights, and the sum of these. Counts
// the update that follows unless it is done.
INTRAWARP_HD inline void AdvanceDemons(double sum, double weight, double samples, DemonsState* s) {
  const double value = sum / weight + s->landmarks;
  s->samples = samples;
  if (!(samples >= s->min_samples)) {
    s->status = DemonsStatus::kTooLittleOverlap;
  } else if (!(value - value == 0)) {
    s->status = DemonsStatus::kNotFinite;
  } else {
    if (s->iterations == 0) s->first_value = value;
    NextMomentum(s->iterations > 0 && value > s->value, s);
    s->value = value;
    double* const oldest = &s->history[s->iterations % kDemonsWindow];
    const bool flat = s->iterations >= kDemonsWindow && !(value < (1 - s->tolerance) * *oldest);
    *oldest = value;
    if (flat || value == 0) {
      s->status = DemonsStatus::kConverged;
    } else if (s->iterations >= s->max_iterations) {
      s->status = DemonsStatus::kIterationLimit;
    } else {
      ++s->iterations;
    }
  }
  s->done = s->status != DemonsStatus::kRunning;
}

// The same for voxels that weigh 1.
INTRAWARP_HD inline void AdvanceDemons(double sum, double samples, DemonsState* s) {
  AdvanceDemons(sum, samples, samples, s);
}

struct DemonsForceTask {
  const float* fixed = nullptr;   // made ready
  const float* warped = nullptr;  // on the same grid
  Int3 size;
  // The grid of N and D: the images', or a coarser one over the same domain, of which no voxel is smaller than theirs.
  // They are then means over the images' voxels whose centres lie in one of its voxels, and N is in its voxels.
  Int3 force_size;
  // Voxel sides over their geometric mean.
  Vec3f sides{1, 1, 1};
  DemonsGradient gradient = DemonsGradient::kSymmetric;
  float max_step = 2;
  // n, in intensities per mean voxel side.
  float weak_gradient = 0;
  // N and D are multiplied by the weight and its absolute value; with `accumulate` they are added to what is there.
  float weight = 1;
  bool accumulate = false;
  // The weights of the voxels of both images on this grid.
  DemonsWeights fixed_weights = {}, warped_weights = {};

  INTRAWARP_HD bool weighted() const { return fixed_weights.bytes != nullptr || warped_weights.bytes != nullptr; }
};

// Writes N, three float32 a voxel, and behind all of them D, one a voxel; advances `state` (device memory; null: none).
// Errors: INVALID_ARGUMENT, which names the field.
// Nothing happens once *skip is not 0. Stream-ordered; the order of the sums depends on the size alone. Workspace:
// DemonsForceWorkspaceBytes.
absl::Status DemonsForce(const ExecContext& ctx, const DemonsForceTask& task, float* force, DemonsState* state,
                         const int* skip = nullptr);
size_t DemonsForceWorkspaceBytes(Int3 size);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_METHODS_DEMONS_STEP_H_
