// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>

#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"
#include "engine/metric/affine_objective.h"
#include "engine/metric/affine_plan.h"
#include "engine/metric/affine_terms.h"
#include "engine/metric/lncc.h"
#include "engine/metric/nmi_plan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/metric/affine_objective_cpu.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "engine/metric/affine_rows-inl.h"
#include "engine/metric/lncc_affine-inl.h"
#include "engine/metric/ngf_affine-inl.h"
#include "engine/metric/nmi_affine-inl.h"
#include "engine/metric/ssd_affine-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

size_t ScratchFloats(const AffinePlan& plan) {
  return plan.objective.metric == MetricKind::kNgf
             ? AffineNgfBrick::ScratchFloats(plan.size.x, BrickBlocks(plan.size.y).block)
             : WarpedRowFloats(plan.size.x);
}

template <class Rows>
void AddRows(Range y, Range z, Rows& rows) {
  for (int k = z.begin; k < z.end; ++k) {
    for (int j = y.begin; j < y.end; ++j) rows.Add(j, k);
  }
}

template <class Term, bool kTakesWeights = true>
void SumRows(const AffinePlan& plan, const Term& term, Range y, Range z, float* scratch, NormalEquations* sums) {
  AffineRows<Term, kTakesWeights> rows(plan, term, scratch);
  AddRows(y, z, rows);
  rows.Finish(sums);
}

void EvaluateBrick(const AffinePlan& plan, const AffineTables& tables, Range y, Range z, float* scratch,
                   NormalEquations* sums) {
  switch (plan.objective.metric) {
    case MetricKind::kSsd:
      return SumRows(plan, SsdTerm(plan), y, z, scratch, sums);
    case MetricKind::kNgf:
      return AffineNgfBrick(plan, y, z, scratch).Evaluate(sums);
    case MetricKind::kNmi:
      return SumRows(plan, NmiTerm(plan, tables.polynomials), y, z, scratch, sums);
    case MetricKind::kLncc:
      return SumRows<StoredTerm, false>(plan, StoredTerm(plan, tables.derivative, tables.curvature), y, z, scratch,
                                        sums);
    case MetricKind::kMind:
      return;
  }
}

// Returns the number of samples if there are weights.
int64_t CountBrick(const AffinePlan& plan, Range y, Range z, const HistogramTask& task, float* scratch) {
  NmiCountRows rows(plan, task, scratch);
  AddRows(y, z, rows);
  rows.Finish();
  return rows.samples();
}

void WarpBrick(const AffinePlan& plan, Range y, Range z, float* scratch, float* warped, float* weights) {
  WarpRows rows(plan, warped, weights, scratch);
  AddRows(y, z, rows);
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
HWY_EXPORT(CountBrick);
HWY_EXPORT(WarpBrick);

// The bricks of the fixed grid.
struct Bricks {
  explicit Bricks(Int3 size) : y(BrickBlocks(size.y)), z(BrickBlocks(size.z)) {}
  int count() const { return y.count() * z.count(); }
  Range RangeY(int64_t brick) const { return y[static_cast<int>(brick % y.count())]; }
  Range RangeZ(int64_t brick) const { return z[static_cast<int>(brick / y.count())]; }
  AxisBlocks y, z;
};

void Add(NormalEquations& total, const NormalEquations& part) {
  total.value += part.value;
  total.weight += part.weight;
  total.samples += part.samples;
  for (int i = 0; i < kAffineParameters; ++i) total.gradient[i] += part.gradient[i];
  for (int i = 0; i < kAffineHessianEntries; ++i) total.hessian[i] += part.hessian[i];
}

NormalEquations SumBricks(const AffinePlan& plan, const AffineTables& tables) {
  const Bricks bricks(plan.size);
  const size_t floats = HWY_DYNAMIC_DISPATCH(ScratchFloats)(plan);
  return OrderedReduce(
      bricks.count(), NormalEquations{},
      [&](int64_t i) {
        NormalEquations part;
        HWY_DYNAMIC_DISPATCH(EvaluateBrick)
        (plan, tables, bricks.RangeY(i), bricks.RangeZ(i), ThreadScratch<float>(floats), &part);
        return part;
      },
      Add);
}

// From the sums of derivative and curvature of D to those of its N-fold.
NormalEquations Weighted(const MetricValue& d, double samples, NormalEquations sums) {
  const double weight = SampleWeight(d);
  sums.samples = samples;
  sums.weight = weight;
  sums.value = weight > 0 ? weight * d.metric : 0;
  for (double& g : sums.gradient) g *= weight;
  for (double& h : sums.hessian) h *= weight;
  return sums;
}

// Bricks whose windows are counted together: enough samples that the bins are few beside them.
constexpr int64_t kHistogramVoxels = 1 << 16;
AxisBlocks HistogramChunks(const Bricks& bricks, const Geometry& fixed) {
  const int64_t voxels = std::max<int64_t>(1, fixed.voxels() / bricks.count());
  return {bricks.count(), static_cast<int>(std::clamp<int64_t>(kHistogramVoxels / voxels, 1, bricks.count()))};
}

// Adds the joint histogram to `counts`, and the number of samples to `samples` if there are weights. Integers are the
// same in any order.
void CountHistogram(const AffinePlan& plan, std::atomic<int64_t>* counts, std::atomic<int64_t>* samples) {
  const Bricks bricks(plan.size);
  const AxisBlocks chunks = HistogramChunks(bricks, plan.objective.fixed.geometry);
  const size_t row_floats = HWY_DYNAMIC_DISPATCH(ScratchFloats)(plan), stride = HistogramStride(plan.size.x);
  ParallelFor(chunks.count(), [&](int64_t i) {
    int64_t totals[kHistogramCells] = {};
    float* scratch = ThreadScratch<float>(row_floats + kHistogramCopies * kHistogramCells + 3 * stride);
    auto* copies = reinterpret_cast<uint32_t*>(scratch + row_floats);
    auto* places = reinterpret_cast<int32_t*>(copies + kHistogramCopies * kHistogramCells);
    std::fill_n(copies, kHistogramCopies * kHistogramCells, 0u);
    const HistogramTask task{copies, places, reinterpret_cast<uint16_t*>(places + stride), totals};
    const Range chunk = chunks[static_cast<int>(i)];
    for (int brick = chunk.begin; brick < chunk.end; ++brick) {
      samples->fetch_add(
          HWY_DYNAMIC_DISPATCH(CountBrick)(plan, bricks.RangeY(brick), bricks.RangeZ(brick), task, scratch),
          std::memory_order_relaxed);
    }
    for (int cell = 0; cell < kHistogramCells; ++cell) {
      if (totals[cell] != 0) counts[cell].fetch_add(totals[cell], std::memory_order_relaxed);
    }
  });
}

void EvaluateNmi(const AffinePlan& plan, NormalEquations* sums) {
  std::atomic<int64_t> counted[kHistogramCells] = {}, samples{0};
  CountHistogram(plan, counted, &samples);
  int64_t counts[kHistogramCells];
  std::copy(std::begin(counted), std::end(counted), counts);
  float derivative[kHistogramCells], curvature[kNmiBins];
  const MetricValue d = NmiFromHistogram(counts, MovingScale(plan.objective), derivative, curvature);
  *sums = {};
  if (SampleWeight(d) > 0) {
    alignas(64) float polynomials[4 * kHistogramCells];
    MakeNmiPolynomials(derivative, curvature, polynomials);
    *sums = SumBricks(plan, {polynomials, nullptr, nullptr});
  }
  const bool is_weighted = plan.masking() == Masking::kWeighted;
  *sums = Weighted(d, is_weighted ? static_cast<double>(samples.load()) : d.samples, *sums);
}

absl::Status EvaluateLncc(const ExecContext& ctx, const AffinePlan& plan, NormalEquations* sums) {
  ArenaScope scope(ctx.arena());
  const int64_t voxels = plan.objective.fixed.geometry.voxels();
  INTRAWARP_ASSIGN_OR_RETURN(float* warped, ctx.arena().Allocate<float>(voxels));
  INTRAWARP_ASSIGN_OR_RETURN(float* derivative, ctx.arena().Allocate<float>(voxels));
  INTRAWARP_ASSIGN_OR_RETURN(float* curvature, ctx.arena().Allocate<float>(voxels));
  // EvaluateLncc takes the weights out of the image that the derivative goes to.
  float* const weights = plan.masking() == Masking::kWeighted ? derivative : nullptr;
  const Bricks bricks(plan.size);
  const size_t floats = HWY_DYNAMIC_DISPATCH(ScratchFloats)(plan);
  ParallelFor(bricks.count(), [&](int64_t i) {
    HWY_DYNAMIC_DISPATCH(WarpBrick)
    (plan, bricks.RangeY(i), bricks.RangeZ(i), ThreadScratch<float>(floats), warped, weights);
  });
  LnccTask task = MakeLnccTask(plan.objective, warped, curvature);
  task.weights = weights;
  MetricValue d;
  INTRAWARP_RETURN_IF_ERROR(intrawarp::EvaluateLncc(ctx, task, nullptr, derivative, &d));
  *sums = Weighted(d, d.samples,
                   SampleWeight(d) > 0 ? SumBricks(plan, {nullptr, derivative, curvature}) : NormalEquations{});
  return absl::OkStatus();
}

}  // namespace

absl::Status EvaluateAffineObjectives(const ExecContext& ctx, const AffineObjective& objective,
                                      absl::Span<const AffineMap> maps, NormalEquations* sums) {
  for (const AffineMap& w : maps) {
    const AffinePlan plan(objective, w);
    if (objective.metric == MetricKind::kLncc) {
      INTRAWARP_RETURN_IF_ERROR(EvaluateLncc(ctx, plan, sums));
    } else if (objective.metric == MetricKind::kNmi) {
      EvaluateNmi(plan, sums);
    } else {
      *sums = SumBricks(plan, {});
    }
    ++sums;
  }
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
#endif  // HWY_ONCE
