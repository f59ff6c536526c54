// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/methods/demons_iteration.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"
#include "engine/image/nearest_byte.h"
#include "engine/image/smooth.h"
#include "engine/registration/methods/demons_iteration_kernels.h"
#include "engine/transform/vector_field_kernels.h"

namespace intrawarp {
namespace {

// The variance of a Gaussian that is sampled at voxels and cut as SmoothVectorField does.
double SampledVariance(double sigma) {
  double sum = 1, variance = 0;
  for (int k = 1; k <= static_cast<int>(std::ceil(3 * sigma)); ++k) {
    const double weight = std::exp(-0.5 * k * k / (sigma * sigma));
    sum += 2 * weight;
    variance += 2 * weight * k * k;
  }
  return variance / sum;
}

// The sigma of a sampled Gaussian of this variance. From a voxel on they agree, but for what is cut off.
double SigmaOfSampled(double variance) {
  if (variance == 0 || variance >= 1) return std::sqrt(variance);
  double low = std::sqrt(variance), high = 1.5;
  for (int i = 0; i < 50; ++i) {
    const double middle = 0.5 * (low + high);
    (SampledVariance(middle) < variance ? low : high) = middle;
  }
  return high;
}

}  // namespace

Vec3d SigmaOnVelocity(const DemonsForceTask& force, double sigma) {
  Vec3d out;
  for (int a = 0; a < 3; ++a) {
    const double coarse = sigma * force.force_size[a] / force.size[a];
    out[a] = force.force_size[a] == force.size[a] ? sigma : SigmaOfSampled(coarse * coarse);
  }
  return out;
}

WarpTask MakeWarpTask(const DemonsSource& source, const float* displacement, Int3 size, float* out) {
  WarpTask task;
  task.moving = source.data;
  task.moving_size = source.size;
  task.index_map = source.from_fixed;
  task.displacement = displacement;
  task.displacement_map = source.from_fixed.Cast<float>();
  task.fill = std::numeric_limits<float>::quiet_NaN();
  task.out = out;
  task.out_size = size;
  return task;
}

absl::Status WarpSource(const ExecContext& ctx, const DemonsSource& source, const float* displacement, Int3 size,
                        float* out) {
  return INTRAWARP_DISPATCH(ctx, Warp, MakeWarpTask(source, displacement, size, out), Interpolation::kLinear);
}

absl::Status WarpWeights(const ExecContext& ctx, const DemonsSource& source, const float* displacement, Int3 size,
                         uint8_t* out) {
  if (source.weights.bytes == nullptr) return absl::OkStatus();
  return INTRAWARP_DISPATCH(ctx, WarpWeights, MakeWarpTask(source, displacement, size, nullptr), source.weights.bytes,
                            out);
}

DemonsSource FixedSource(const DemonsIteration& it) {
  return {it.fixed, it.force.size, AffineMap::Identity(), it.fixed_weights};
}

DemonsForceTask ForwardForce(const DemonsIteration& it) {
  DemonsForceTask task = it.force;
  task.weight = it.symmetric ? 0.5f : 1.0f;
  task.fixed = it.fixed;
  task.warped = it.warped;
  task.fixed_weights = it.fixed_weights;
  if (it.moving.weights.bytes != nullptr) task.warped_weights = {it.warped_weights, it.moving.weights.per_unit};
  return task;
}

DemonsForceTask BackwardForce(const DemonsIteration& it) {
  DemonsForceTask task = it.force;
  task.weight = -0.5f;
  task.fixed = it.moving_on_fixed;
  task.warped = it.warped;
  if (it.moving.weights.bytes != nullptr) task.fixed_weights = {it.weights_on_fixed, it.moving.weights.per_unit};
  if (it.fixed_weights.bytes != nullptr) task.warped_weights = {it.warped_weights, it.fixed_weights.per_unit};
  return task;
}

absl::Status BeginDemonsIterations(const ExecContext& ctx, Int3 size, DemonsFields* fields) {
  return INTRAWARP_DISPATCH(ctx, BeginDemonsIterations, size, fields);
}

absl::Status EndDemonsIterations(const ExecContext& ctx, Int3 size, DemonsFields* fields) {
  return INTRAWARP_DISPATCH(ctx, EndDemonsIterations, size, fields);
}

absl::Status IterateDemons(const ExecContext& ctx, const DemonsIteration& iteration, int max_squarings,
                           const DemonsFields& fields) {
  return INTRAWARP_DISPATCH(ctx, IterateDemons, iteration, max_squarings, fields);
}

namespace cpu {
namespace {

// A row of bytes: `u` is the displacement of its first voxel, or null.
void WarpWeightsRow(const WarpTask& task, const IndexRow& index, const float* u, const uint8_t* bytes, uint8_t* out) {
  for (int x = 0; x < task.out_size.x; ++x) {
    const Vec3f moved = u == nullptr ? Vec3f{0, 0, 0} : task.displacement_map.Linear(LoadVector(u + 3 * x));
    out[x] = NearestByte(bytes, task.moving_size, index(x) + moved);
  }
}

// WarpSource, and WarpWeights where the source has weights, by a displacement on a grid of `from` voxels, the fixed
// grid of `size` or a coarser one over its domain.
absl::Status WarpByField(const ExecContext& ctx, const DemonsSource& source, const float* displacement, Int3 from,
                         Int3 size, float* out, uint8_t* weights) {
  if (from == size) {
    INTRAWARP_RETURN_IF_ERROR(intrawarp::WarpWeights(ctx, source, displacement, size, weights));
    return WarpSource(ctx, source, displacement, size, out);
  }
  const GridScale scale = MakeGridScale(from, size);
  const WarpTask task = MakeWarpTask(source, nullptr, size, out);
  ParallelFor(int64_t{size.y} * size.z, [&](int64_t row) {
    const int y = static_cast<int>(row % size.y), z = static_cast<int>(row / size.y);
    float* const u = ThreadScratch<float>(3 * static_cast<size_t>(size.x));
    for (int x = 0; x < size.x; ++x) {
      StoreVector(scale.Vector(SampleVector(displacement, from, scale.Index({x, y, z}))), u + 3 * x);
    }
    const IndexRow index(task.index_map, y, z);
    WarpLinear(task, index, u, out + row * size.x);
    const uint8_t* const bytes = source.weights.bytes;
    if (bytes != nullptr) WarpWeightsRow(task, index, u, bytes, weights + row * size.x);
  });
  return absl::OkStatus();
}

absl::Status Force(const ExecContext& ctx, const DemonsIteration& it, const DemonsFields& fields) {
  const Int3 size = it.force.force_size, image = it.force.size;
  const int* done = &fields.state->done;
  const float* largest = &fields.state->largest;
  DemonsForceTask task = ForwardForce(it);
  const FieldLayout layout = FieldLayout::Interleaved();
  INTRAWARP_RETURN_IF_ERROR(intrawarp::FollowLandmarks(ctx, it.landmarks, fields.velocity, size, layout, fields.state));
  INTRAWARP_RETURN_IF_ERROR(
      intrawarp::ExponentiateVectorField(ctx, fields.velocity, size, 1, largest, kMaxSquarings, fields.work, done));
  INTRAWARP_RETURN_IF_ERROR(WarpByField(ctx, it.moving, fields.work, size, image, it.warped, it.warped_weights));
  INTRAWARP_RETURN_IF_ERROR(intrawarp::DemonsForce(ctx, task, fields.update, fields.state, done));
  INTRAWARP_RETURN_IF_ERROR(
      intrawarp::AddLandmarkForce(ctx, it.landmarks, task.weight, size, layout, fields.update, fields.state));
  if (!it.symmetric) return absl::OkStatus();
  task = BackwardForce(it);
  task.accumulate = true;
  INTRAWARP_RETURN_IF_ERROR(
      intrawarp::ExponentiateVectorField(ctx, fields.velocity, size, -1, largest, kMaxSquarings, fields.work, done));
  INTRAWARP_RETURN_IF_ERROR(WarpByField(ctx, FixedSource(it), fields.work, size, image, it.warped, it.warped_weights));
  INTRAWARP_RETURN_IF_ERROR(intrawarp::DemonsForce(ctx, task, fields.update, nullptr, done));
  return intrawarp::AddLandmarkForce(ctx, it.landmarks, task.weight, size, layout, fields.update, fields.state);
}

// The force's N and D smoothed in place, then N / D in the place of N. Nothing once *skip is not 0.
absl::Status SmoothForce(const ExecContext& ctx, Int3 size, const Vec3d& sigma, float* force, const int* skip) {
  if (*skip != 0) return absl::OkStatus();
  const int64_t rows = int64_t{size.y} * size.z, voxels = rows * size.x;
  float* const denominator = force + 3 * voxels;
  Geometry grid;
  grid.size = size;
  INTRAWARP_RETURN_IF_ERROR(SmoothVectorField(ctx, force, size, sigma, force));
  INTRAWARP_RETURN_IF_ERROR(SmoothGaussian(ctx, {denominator, grid}, sigma, {denominator, grid}));
  ParallelFor(rows, [&](int64_t row) {
    for (int64_t i = row * size.x; i < (row + 1) * size.x; ++i) {
      const float factor = QuotientFactor(denominator[i]);
      for (int c = 0; c < 3; ++c) force[3 * i + c] *= factor;
    }
  });
  return absl::OkStatus();
}

// Takes the velocity beyond `to`, in the direction from where the last iteration came to.
void GoOn(const float* to, Int3 size, const DemonsFields& fields) {
  const int64_t row = int64_t{3} * size.x;
  const float momentum = fields.state->momentum;
  fields.state->largest = OrderedReduce(
      int64_t{size.y} * size.z, 0.0f,
      [&](int64_t r) {
        float largest = 0;
        for (int64_t i = r * row; i < (r + 1) * row; ++i) {
          fields.velocity[i] = to[i] + momentum * (to[i] - fields.reached[i]);
          fields.reached[i] = to[i];
          largest = std::max(largest, std::abs(fields.velocity[i]));
        }
        return largest;
      },
      [](float& total, float part) { total = std::max(total, part); });
}

// The velocity updated by the smoothed force, in `work`.
absl::Status Update(const ExecContext& ctx, const DemonsIteration& it, const DemonsFields& fields) {
  const Int3 size = it.force.force_size;
  const int* done = &fields.state->done;
  switch (it.update) {
    case VelocityUpdate::kAdd:
      return SmoothVectorField(ctx, fields.update, size, {}, fields.work, fields.velocity, nullptr, done);
    case VelocityUpdate::kCompose:
      return intrawarp::ComposeVectorFields(ctx, fields.update, fields.velocity, size, fields.work, done);
    case VelocityUpdate::kBch:
      return intrawarp::BchUpdate(ctx, fields.velocity, fields.update, size, fields.work, done);
  }
  return absl::InternalError("no such update");
}

}  // namespace

absl::Status WarpWeights(const ExecContext&, const WarpTask& task, const uint8_t* bytes, uint8_t* out) {
  const Int3 n = task.out_size;
  ParallelFor(int64_t{n.y} * n.z, [&](int64_t row) {
    const IndexRow index(task.index_map, static_cast<int>(row % n.y), static_cast<int>(row / n.y));
    const float* const u = task.displacement == nullptr ? nullptr : task.displacement + 3 * row * n.x;
    WarpWeightsRow(task, index, u, bytes, out + row * n.x);
  });
  return absl::OkStatus();
}

absl::Status BeginDemonsIterations(const ExecContext&, Int3, DemonsFields*) { return absl::OkStatus(); }
absl::Status EndDemonsIterations(const ExecContext&, Int3, DemonsFields*) { return absl::OkStatus(); }

absl::Status IterateDemons(const ExecContext& ctx, const DemonsIteration& it, int /*max_squarings*/,
                           const DemonsFields& fields) {
  const Int3 size = it.force.force_size;
  const int* done = &fields.state->done;
  const Vec3d fluid = SigmaOnVelocity(it.force, it.fluid_sigma),
              diffusion = SigmaOnVelocity(it.force, it.diffusion_sigma);
  INTRAWARP_RETURN_IF_ERROR(Force(ctx, it, fields));
  INTRAWARP_RETURN_IF_ERROR(SmoothForce(ctx, size, fluid, fields.update, done));
  INTRAWARP_RETURN_IF_ERROR(Update(ctx, it, fields));
  if (fields.reached == nullptr) {
    return SmoothVectorField(ctx, fields.work, size, diffusion, fields.velocity, nullptr, &fields.state->largest, done);
  }
  INTRAWARP_RETURN_IF_ERROR(
      SmoothVectorField(ctx, fields.work, size, diffusion, fields.update, nullptr, nullptr, done));
  if (*done == 0) GoOn(fields.update, size, fields);
  return absl::OkStatus();
}

}  // namespace cpu
}  // namespace intrawarp
