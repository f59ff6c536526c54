// SPDX-License-Identifier: Apache-2.0
// The fields of an iteration: exponentials use `work` and `spare`; the force, a quotient, is made in `update` and
// smoothed between there and `spare`; the updated velocity is made in one of the three and smoothed into `velocity`.
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/registration/methods/demons_iteration_kernels.h"
#include "engine/registration/methods/demons_step_kernels.h"
#include "engine/transform/vector_planes.h"

namespace intrawarp::cuda {
namespace {

absl::Status WarpByVelocity(const ExecContext& ctx, const DemonsIteration& it, const DemonsSource& source, float factor,
                            int max_squarings, const DemonsFields& fields) {
  ExponentialWarpTask task;
  task.velocity = fields.velocity;
  task.size = it.force.force_size;
  task.factor = factor;
  task.largest = &fields.state->largest;
  task.max_squarings = max_squarings;
  task.too_few = &fields.state->done;
  task.work[0] = fields.work;
  task.work[1] = fields.spare;
  task.half = it.half_fields;
  task.warp = MakeWarpTask(source, nullptr, it.force.size, it.warped);
  task.warp_bytes = {source.weights.bytes, it.warped_weights};
  return ExponentialWarp(ctx, task, &fields.state->done);
}

absl::Status Force(const ExecContext& ctx, const DemonsIteration& it, int max_squarings, const DemonsFields& fields) {
  const int* done = &fields.state->done;
  DemonsForceTask task = ForwardForce(it);
  const Int3 size = it.force.force_size;
  const FieldLayout layout = FieldLayout::Planes(size);
  INTRAWARP_RETURN_IF_ERROR(intrawarp::FollowLandmarks(ctx, it.landmarks, fields.velocity, size, layout, fields.state));
  INTRAWARP_RETURN_IF_ERROR(WarpByVelocity(ctx, it, it.moving, 1, max_squarings, fields));
  INTRAWARP_RETURN_IF_ERROR(DemonsForcePlanes(ctx, task, fields.update, fields.state, done));
  INTRAWARP_RETURN_IF_ERROR(
      intrawarp::AddLandmarkForce(ctx, it.landmarks, task.weight, size, layout, fields.update, fields.state));
  if (!it.symmetric) return absl::OkStatus();
  task = BackwardForce(it);
  task.accumulate = true;
  INTRAWARP_RETURN_IF_ERROR(WarpByVelocity(ctx, it, FixedSource(it), -1, max_squarings, fields));
  INTRAWARP_RETURN_IF_ERROR(DemonsForcePlanes(ctx, task, fields.update, nullptr, done));
  return intrawarp::AddLandmarkForce(ctx, it.landmarks, task.weight, size, layout, fields.update, fields.state);
}

// Updates the velocity by the force without smoothing it; returns the buffer of the result.
absl::StatusOr<float*> Update(const ExecContext& ctx, const DemonsIteration& it, const DemonsFields& fields) {
  const Int3 size = it.force.force_size;
  const int* done = &fields.state->done;
  const Vec3d sigma = SigmaOnVelocity(it.force, it.fluid_sigma);
  INTRAWARP_ASSIGN_OR_RETURN(float* const force,
                             SmoothPlanesXY(ctx, fields.update, size, 4, sigma, fields.spare, nullptr, done));
  float* const free = force == fields.spare ? fields.update : fields.spare;
  const QuotientUse use = it.update == VelocityUpdate::kAdd       ? QuotientUse::kAdd
                          : it.update == VelocityUpdate::kCompose ? QuotientUse::kCompose
                                                                  : QuotientUse::kAlone;
  INTRAWARP_RETURN_IF_ERROR(SmoothQuotientZ(ctx, force, size, sigma.z, use, fields.velocity, free, fields.work, done));
  if (it.update != VelocityUpdate::kBch) return fields.work;
  INTRAWARP_RETURN_IF_ERROR(BchPlanes(ctx, fields.velocity, fields.work, size, free, done));
  return free;
}

}  // namespace

absl::Status BeginDemonsIterations(const ExecContext& ctx, Int3 size, DemonsFields* fields) {
  INTRAWARP_RETURN_IF_ERROR(ToPlanes(ctx, fields->velocity, size, fields->work));
  std::swap(fields->velocity, fields->work);
  return absl::OkStatus();
}

absl::Status EndDemonsIterations(const ExecContext& ctx, Int3 size, DemonsFields* fields) {
  INTRAWARP_RETURN_IF_ERROR(FromPlanes(ctx, fields->velocity, size, fields->work));
  std::swap(fields->velocity, fields->work);
  return absl::OkStatus();
}

absl::Status IterateDemons(const ExecContext& ctx, const DemonsIteration& it, int max_squarings,
                           const DemonsFields& fields) {
  const Int3 size = it.force.force_size;
  const int* done = &fields.state->done;
  float* const largest = &fields.state->largest;
  const Vec3d sigma = SigmaOnVelocity(it.force, it.diffusion_sigma);
  INTRAWARP_RETURN_IF_ERROR(Force(ctx, it, max_squarings, fields));
  INTRAWARP_ASSIGN_OR_RETURN(float* const updated, Update(ctx, it, fields));
  float* const free = updated == fields.spare ? fields.work : fields.spare;
  INTRAWARP_ASSIGN_OR_RETURN(float* const smooth, SmoothPlanesXY(ctx, updated, size, 3, sigma, free, largest, done));
  return SmoothPlanesZ(ctx, smooth, size, sigma.z, fields.velocity, largest, done,
                       {fields.reached, &fields.state->momentum});
}

}  // namespace intrawarp::cuda
