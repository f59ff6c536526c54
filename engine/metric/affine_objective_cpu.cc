// SPDX-License-Identifier: Apache-2.0
#include <tbb/cache_aligned_allocator.h>

#include <cstdint>
#include <vector>

#include "engine/device/parallel.h"
#include "engine/metric/affine_objective.h"
#include "engine/metric/affine_plan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/metric/affine_objective_cpu.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "engine/metric/affine_ngf-inl.h"
#include "engine/metric/affine_ssd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

size_t SsdScratchFloats(const AffinePlan& plan) { return WarpedRowFloats(plan.size.x); }

void EvaluateSsd(const AffinePlan& plan, Range rows, float* scratch, NormalEquations* sums) {
  SsdRows ssd(plan, scratch);
  for (int row = rows.begin; row < rows.end; ++row) ssd.Add(row % plan.size.y, row / plan.size.y);
  ssd.Finish(sums);
}

size_t NgfScratchFloats(const AffinePlan& plan) {
  return NgfBrick::ScratchFloats(plan.size.x, NgfBlocks(plan.size.y).block);
}

void EvaluateNgf(const AffinePlan& plan, Range y, Range z, float* scratch, NormalEquations* sums) {
  NgfBrick(plan, y, z, scratch).Evaluate(sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace intrawarp::cpu {
namespace {

HWY_EXPORT(SsdScratchFloats);
HWY_EXPORT(EvaluateSsd);
HWY_EXPORT(NgfScratchFloats);
HWY_EXPORT(EvaluateNgf);

// This thread's, kept for the next piece: a few megabytes for the largest grids.
float* Scratch(size_t floats) {
  thread_local std::vector<float, tbb::cache_aligned_allocator<float>> scratch;
  if (scratch.size() < floats) scratch.resize(floats);
  return scratch.data();
}

void Add(NormalEquations& total, const NormalEquations& part) {
  total.value += part.value;
  total.weight += part.weight;
  total.samples += part.samples;
  for (int i = 0; i < kAffineParameters; ++i) total.gradient[i] += part.gradient[i];
  for (int i = 0; i < kAffineHessianEntries; ++i) total.hessian[i] += part.hessian[i];
}

NormalEquations Ssd(const AffinePlan& plan) {
  const AxisBlocks blocks = SsdBlocks(plan);
  const size_t floats = HWY_DYNAMIC_DISPATCH(SsdScratchFloats)(plan);
  return OrderedReduce(
      blocks.count(), NormalEquations{},
      [&](int64_t i) {
        NormalEquations part;
        HWY_DYNAMIC_DISPATCH(EvaluateSsd)(plan, blocks[static_cast<int>(i)], Scratch(floats), &part);
        return part;
      },
      Add);
}

NormalEquations Ngf(const AffinePlan& plan) {
  const AxisBlocks y = NgfBlocks(plan.size.y), z = NgfBlocks(plan.size.z);
  const size_t floats = HWY_DYNAMIC_DISPATCH(NgfScratchFloats)(plan);
  return OrderedReduce(
      int64_t{y.count()} * z.count(), NormalEquations{},
      [&](int64_t i) {
        const int brick = static_cast<int>(i);
        NormalEquations part;
        HWY_DYNAMIC_DISPATCH(EvaluateNgf)(plan, y[brick % y.count()], z[brick / y.count()], Scratch(floats), &part);
        return part;
      },
      Add);
}

}  // namespace

void EvaluateAffineObjective(const AffineObjective& objective, const AffineMap& w, NormalEquations* sums) {
  const AffinePlan plan(objective, w);
  *sums = objective.metric == MetricKind::kSsd ? Ssd(plan) : Ngf(plan);
}

}  // namespace intrawarp::cpu
#endif  // HWY_ONCE
