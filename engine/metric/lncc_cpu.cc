// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"
#include "engine/metric/lncc_kernels.h"
#include "engine/metric/lncc_plan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/metric/lncc_cpu.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "engine/metric/lncc-inl.h"
#include "hwy/highway.h"

#if HWY_ONCE
namespace intrawarp::cpu {
namespace {

HWY_EXPORT(MarchImages);
HWY_EXPORT(MarchCoefficients);

struct Means {
  double fixed = 0, moving = 0, samples = 0;
};

// Over the tile's rows and planes that kLnccRowStep and kLnccPlaneStep name.
Means TileMeans(const LnccPlan& plan, Int3 tile) {
  const Int3 n = plan.task.size, t{2 * plan.tiles.tile.x, 2 * plan.tiles.tile.y, 2 * plan.tiles.tile.z};
  Means sum;
  for (int z = tile.z * t.z; z < std::min(n.z, (tile.z + 1) * t.z); z += kLnccPlaneStep) {
    for (int y = tile.y * t.y; y < std::min(n.y, (tile.y + 1) * t.y); y += kLnccRowStep) {
      const float *f = plan.task.fixed + plan.VoxelRow(y, z), *m = plan.task.warped + plan.VoxelRow(y, z);
      for (int x = tile.x * t.x; x < std::min(n.x, (tile.x + 1) * t.x); ++x) {
        if (std::isnan(m[x])) continue;
        sum.fixed += f[x];
        sum.moving += m[x];
        ++sum.samples;
      }
    }
  }
  if (sum.samples > 0) sum = {sum.fixed / sum.samples, sum.moving / sum.samples, 1};
  return sum;
}

void MakeShifts(LnccPlan& plan) {
  const LnccTiles& t = plan.tiles;
  const auto tile_of = [&](int64_t i) {
    return Int3{static_cast<int>(i % t.count.x), static_cast<int>(i / t.count.x % t.count.y),
                static_cast<int>(i / t.count.x / t.count.y)};
  };
  const Means sum = OrderedReduce(
      t.total(), Means{},
      [&](int64_t i) {
        const Means means = TileMeans(plan, tile_of(i));
        plan.shifts[2 * i] = means.samples > 0 ? static_cast<float>(means.fixed) : std::nanf("");
        plan.shifts[2 * i + 1] = static_cast<float>(means.moving);
        return means;
      },
      [](Means& total, const Means& part) {
        total.fixed += part.fixed;
        total.moving += part.moving;
        total.samples += part.samples;
      });
  if (sum.samples > 0) {
    plan.fixed_mean = static_cast<float>(sum.fixed / sum.samples);
    plan.moving_mean = static_cast<float>(sum.moving / sum.samples);
  }
  for (int64_t i = 0; i < t.total(); ++i) {
    if (!std::isnan(plan.shifts[2 * i])) continue;
    plan.shifts[2 * i] = plan.fixed_mean;
    plan.shifts[2 * i + 1] = plan.moving_mean;
  }
}

double CountSamples(const LnccTask& task) {
  const int64_t plane = int64_t{task.size.x} * task.size.y;
  return OrderedReduce(
      task.size.z, 0.0,
      [&](int64_t z) {
        const float* m = task.warped + z * plane;
        return static_cast<double>(std::count_if(m, m + plane, [](float v) { return v == v; }));
      },
      [](double& total, double part) { total += part; });
}

}  // namespace

int64_t LnccWorkspaceBytes(Int3 size) {
  const Int3 boxes = LnccBoxes(size);
  return Arena::Rounded(2 * LnccPlan::Tiles(boxes).total() * sizeof(float)) +
         Arena::Rounded(Voxels(boxes) * sizeof(float)) + Arena::Rounded(3 * Voxels(boxes) * sizeof(float));
}

absl::Status EvaluateLncc(const ExecContext& ctx, const LnccTask& task, const int* skip, float* voxel_gradient,
                          MetricValue* value) {
  if (skip != nullptr && *skip != 0) return absl::OkStatus();
  ArenaScope scope(ctx.arena());
  LnccPlan plan(task);
  plan.voxel_gradient = voxel_gradient;
  INTRAWARP_ASSIGN_OR_RETURN(plan.shifts, ctx.arena().Allocate<float>(2 * plan.tiles.total()));
  INTRAWARP_ASSIGN_OR_RETURN(plan.counts, ctx.arena().Allocate<float>(Voxels(plan.size())));
  if (voxel_gradient != nullptr) {
    INTRAWARP_ASSIGN_OR_RETURN(plan.coefficients, ctx.arena().Allocate<float>(3 * Voxels(plan.size())));
  }
  MakeShifts(plan);
  const size_t floats = plan.ScratchFloats();
  const LnccSums sums = OrderedReduce(
      plan.columns(LnccPlan::kTileY), LnccSums{},
      [&](int64_t i) {
        LnccSums part;
        HWY_DYNAMIC_DISPATCH(MarchImages)(plan, i, ThreadScratch<float>(floats), &part);
        return part;
      },
      [](LnccSums& total, const LnccSums& part) {
        total.value += part.value;
        total.weight += part.weight;
      });
  *value = {sums.weight > 0 ? 1 - sums.value / sums.weight : std::numeric_limits<double>::quiet_NaN(),
            task.weights == nullptr ? sums.weight : CountSamples(task)};
  if (voxel_gradient == nullptr) return absl::OkStatus();
  plan.scale = sums.weight > 0 ? static_cast<float>(-1 / sums.weight) : 0;
  ParallelFor(plan.columns(LnccPlan::kCoefficientTileY), [&](int64_t i) {
    HWY_DYNAMIC_DISPATCH(MarchCoefficients)(plan, i, ThreadScratch<float>(floats));
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
#endif  // HWY_ONCE
