// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"
#include "engine/metric/ffd_bricks.h"
#include "engine/metric/ffd_objective.h"
#include "engine/metric/mind_channels.h"
#include "engine/metric/nmi_plan.h"
#include "engine/metric/ssd.h"
#include "engine/metric/voxel_gradient.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/metric/ffd_objective_cpu.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "engine/metric/ffd_brick-inl.h"
#include "engine/metric/ffd_passes-inl.h"
#include "engine/metric/nmi_ffd-inl.h"
#include "engine/metric/ssd_ffd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp {
namespace cpu {
namespace HWY_NAMESPACE {

template <class Pass>
void RunBrick(const FfdRows& rows, const float* node_rows, int brick, Pass& pass, float* scratch, float* partial) {
  if (rows.objective.moving.geometry.size.z == 1) {
    FfdBrick<Pass, true>(rows, node_rows, brick, pass, scratch).Run(partial);
  } else {
    FfdBrick<Pass, false>(rows, node_rows, brick, pass, scratch).Run(partial);
  }
}

size_t BrickScratchFloats(const FfdRows& rows) { return FfdBrick<SsdPass<true, false>, false>::ScratchFloats(rows); }

void NodeRow(const FfdRows& rows, const float* control_points, float* scratch, float* out) {
  ContractAlongX(rows, control_points, scratch, out);
}

template <bool kWeighted>
SsdSums SumSsd(const FfdRows& rows, const float* node_rows, int brick, float* scratch, float* partial) {
  if (partial == nullptr) {
    SsdPass<false, kWeighted> pass(rows);
    RunBrick(rows, node_rows, brick, pass, scratch, partial);
    return pass.Sums();
  }
  SsdPass<true, kWeighted> pass(rows);
  RunBrick(rows, node_rows, brick, pass, scratch, partial);
  return pass.Sums();
}

// `partial` may be null: only the value is wanted.
SsdSums SsdBrick(const FfdRows& rows, const float* node_rows, int brick, float* scratch, float* partial) {
  return rows.weighted ? SumSsd<true>(rows, node_rows, brick, scratch, partial)
                       : SumSsd<false>(rows, node_rows, brick, scratch, partial);
}

template <bool kWeighted>
int64_t CountWindows(const FfdRows& rows, const float* node_rows, Range bricks, const uint8_t* bins,
                     const HistogramTask& histogram, float* scratch) {
  HistogramPass<kWeighted> pass(rows, bins, histogram);
  for (int brick = bricks.begin; brick < bricks.end; ++brick) {
    RunBrick(rows, node_rows, brick, pass, scratch, nullptr);
  }
  pass.Flush();
  return pass.samples();
}

// The number of samples, of weighted rows only.
int64_t HistogramBricks(const FfdRows& rows, const float* node_rows, Range bricks, const uint8_t* bins,
                        const HistogramTask& histogram, float* scratch) {
  return rows.weighted ? CountWindows<true>(rows, node_rows, bricks, bins, histogram, scratch)
                       : CountWindows<false>(rows, node_rows, bricks, bins, histogram, scratch);
}

template <bool kWeighted>
void SpreadNmi(const FfdRows& rows, const float* node_rows, int brick, const uint8_t* bins, const float* polynomials,
               float* scratch, float* partial) {
  NmiPass<kWeighted> pass(rows, bins, polynomials);
  RunBrick(rows, node_rows, brick, pass, scratch, partial);
}

void NmiBrick(const FfdRows& rows, const float* node_rows, int brick, const uint8_t* bins, const float* polynomials,
              float* scratch, float* partial) {
  if (rows.weighted) return SpreadNmi<true>(rows, node_rows, brick, bins, polynomials, scratch, partial);
  SpreadNmi<false>(rows, node_rows, brick, bins, polynomials, scratch, partial);
}

template <bool kWeighted>
void StoreWarped(const FfdRows& rows, const float* node_rows, int brick, float* scratch, float* warped,
                 float* weights) {
  WarpPass<kWeighted> pass(rows, warped, weights);
  RunBrick(rows, node_rows, brick, pass, scratch, nullptr);
}

// `weights`: of weighted rows only.
void WarpBrick(const FfdRows& rows, const float* node_rows, int brick, float* scratch, float* warped, float* weights) {
  if (rows.weighted) return StoreWarped<true>(rows, node_rows, brick, scratch, warped, weights);
  StoreWarped<false>(rows, node_rows, brick, scratch, warped, weights);
}

void VoxelGradientBrick(const FfdRows& rows, const float* node_rows, int brick, const float* voxel_gradient,
                        float* scratch, float* partial) {
  VoxelGradientPass pass(rows, voxel_gradient);
  RunBrick(rows, node_rows, brick, pass, scratch, partial);
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace intrawarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace intrawarp::cpu {
namespace {

HWY_EXPORT(BrickScratchFloats);
HWY_EXPORT(NodeRow);
HWY_EXPORT(SsdBrick);
HWY_EXPORT(HistogramBricks);
HWY_EXPORT(NmiBrick);
HWY_EXPORT(WarpBrick);
HWY_EXPORT(VoxelGradientBrick);

// Bricks whose histograms are counted together: enough samples that the bins are few beside them.
constexpr int64_t kHistogramVoxels = 1 << 16;
AxisBlocks HistogramChunks(const FfdBricks& bricks, const Geometry& fixed) {
  const int64_t voxels = std::max<int64_t>(1, fixed.voxels() / bricks.count());
  return {bricks.count(), static_cast<int>(std::clamp<int64_t>(kHistogramVoxels / voxels, 1, bricks.count()))};
}

// An evaluator's memory from its arena, in counts of elements.
struct Layout {
  Layout(MetricKind metric, const Geometry& fixed, const Geometry& moving, const Geometry& grid) {
    const FfdBricks bricks(fixed, grid);
    node_rows = int64_t{grid.size.z} * grid.size.y * 3 * RowStride(fixed.size.x);
    partials = int64_t{bricks.count()} * bricks.planes * bricks.rows * 3 * grid.size.x;
    if (metric == MetricKind::kNmi) {
      bins = fixed.voxels() + kRowPadding;
      histograms = int64_t{HistogramChunks(bricks, fixed).count()} * kHistogramCells;
    }
    if (TraitsOf(metric).needs_neighborhood) images = 2 * fixed.voxels();
    if (metric == MetricKind::kNgf) weights = fixed.voxels();
    workspace_bytes = VoxelGradientWorkspaceBytes(metric, fixed.size);
    if (metric != MetricKind::kMind) return;
    sums = partials;
    workspace_bytes = MindChannelBytes(fixed) + MindChannelBytes(moving) +
                      std::max(MindChannelWorkspaceBytes(fixed), MindChannelWorkspaceBytes(moving));
  }
  int64_t bytes() const {
    return Arena::Rounded(node_rows * sizeof(float)) + Arena::Rounded(partials * sizeof(float)) +
           Arena::Rounded(sums * sizeof(float)) + Arena::Rounded(images * sizeof(float)) +
           Arena::Rounded(weights * sizeof(float)) + Arena::Rounded(bins) +
           Arena::Rounded(histograms * sizeof(int64_t)) + workspace_bytes;
  }

  int64_t node_rows = 0, partials = 0, sums = 0, images = 0, bins = 0, histograms = 0, workspace_bytes = 0;
  // With soft masks only.
  int64_t weights = 0;
};

// The part that all metrics share: node rows, bricks, and the sum of partial sums to the gradient.
class Evaluator : public FfdEvaluator {
 public:
  absl::Status Measure(const ExecContext& ctx, const float* grid, const int* skip, bool wants_gradient,
                       MetricValue* value) final {
    if (skip != nullptr && *skip != 0) return absl::OkStatus();
    ContractGrid(grid);
    return EvaluateMetric(ctx, wants_gradient, value, &scale_);
  }

  explicit Evaluator(const FfdObjective& objective, const FfdPlan& plan)
      : rows_(objective, plan), scratch_floats_(HWY_DYNAMIC_DISPATCH(BrickScratchFloats)(rows_)) {}

  absl::Status Allocate(const ExecContext& ctx, const Layout& layout) {
    INTRAWARP_ASSIGN_OR_RETURN(node_rows_, ctx.arena().Allocate<float>(layout.node_rows));
    INTRAWARP_ASSIGN_OR_RETURN(partials_, ctx.arena().Allocate<float>(layout.partials));
    // Their padding stays so.
    std::fill_n(node_rows_, layout.node_rows, 0.0f);
    return AllocateMore(ctx, layout);
  }

 protected:
  virtual absl::Status AllocateMore(const ExecContext&, const Layout&) { return absl::OkStatus(); }
  // Writes *value; with forces also the partial sums of all bricks, which times *scale are the gradient's.
  virtual absl::Status EvaluateMetric(const ExecContext& ctx, bool forces, MetricValue* value, double* scale) = 0;

  int bricks() const { return rows_.bricks.count(); }
  float* partial(int64_t brick) const { return partials_ + brick * rows_.partial_floats(); }

  const FfdRows rows_;
  const size_t scratch_floats_;
  float* node_rows_ = nullptr;
  float* partials_ = nullptr;

 private:
  absl::Status Gather(const ExecContext&, const int* skip, const MetricValue* value, bool adds, float* gradient) final {
    if (skip != nullptr && *skip != 0) return absl::OkStatus();
    if (value->samples > 0) {
      SumPartials(adds, gradient);
    } else if (!adds) {
      std::fill_n(gradient, 3 * rows_.objective.grid.voxels(), 0.0f);
    }
    return absl::OkStatus();
  }

  void ContractGrid(const float* grid) {
    const Int3 n = rows_.nodes;
    ParallelFor(int64_t{n.y} * n.z, [&](int64_t i) {
      HWY_DYNAMIC_DISPATCH(NodeRow)
      (rows_, grid + i * 3 * n.x, ThreadScratch<float>(3 * (n.x + kRowPadding)), node_rows_ + i * rows_.row_floats());
    });
  }

  void SumPartials(bool adds, float* gradient) const {
    const Int3 n = rows_.nodes;
    ParallelFor(int64_t{n.y} * n.z, [&](int64_t i) {
      const int y = static_cast<int>(i % n.y), z = static_cast<int>(i / n.y);
      float* sums = ThreadScratch<float>(3 * static_cast<size_t>(n.x));
      std::fill_n(sums, 3 * n.x, 0.0f);
      AddPartials(y, z, sums);
      float* out = gradient + i * 3 * n.x;
      for (int x = 0; x < n.x; ++x) {
        const Vec3d d = rows_.plan.displacement_to_moving.LinearTransposed({sums[x], sums[n.x + x], sums[2 * n.x + x]});
        for (int a = 0; a < 3; ++a) {
          const auto g = static_cast<float>(scale_ * d[a]);
          out[3 * x + a] = adds ? out[3 * x + a] + g : g;
        }
      }
    });
  }

  void AddPartials(int y, int z, float* sums) const {
    const FfdBricks& bricks = rows_.bricks;
    for (int bz = 0; bz < bricks.z.count(); ++bz) {
      const Range planes = rows_.Nodes(2, bricks.z[bz]);
      if (z < planes.begin || z >= planes.end) continue;
      for (int by = 0; by < bricks.y.count(); ++by) {
        const Range node_rows = rows_.Nodes(1, bricks.y[by]);
        if (y < node_rows.begin || y >= node_rows.end) continue;
        const float* from = partial(int64_t{bz} * bricks.y.count() + by) +
                            (int64_t{z - planes.begin} * bricks.rows + (y - node_rows.begin)) * 3 * rows_.nodes.x;
        for (int i = 0; i < 3 * rows_.nodes.x; ++i) sums[i] += from[i];
      }
    }
  }

  // The factor of the last Measure's partial sums.
  double scale_ = 0;
};

void Add(SsdSums& total, const SsdSums& part) {
  total.value += part.value;
  total.weight += part.weight;
  total.samples += part.samples;
}

class SsdEvaluator final : public Evaluator {
 public:
  using Evaluator::Evaluator;

 private:
  absl::Status EvaluateMetric(const ExecContext&, bool forces, MetricValue* value, double* scale) override {
    const SsdSums sums = OrderedReduce(
        bricks(), SsdSums{},
        [&](int64_t i) {
          return HWY_DYNAMIC_DISPATCH(SsdBrick)(rows_, node_rows_, static_cast<int>(i),
                                                ThreadScratch<float>(scratch_floats_), forces ? partial(i) : nullptr);
        },
        Add);
    const double s = rows_.objective.intensity_scale, factor = s * s / sums.weight;
    *value = {sums.samples > 0 ? sums.value * factor : std::numeric_limits<double>::quiet_NaN(), sums.samples};
    *scale = SsdGradientFactor(s * s, sums.weight);
    return absl::OkStatus();
  }
};

// The sum of the SSD of the channels.
class MindEvaluator final : public Evaluator {
 public:
  using Evaluator::Evaluator;

 private:
  absl::Status AllocateMore(const ExecContext& ctx, const Layout& layout) override {
    const FfdObjective& o = rows_.objective;
    INTRAWARP_ASSIGN_OR_RETURN(const MindChannels fixed, DescribeChannels(ctx, o.fixed, o.fixed_mask, o.fixed_stddev));
    INTRAWARP_ASSIGN_OR_RETURN(const MindChannels moving,
                               DescribeChannels(ctx, o.moving, o.moving_mask, o.moving_stddev,
                                                OrderOfChannels(o.fixed.geometry, o.moving.geometry, o.affine)));
    INTRAWARP_ASSIGN_OR_RETURN(sums_, ctx.arena().Allocate<float>(layout.sums));
    for (int c = 0; c < kDescriptorChannels; ++c) {
      FfdObjective channel = o;
      channel.fixed.data = fixed[c];
      channel.moving.data = moving[c];
      channels_.push_back(std::make_unique<FfdRows>(channel, rows_.plan));
    }
    return absl::OkStatus();
  }

  absl::Status EvaluateMetric(const ExecContext&, bool forces, MetricValue* value, double* scale) override {
    const SsdSums sums = OrderedReduce(
        bricks(), SsdSums{}, [&](int64_t brick) { return SumChannels(static_cast<int>(brick), forces); }, Add);
    *value = {sums.samples > 0 ? sums.value / sums.weight : std::numeric_limits<double>::quiet_NaN(), sums.samples};
    *scale = SsdGradientFactor(1, sums.weight);
    return absl::OkStatus();
  }

  SsdSums SumChannels(int brick, bool forces) {
    SsdSums total;
    float* const sum = sums_ + brick * rows_.partial_floats();
    for (const std::unique_ptr<FfdRows>& channel : channels_) {
      const SsdSums part = HWY_DYNAMIC_DISPATCH(SsdBrick)(
          *channel, node_rows_, brick, ThreadScratch<float>(scratch_floats_), forces ? partial(brick) : nullptr);
      total = {total.value + part.value, part.weight, part.samples};
      if (!forces) continue;
      const bool is_first = channel == channels_.front();
      for (int64_t i = 0; i < rows_.partial_floats(); ++i) sum[i] = (is_first ? 0 : sum[i]) + partial(brick)[i];
    }
    if (forces) std::copy_n(sum, rows_.partial_floats(), partial(brick));
    return total;
  }

  std::vector<std::unique_ptr<FfdRows>> channels_;
  float* sums_ = nullptr;
};

class NmiEvaluator final : public Evaluator {
 public:
  NmiEvaluator(const FfdObjective& objective, const FfdPlan& plan)
      : Evaluator(objective, plan),
        chunks_(HistogramChunks(rows_.bricks, objective.fixed.geometry)),
        samples_(chunks_.count()) {}

 private:
  absl::Status AllocateMore(const ExecContext& ctx, const Layout& layout) override {
    INTRAWARP_ASSIGN_OR_RETURN(bins_, ctx.arena().Allocate<uint8_t>(layout.bins));
    INTRAWARP_ASSIGN_OR_RETURN(histograms_, ctx.arena().Allocate<int64_t>(layout.histograms));
    const FfdObjective& objective = rows_.objective;
    const NmiScale scale = NmiFixedScale(objective.fixed_minimum, objective.fixed_maximum);
    const int64_t plane = int64_t{rows_.size.x} * rows_.size.y;
    ParallelFor(rows_.size.z, [&](int64_t z) {
      for (int64_t i = z * plane; i < (z + 1) * plane; ++i) {
        const bool in = objective.fixed_mask.data == nullptr || objective.fixed_mask.data[i] != 0;
        bins_[i] = static_cast<uint8_t>(in ? NmiFixedBin(scale, objective.fixed.data[i]) : kNmiNoBin);
      }
    });
    std::fill_n(bins_ + objective.fixed.geometry.voxels(), kRowPadding, static_cast<uint8_t>(kNmiNoBin));
    return absl::OkStatus();
  }

  absl::Status EvaluateMetric(const ExecContext&, bool forces, MetricValue* value, double* scale) override {
    Count();
    float derivative[kHistogramCells];
    *value = NmiFromHistogram(counts_, MovingScale(rows_.objective), forces ? derivative : nullptr);
    if (rows_.weighted) value->samples = SumOf(samples_);
    *scale = 1;
    if (!forces) return absl::OkStatus();
    MakeNmiPolynomials(derivative, nullptr, polynomials_);
    ParallelFor(bricks(), [&](int64_t i) {
      HWY_DYNAMIC_DISPATCH(NmiBrick)
      (rows_, node_rows_, static_cast<int>(i), bins_, polynomials_, ThreadScratch<float>(scratch_floats_), partial(i));
    });
    return absl::OkStatus();
  }

  void Count() {
    const int stride = HistogramStride(rows_.size.x);
    ParallelFor(chunks_.count(), [&](int64_t i) {
      int64_t* totals = histograms_ + i * kHistogramCells;
      std::fill_n(totals, kHistogramCells, int64_t{0});
      float* scratch = ThreadScratch<float>(scratch_floats_ + kHistogramCopies * kHistogramCells + 3 * stride);
      auto* counts = reinterpret_cast<uint32_t*>(scratch + scratch_floats_);
      auto* places = reinterpret_cast<int32_t*>(counts + kHistogramCopies * kHistogramCells);
      std::fill_n(counts, kHistogramCopies * kHistogramCells, 0u);
      samples_[i] = HWY_DYNAMIC_DISPATCH(HistogramBricks)(
          rows_, node_rows_, chunks_[static_cast<int>(i)], bins_,
          {counts, places, reinterpret_cast<uint16_t*>(places + stride), totals}, scratch);
    });
    ParallelFor(kNmiBins, [&](int64_t row) {
      int64_t* sums = counts_ + row * kNmiBins;
      std::fill_n(sums, kNmiBins, int64_t{0});
      for (int chunk = 0; chunk < chunks_.count(); ++chunk) {
        const int64_t* from = histograms_ + int64_t{chunk} * kHistogramCells + row * kNmiBins;
        for (int i = 0; i < kNmiBins; ++i) sums[i] += from[i];
      }
    });
  }

  static double SumOf(const std::vector<int64_t>& counts) {
    return static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  }

  const AxisBlocks chunks_;
  // The number in each chunk, where samples are weighted.
  std::vector<int64_t> samples_;
  uint8_t* bins_ = nullptr;
  int64_t* histograms_ = nullptr;
  int64_t counts_[kHistogramCells];
  alignas(64) float polynomials_[4 * kHistogramCells] = {};
};

// The metrics that need a neighbourhood, by way of the stored warped image and voxel gradient.
class StoredImageEvaluator final : public Evaluator {
 public:
  using Evaluator::Evaluator;

 private:
  absl::Status AllocateMore(const ExecContext& ctx, const Layout& layout) override {
    INTRAWARP_ASSIGN_OR_RETURN(warped_, ctx.arena().Allocate<float>(layout.images));
    voxel_gradient_ = warped_ + layout.images / 2;
    if (!rows_.weighted) return absl::OkStatus();
    // LNCC takes the weights out of the image that its voxel gradient goes to.
    weights_ = voxel_gradient_;
    if (layout.weights > 0) {
      INTRAWARP_ASSIGN_OR_RETURN(weights_, ctx.arena().Allocate<float>(layout.weights));
    }
    return absl::OkStatus();
  }

  absl::Status EvaluateMetric(const ExecContext& ctx, bool forces, MetricValue* value, double* scale) override {
    ParallelFor(bricks(), [&](int64_t i) {
      HWY_DYNAMIC_DISPATCH(WarpBrick)
      (rows_, node_rows_, static_cast<int>(i), ThreadScratch<float>(scratch_floats_), warped_, weights_);
    });
    INTRAWARP_RETURN_IF_ERROR(EvaluateVoxelGradient(ctx, rows_.objective, {warped_, weights_}, nullptr,
                                                    forces ? voxel_gradient_ : nullptr, value));
    *scale = 1;
    if (!forces) return absl::OkStatus();
    ParallelFor(bricks(), [&](int64_t i) {
      HWY_DYNAMIC_DISPATCH(VoxelGradientBrick)
      (rows_, node_rows_, static_cast<int>(i), voxel_gradient_, ThreadScratch<float>(scratch_floats_), partial(i));
    });
    return absl::OkStatus();
  }

  float* warped_ = nullptr;
  float* voxel_gradient_ = nullptr;
  // Null where all samples weigh 1.
  float* weights_ = nullptr;
};

std::unique_ptr<Evaluator> NewEvaluator(const FfdObjective& objective, const FfdPlan& plan) {
  switch (objective.metric) {
    case MetricKind::kSsd:
      return std::make_unique<SsdEvaluator>(objective, plan);
    case MetricKind::kNmi:
      return std::make_unique<NmiEvaluator>(objective, plan);
    case MetricKind::kMind:
      return std::make_unique<MindEvaluator>(objective, plan);
    case MetricKind::kLncc:
    case MetricKind::kNgf:
      break;
  }
  return std::make_unique<StoredImageEvaluator>(objective, plan);
}

}  // namespace

absl::StatusOr<std::unique_ptr<FfdEvaluator>> MakeFfdEvaluator(const ExecContext& ctx, const FfdObjective& objective) {
  INTRAWARP_ASSIGN_OR_RETURN(const FfdPlan plan, MakeFfdPlan(objective));
  std::unique_ptr<Evaluator> evaluator = NewEvaluator(objective, plan);
  INTRAWARP_RETURN_IF_ERROR(evaluator->Allocate(
      ctx, Layout(objective.metric, objective.fixed.geometry, objective.moving.geometry, objective.grid)));
  return evaluator;
}

int64_t FfdEvaluatorBytes(MetricKind metric, const Geometry& fixed, const Geometry& moving, const Geometry& grid) {
  return Layout(metric, fixed, moving, grid).bytes();
}

}  // namespace intrawarp::cpu
#endif  // HWY_ONCE
