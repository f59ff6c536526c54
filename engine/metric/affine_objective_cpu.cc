// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "engine/device/parallel.h"
#include "engine/metric/affine_objective.h"
#include "engine/metric/affine_plan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/metric/affine_objective_cpu.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "engine/metric/ngf_affine-inl.h"
#include "engine/metric/ssd_affine-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

size_t ScratchFloats(const AffinePlan& plan) {
  return plan.objective.metric == MetricKind::kSsd
             ? WarpedRowFloats(plan.size.x)
             : AffineNgfBrick::ScratchFloats(plan.size.x, BrickBlocks(plan.size.y).block);
}

void EvaluateBrick(const AffinePlan& plan, Range y, Range z, float* scratch, NormalEquations* sums) {
  if (plan.objective.metric == MetricKind::kNgf) return AffineNgfBrick(plan, y, z, scratch).Evaluate(sums);
  SsdRows ssd(plan, scratch);
  for (int k = z.begin; k < z.end; ++k) {
    for (int j = y.begin; j < y.end; ++j) ssd.Add(j, k);
  }
  ssd.Finish(sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace intrawarp::cpu {
namespace {

HWY_EXPORT(ScratchFloats);
HWY_EXPORT(EvaluateBrick);

void Add(NormalEquations& total, const NormalEquations& part) {
  total.value += part.value;
  total.weight += part.weight;
  total.samples += part.samples;
  for (int i = 0; i < kAffineParameters; ++i) total.gradient[i] += part.gradient[i];
  for (int i = 0; i < kAffineHessianEntries; ++i) total.hessian[i] += part.hessian[i];
}

}  // namespace

absl::Status EvaluateAffineObjective(const ExecContext&, const AffineObjective& objective, const AffineMap& w,
                                     NormalEquations* sums) {
  const AffinePlan plan(objective, w);
  const AxisBlocks y = BrickBlocks(plan.size.y), z = BrickBlocks(plan.size.z);
  const size_t floats = HWY_DYNAMIC_DISPATCH(ScratchFloats)(plan);
  *sums = OrderedReduce(
      int64_t{y.count()} * z.count(), NormalEquations{},
      [&](int64_t i) {
        const int brick = static_cast<int>(i);
        NormalEquations part;
        HWY_DYNAMIC_DISPATCH(EvaluateBrick)
        (plan, y[brick % y.count()], z[brick / y.count()], ThreadScratch<float>(floats), &part);
        return part;
      },
      Add);
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
#endif  // HWY_ONCE
