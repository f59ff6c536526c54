// SPDX-License-Identifier: Apache-2.0
// The demons force at a voxel, and the two versions of its operators. Internal.
#ifndef INTRAWARP_ENGINE_REGISTRATION_METHODS_DEMONS_STEP_KERNELS_H_
#define INTRAWARP_ENGINE_REGISTRATION_METHODS_DEMONS_STEP_KERNELS_H_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "engine/geometry/vec.h"
#include "engine/registration/methods/demons_step.h"

namespace intrawarp {

// The constants of the force: weights of both gradients and of N by axis (over the voxel's side), of D, 1 / (2
// max_step)^2 (noise) and n^2 (flat).
struct DemonsForceScales {
  Vec3f fixed, warped, step;
  float weight, noise, flat;

  explicit DemonsForceScales(const DemonsForceTask& task) {
    const float f = task.gradient == DemonsGradient::kSymmetric ? 0.5f
                    : task.gradient == DemonsGradient::kFixed   ? 1.0f
                                                                : 0.0f;
    for (int a = 0; a < 3; ++a) {
      fixed[a] = f / task.sides[a];
      warped[a] = (1 - f) / task.sides[a];
      step[a] = task.weight / task.sides[a];
    }
    weight = std::abs(task.weight);
    noise = 1 / (4 * task.max_step * task.max_step);
    flat = task.weak_gradient * task.weak_gradient;
  }
};

INTRAWARP_HD inline bool IsSample(float value) { return value == value; }

// The difference along an axis per voxel, over the neighbours that are samples; `low` and `high` are NaN when they are
// none.
INTRAWARP_HD inline float DemonsDifference(float low, float at, float high) {
  const bool has_low = IsSample(low), has_high = IsSample(high);
  return ((has_high ? high : at) - (has_low ? low : at)) * (has_low && has_high ? 0.5f : 1.0f);
}

INTRAWARP_HD inline float NeighbourOr(const float* p, ptrdiff_t offset, bool exists) {
  return exists ? p[offset] : NAN;
}

// An image at a voxel and at its neighbours along each axis, NaN where there is none.
struct DemonsNeighbours {
  float at;
  float low[3], high[3];
};

// N and D at a voxel, in index units and weighted.
struct DemonsPull {
  Vec3f numerator;
  float denominator = 0;
};

INTRAWARP_HD inline DemonsPull ForceOf(const DemonsNeighbours& f, const DemonsNeighbours& m,
                                       const DemonsForceScales& scales, float* square, int* sample) {
  *square = 0;
  *sample = 0;
  const float d = f.at - m.at;
  if (!IsSample(d)) return {};
  *square = d * d;
  *sample = 1;
  float of_fixed[3], of_warped[3], all = 0;
  for (int a = 0; a < 3; ++a) {
    of_fixed[a] = (f.high[a] - f.low[a]) * 0.5f;
    of_warped[a] = (m.high[a] - m.low[a]) * 0.5f;
    all += of_fixed[a] + of_warped[a];
  }
  // The sum is NaN when any neighbour is not a sample.
  if (!IsSample(all)) {
    for (int a = 0; a < 3; ++a) {
      of_fixed[a] = DemonsDifference(f.low[a], f.at, f.high[a]);
      of_warped[a] = DemonsDifference(m.low[a], m.at, m.high[a]);
    }
  }
  Vec3f g;
  for (int a = 0; a < 3; ++a) g[a] = scales.fixed[a] * of_fixed[a] + scales.warped[a] * of_warped[a];
  const float denominator = Dot(g, g) + (d * d * scales.noise + scales.flat);
  return {{d * g.x * scales.step.x, d * g.y * scales.step.y, d * g.z * scales.step.z}, scales.weight * denominator};
}

INTRAWARP_HD inline float WeightAt(const DemonsWeights& weights, int64_t voxel) {
  return weights.bytes == nullptr ? 1.0f : MaskWeight(weights.bytes[voxel], weights.per_unit);
}
INTRAWARP_HD inline float WeightAt(const DemonsForceTask& task, int64_t voxel) {
  return WeightAt(task.fixed_weights, voxel) * WeightAt(task.warped_weights, voxel);
}
INTRAWARP_HD inline DemonsPull operator*(float weight, const DemonsPull& pull) {
  return {weight * pull.numerator, weight * pull.denominator};
}

INTRAWARP_HD inline DemonsNeighbours NeighboursOf(const float* p, Int3 size, Int3 i) {
  const ptrdiff_t stride[3] = {1, size.x, static_cast<ptrdiff_t>(size.x) * size.y};
  DemonsNeighbours n;
  n.at = *p;
  for (int a = 0; a < 3; ++a) {
    n.low[a] = NeighbourOr(p, -stride[a], i[a] > 0);
    n.high[a] = NeighbourOr(p, stride[a], i[a] < size[a] - 1);
  }
  return n;
}

// The force at voxel i; f and m point at its values.
INTRAWARP_HD inline DemonsPull ForceVoxel(const float* f, const float* m, Int3 size, Int3 i,
                                          const DemonsForceScales& scales, float* square, int* sample) {
  *square = 0;
  *sample = 0;
  if (!IsSample(*f - *m)) return {};
  return ForceOf(NeighboursOf(f, size, i), NeighboursOf(m, size, i), scales, square, sample);
}

// The voxels along an axis of n whose centres lie in voxel i of a grid of `cells` over the same domain begin here;
// voxel i + 1's begin where they end.
INTRAWARP_HD inline int FirstInCell(int i, int cells, int n) {
  return static_cast<int>((2 * int64_t{n} * i + cells - 1) / (2 * int64_t{cells}));
}

// The voxels of an image in a voxel of a coarser grid over the same domain.
struct DemonsCell {
  Int3 first, last;
  // N and D of the cell from the sums over its voxels.
  Vec3f numerator;
  float denominator;

  INTRAWARP_HD DemonsCell(Int3 size, Int3 cells, Int3 i) {
    int voxels = 1;
    for (int a = 0; a < 3; ++a) {
      first[a] = FirstInCell(i[a], cells[a], size[a]);
      last[a] = FirstInCell(i[a] + 1, cells[a], size[a]);
      voxels *= last[a] - first[a];
    }
    denominator = 1.0f / static_cast<float>(voxels);
    for (int a = 0; a < 3; ++a) {
      numerator[a] = denominator * static_cast<float>(cells[a]) / static_cast<float>(size[a]);
    }
  }
  INTRAWARP_HD DemonsPull Mean(const DemonsPull& sum) const {
    DemonsPull mean;
    for (int a = 0; a < 3; ++a) mean.numerator[a] = numerator[a] * sum.numerator[a];
    mean.denominator = denominator * sum.denominator;
    return mean;
  }
};

// The number of voxels whose moments are summed together.
inline constexpr int64_t kMomentPiece = 8192;
inline int64_t MomentPieces(int64_t voxels) { return (voxels + kMomentPiece - 1) / kMomentPiece; }

// Two images on one grid.
struct DemonsPair {
  const float* fixed = nullptr;
  const float* moving = nullptr;
  DemonsWeights fixed_weights = {}, moving_weights = {};
};
INTRAWARP_HD inline void AddPair(const DemonsPair& pair, int64_t voxel, PairMoments* s) {
  const float fixed = pair.fixed[voxel], moving = pair.moving[voxel];
  if (!IsSample(fixed) || !IsSample(moving)) return;
  const double f = fixed, m = moving;
  const double w = WeightAt(pair.fixed_weights, voxel) * WeightAt(pair.moving_weights, voxel);
  s->samples += 1;
  s->weight += w;
  s->fixed += w * f;
  s->fixed_squares += w * f * f;
  s->moving += w * m;
  s->moving_squares += w * m * m;
}
INTRAWARP_HD inline void AddMoments(const PairMoments& from, PairMoments* to) {
  to->samples += from.samples;
  to->weight += from.weight;
  to->fixed += from.fixed;
  to->fixed_squares += from.fixed_squares;
  to->moving += from.moving;
  to->moving_squares += from.moving_squares;
}

namespace cpu {
absl::Status MeasurePair(const ExecContext& ctx, const DemonsPair& pair, int64_t voxels, PairMoments* partial,
                         PairMoments* moments);
// Writes row (y, z) of N and of D; returns the sums over its samples; the weights are summed only where there are any.
struct ForceRowSums {
  double squares;
  int64_t samples;
  double weight;
};
ForceRowSums ForceRow(const DemonsForceTask& task, const DemonsForceScales& scales, int y, int z, float* numerator,
                      float* denominator);
absl::Status PrepareDemonsImage(const ExecContext& ctx, const float* image, const uint8_t* mask, int64_t voxels,
                                float scale, float offset, float* out);
absl::Status DemonsForce(const ExecContext& ctx, const DemonsForceTask& task, float* force, DemonsState* state,
                         const int* skip);
}  // namespace cpu
namespace cuda {
absl::Status MeasurePair(const ExecContext& ctx, const DemonsPair& pair, int64_t voxels, PairMoments* partial,
                         PairMoments* moments);
absl::Status PrepareDemonsImage(const ExecContext& ctx, const float* image, const uint8_t* mask, int64_t voxels,
                                float scale, float offset, float* out);
absl::Status DemonsForce(const ExecContext& ctx, const DemonsForceTask& task, float* force, DemonsState* state,
                         const int* skip);
// The force in planes (vector_planes.h): first N, then D.
absl::Status DemonsForcePlanes(const ExecContext& ctx, const DemonsForceTask& task, float* force, DemonsState* state,
                               const int* skip);
int64_t MostDemonsForceBlocks(Int3 size);
}  // namespace cuda

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_METHODS_DEMONS_STEP_KERNELS_H_
