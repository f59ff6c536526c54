// SPDX-License-Identifier: Apache-2.0
// One iteration of log-demons at one level (log_demons.h): s = exp(v); the moving image at A(x + s(x)); the force u,
// smoothed (demons_step.h); v updated by u; v smoothed; with momentum v then goes on in the direction of its last
// change (Nesterov 1983; demons_step.h says by how much). On the CPU it is the operators of vector_field.h one after
// another; on CUDA the velocity lies in planes between BeginDemonsIterations and EndDemonsIterations, and operators are
// fused (vector_planes.h). No part waits for the host, so that an iteration can be recorded (device/recording.h).
#ifndef INTRAWARP_ENGINE_REGISTRATION_METHODS_DEMONS_ITERATION_H_
#define INTRAWARP_ENGINE_REGISTRATION_METHODS_DEMONS_ITERATION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/geometry.h"
#include "engine/registration/methods/demons_step.h"
#include "engine/registration/methods/landmark_force.h"
#include "engine/registration/stage/stage.h"

namespace intrawarp {

// An image made ready, sampled by index of the fixed grid.
struct DemonsSource {
  float* data = nullptr;
  Int3 size;
  AffineMap from_fixed = AffineMap::Identity();
  // The weights of its voxels.
  DemonsWeights weights = {};
};

// The sigmas, in voxels of the velocity's grid, that smooth a field there like one on the fixed grid by `sigma` of its
// voxels. Below a voxel a sampled Gaussian smooths less than its sigma says; the sigma is then the one whose samples
// have the wanted variance.
Vec3d SigmaOnVelocity(const DemonsForceTask& force, double sigma);

// out = the image at from_fixed(x + displacement(x)) (displacement null: 0), or NaN without a source. Stream-ordered.
absl::Status WarpSource(const ExecContext& ctx, const DemonsSource& source, const float* displacement, Int3 size,
                        float* out);
// out = the source's weight byte at the voxel nearest to there, or 0 without a source. Nothing where the source has no
// weights. Stream-ordered.
absl::Status WarpWeights(const ExecContext& ctx, const DemonsSource& source, const float* displacement, Int3 size,
                         uint8_t* out);

// The parameters of an iteration. Images are made ready (demons_step.h); all but `moving` are on the fixed grid.
struct DemonsIteration {
  // IterateDemons reads size, force_size, sides, gradient, max_step and weak_gradient. The velocity lies on the grid of
  // force_size: the fixed grid, or a coarser one over the same domain.
  DemonsForceTask force;
  float* fixed = nullptr;
  DemonsSource moving;
  bool symmetric = false;
  float* moving_on_fixed = nullptr;  // when symmetric
  float* warped = nullptr;           // scratch
  // Weights of the fixed image, and `moving_on_fixed`'s, which are there when symmetric and the moving image has some;
  // scratch, where one of the images has some.
  DemonsWeights fixed_weights = {};
  uint8_t* weights_on_fixed = nullptr;
  uint8_t* warped_weights = nullptr;
  double fluid_sigma = 3, diffusion_sigma = 2;  // in voxels of the fixed grid
  VelocityUpdate update = VelocityUpdate::kCompose;
  LandmarkForce landmarks = {};
  // On CUDA the fields within an exponential are held in float16; the velocity never is.
  bool half_fields = false;
};

// Device memory, three float32 a voxel of the velocity's grid each, but four of `update` and `spare`. `spare` is there
// only on CUDA. `reached` is there only with momentum: the velocity that the last iteration came to before it went on,
// at first the velocity itself, in its layout.
struct DemonsFields {
  float *velocity = nullptr, *update = nullptr, *work = nullptr, *spare = nullptr, *reached = nullptr;
  DemonsState* state = nullptr;
};

// Put the velocity, of `size`, into the layout of the iterations, and back. In between only IterateDemons may use
// `velocity`. Both may exchange the buffers of `fields`. Stream-ordered.
absl::Status BeginDemonsIterations(const ExecContext& ctx, Int3 size, DemonsFields* fields);
absl::Status EndDemonsIterations(const ExecContext& ctx, Int3 size, DemonsFields* fields);

// Runs one iteration and advances the state; state->largest, the velocity's largest component, is read and written.
// Nothing happens once state->done. On CUDA an exponential that needs more than `max_squarings` sets state->done and
// leaves everything else, status (kRunning) included, as it is: the caller clears it and continues with more.
// Stream-ordered.
absl::Status IterateDemons(const ExecContext& ctx, const DemonsIteration& iteration, int max_squarings,
                           const DemonsFields& fields);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_METHODS_DEMONS_ITERATION_H_
