// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/methods/sliding.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <variant>

#include "engine/base/status_macros.h"
#include "engine/image/statistics.h"
#include "engine/image/two_regions.h"
#include "engine/image/warp.h"
#include "engine/registration/methods/grid_result.h"
#include "engine/registration/methods/sliding_kernels.h"
#include "engine/registration/stage/mask_levels.h"
#include "engine/transform/control_grid.h"
#include "engine/transform/fold_smoothing.h"

namespace intrawarp {
namespace {

// Residuals are bounded at so many of their mean, and a face of the boundary costs as much as so many of it
// (docs/evidence/surgery.md, "Sliding organs").
constexpr double kMostResidual = 25, kBoundaryWeight = 4;
constexpr int kSplitIterations = 150;
// Displacements are put into groups on the finest level of at most so many voxels.
constexpr int64_t kMostGrouped = 1 << 19;
constexpr int kGroupingRounds = 30;
// Groups whose means are closer, in voxels, do not slide.
constexpr double kLeastSlip = 1;

const FfdOptions& OptionsOf(const StageTask& task) { return std::get<FfdOptions>(task.options); }

StageOptions PlainOptions(const StageTask& task) {
  FfdOptions options = OptionsOf(task);
  options.sliding = false;
  return options;
}

// The transforms of both layers. The share says which voxels are the second one's.
struct Layers {
  std::array<StageResult, 2> stages;

  const Transform& transform(int layer) const { return stages[layer].transform; }
};

template <typename T>
absl::StatusOr<std::vector<T>> OnHost(const ExecContext& ctx, const T* from, int64_t count) {
  std::vector<T> host(count);
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(host.data(), from, count * sizeof(T), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return host;
}

// The level whose displacements are put into groups.
size_t GroupedLevel(const PreparedImage& fixed) {
  const std::vector<PyramidLevel>& levels = fixed.levels();
  size_t index = 0;
  while (index + 1 < levels.size() && levels[index].volume.geometry.voxels() > kMostGrouped) ++index;
  return index;
}
const Geometry& GroupedGrid(const PreparedImage& fixed) { return fixed.levels()[GroupedLevel(fixed)].volume.geometry; }

// The gradient magnitude of each voxel over its mean, at most 1: how much structure shows where the voxel moves to.
std::vector<float> StructureOf(const std::vector<float>& image, const Geometry& g) {
  const int64_t stride[3] = {1, g.size.x, int64_t{g.size.x} * g.size.y};
  std::vector<float> structure(image.size());
  double sum = 0;
  for (int64_t i = 0; i < g.voxels(); ++i) {
    const int64_t at[3] = {i % g.size.x, i / g.size.x % g.size.y, i / stride[2]};
    double square = 0;
    for (int a = 0; a < 3; ++a) {
      if (at[a] == 0 || at[a] + 1 == g.size[a]) continue;
      const double d = (double{image[i + stride[a]]} - image[i - stride[a]]) / (2 * g.spacing[a]);
      square += d * d;
    }
    structure[i] = static_cast<float>(std::sqrt(square));
    sum += structure[i];
  }
  const double mean = sum / static_cast<double>(g.voxels());
  for (float& s : structure) s = mean > 0 ? static_cast<float>(std::min(s / mean, 1.0)) : 1.0f;
  return structure;
}

// How much the displacement of each voxel says: its structure, by its weight in the fixed mask.
absl::StatusOr<std::vector<float>> GroupingWeights(const ExecContext& ctx, const RegistrationImages& images) {
  const size_t index = GroupedLevel(*images.fixed);
  const ConstVolumeView level = images.fixed->levels()[index].volume;
  const int64_t voxels = level.geometry.voxels();
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<float> image, OnHost(ctx, level.data, voxels));
  std::vector<float> weights = StructureOf(image, level.geometry);
  const ConstMaskView mask = images.fixed_masks[index].mask;
  if (mask.data == nullptr) return weights;
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, OnHost(ctx, mask.data, voxels));
  for (int64_t i = 0; i < voxels; ++i) weights[i] *= MaskWeight(bytes[i], mask.weight_per_unit);
  return weights;
}

// Writes 1 for the voxels of the second group of the displacements of `grid`, 0 for the others; false where nothing
// slides.
absl::StatusOr<bool> GroupVoxels(const ExecContext& ctx, const RegistrationImages& images, ConstFieldView grid,
                                 VolumeView share) {
  ArenaScope scope(ctx.arena());
  const PreparedImage& fixed = *images.fixed;
  const Geometry& g = GroupedGrid(fixed);
  const int64_t voxels = g.voxels();
  INTRAWARP_ASSIGN_OR_RETURN(float* const field, ctx.arena().Allocate<float>(3 * voxels));
  INTRAWARP_RETURN_IF_ERROR(EvaluateControlGrid(ctx, grid, AffineMap::Identity(), g, 0, voxels, field));
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<float> flat, OnHost(ctx, field, 3 * voxels));
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<float> weights, GroupingWeights(ctx, images));
  std::vector<Vec3f> vectors(voxels);
  for (int64_t i = 0; i < voxels; ++i) vectors[i] = {flat[3 * i], flat[3 * i + 1], flat[3 * i + 2]};
  const std::optional<std::vector<bool>> groups =
      TwoGroups(vectors, weights, kLeastSlip * VoxelScale(fixed.geometry()));
  if (!groups.has_value()) return false;
  std::vector<float> second(groups->begin(), groups->end());
  // The field's memory holds them.
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(field, second.data(), voxels * sizeof(float), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(
      WarpAffine(ctx, {field, g}, AffineMap::Identity(), Interpolation::kLinear, /*fill=*/0, share));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return true;
}

// An ffd stage of one layer, from no deformation.
absl::StatusOr<StageResult> RunLayer(const ExecContext& ctx, const StageTask& task, const FfdFunctions& ffd,
                                     const float* share, bool is_second) {
  ArenaScope scope(ctx.arena());
  const ConstMaskView own = task.images.fixed_masks[0].mask;
  const Geometry& g = task.images.fixed->geometry();
  MaskView mask{nullptr, g, own.data == nullptr ? 1 : own.weight_per_unit};
  INTRAWARP_ASSIGN_OR_RETURN(mask.data, ctx.arena().Allocate<uint8_t>(g.voxels()));
  const LayerMask layer{share, own.data, is_second, g.voxels(), mask.data};
  INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, MakeLayerMask, layer));
  RegistrationImages images = task.images;
  INTRAWARP_ASSIGN_OR_RETURN(images.fixed_masks, LevelsOfMask(ctx, "fixed", *task.images.fixed, mask));
  const StageOptions options = PlainOptions(task);
  return ffd.run(ctx, {images, options, task.index, task.start});
}

// Writes to which layer each voxel belongs, as a share from 0 to 1. After kStop the share is as it was.
absl::StatusOr<Decision> AssignVoxels(const ExecContext& ctx, const StageTask& task, const Layers& layers,
                                      VolumeView share) {
  ArenaScope scope(ctx.arena());
  const RegistrationImages& images = task.images;
  const Geometry& g = share.geometry;
  LayerCosts costs;
  float* warped[2];
  for (int layer : {0, 1}) {
    INTRAWARP_ASSIGN_OR_RETURN(warped[layer], ctx.arena().Allocate<float>(g.voxels()));
    INTRAWARP_RETURN_IF_ERROR(WarpVolume(ctx, layers.transform(layer), /*inverse=*/false, images.moving->volume(),
                                         Interpolation::kLinear, std::numeric_limits<float>::quiet_NaN(),
                                         {warped[layer], g}));
  }
  const ConstMaskView mask = images.fixed_masks[0].mask;
  costs.images = {images.fixed->volume().data, warped[0], warped[1], mask.data, mask.weight_per_unit, g.voxels()};
  INTRAWARP_ASSIGN_OR_RETURN(costs.out, ctx.arena().Allocate<float>(g.voxels()));
  INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, MeasureLeastResiduals, costs.images, costs.out));
  INTRAWARP_ASSIGN_OR_RETURN(const VolumeStatistics least, ComputeStatistics(ctx, {costs.out, g}));
  // The mean over the voxels that count; the others have 0.
  const double sum = least.mean * static_cast<double>(g.voxels()), count = images.fixed_masks[0].count;
  costs.scale = sum > 0 ? static_cast<float>(count / sum) : 0;
  costs.most = static_cast<float>(kMostResidual);
  INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, MakeLayerCosts, costs));
  // Memory that the costs no longer need holds the new share.
  const VolumeView split{warped[0], g};
  const Progress progress{task.index, 0, 1, 0, 0};
  INTRAWARP_ASSIGN_OR_RETURN(const Decision decision,
                             SplitRegions(ctx, {costs.out, g}, kBoundaryWeight, kSplitIterations, progress, split));
  if (decision == Decision::kStop) return decision;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(share.data, split.data, g.voxels() * sizeof(float), ctx.stream()));
  return Decision::kContinue;
}

absl::StatusOr<Geometry> MergedGrid(const Geometry& fixed) { return MakeControlGrid(fixed, fixed.spacing); }

struct Merged {
  Transform transform{AffineMap::Identity()};
  Decision decision = Decision::kContinue;
};

absl::StatusOr<Merged> Merge(const ExecContext& ctx, const StageTask& task, const Layers& layers,
                             ConstVolumeView share) {
  ArenaScope scope(ctx.arena());
  const Geometry& g = task.images.fixed->geometry();
  INTRAWARP_ASSIGN_OR_RETURN(const Geometry grid, MergedGrid(g));
  float* points[2];
  for (int layer : {0, 1}) {
    INTRAWARP_ASSIGN_OR_RETURN(points[layer], ctx.arena().Allocate<float>(3 * grid.voxels()));
    INTRAWARP_RETURN_IF_ERROR(ResampleControlGrid(ctx, layers.transform(layer).control_grid(), {points[layer], grid}));
  }
  // Each node reads only itself.
  const LayerMerge merge{points[0], points[1], share.data, g.size, grid.size, points[0]};
  INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, MergeLayers, merge));
  Merged merged;
  const Progress progress{task.index, 0, 1, kSlidingRounds, 0};
  INTRAWARP_ASSIGN_OR_RETURN(merged.decision, UnfoldGrid(ctx, {points[0], grid}, g, progress));
  INTRAWARP_ASSIGN_OR_RETURN(merged.transform, MakeGridTransform(ctx, task.start, {points[0], grid}, g));
  return merged;
}

struct Rounds {
  std::optional<Layers> layers;
  int count = 0;
  bool is_stopped = false;
};

// Layers and share of the last whole round; none where a layer has too little overlap.
absl::StatusOr<Rounds> RunRounds(const ExecContext& ctx, const StageTask& task, const FfdFunctions& ffd,
                                 VolumeView share) {
  Rounds rounds;
  while (rounds.count < kSlidingRounds) {
    Layers layers;
    for (int layer : {0, 1}) {
      absl::StatusOr<StageResult> stage = RunLayer(ctx, task, ffd, share.data, layer == 1);
      // Nothing slides where a layer has become too small.
      if (absl::IsFailedPrecondition(stage.status())) return Rounds();
      INTRAWARP_RETURN_IF_ERROR(stage.status());
      rounds.is_stopped = stage->report.stop_reason == StopReason::kBudget;
      if (rounds.is_stopped) return rounds;
      layers.stages[layer] = *std::move(stage);
    }
    INTRAWARP_ASSIGN_OR_RETURN(const Decision decision, AssignVoxels(ctx, task, layers, share));
    rounds.is_stopped = decision == Decision::kStop;
    if (rounds.is_stopped) return rounds;
    rounds.layers = std::move(layers);
    ++rounds.count;
  }
  return rounds;
}

StopReason StopReasonOf(const Rounds& rounds, Decision unfolding) {
  if (rounds.is_stopped || unfolding == Decision::kStop) return StopReason::kBudget;
  for (const StageResult& stage : rounds.layers->stages) {
    if (stage.report.stop_reason == StopReason::kIterationLimit) return StopReason::kIterationLimit;
  }
  return StopReason::kConverged;
}

// The part of the voxels that count which the second layer has.
absl::StatusOr<double> SecondLayerFraction(const ExecContext& ctx, const MaskLevel& whole, ConstVolumeView share) {
  ArenaScope scope(ctx.arena());
  const int64_t voxels = share.geometry.voxels();
  INTRAWARP_ASSIGN_OR_RETURN(auto* const mask, ctx.arena().Allocate<uint8_t>(voxels));
  INTRAWARP_ASSIGN_OR_RETURN(auto* const count, ctx.arena().Allocate<unsigned long long>(1));
  const LayerMask second{share.data, whole.mask.data, /*is_second=*/true, voxels, mask};
  const ConstMaskView of_second{mask, share.geometry};
  INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, MakeLayerMask, second));
  INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, CountMask, of_second, count));
  INTRAWARP_ASSIGN_OR_RETURN(const auto host, OnHost(ctx, count, 1));
  return static_cast<double>(host[0]) / static_cast<double>(whole.count);
}

// The result of ffd by itself, as one of this stage, which a budget may have ended meanwhile.
StageResult AsSliding(StageResult plain, bool is_stopped) {
  std::get<FfdOptions>(plain.report.options).sliding = true;
  plain.report.second_layer_fraction = 0;
  if (is_stopped) plain.report.stop_reason = StopReason::kBudget;
  plain.value.reset();
  return plain;
}

absl::StatusOr<StageResult> RunPlain(const ExecContext& ctx, const StageTask& task, const FfdFunctions& ffd) {
  const StageOptions options = PlainOptions(task);
  return ffd.run(ctx, {task.images, options, task.index, task.start, task.initial, task.effort});
}

}  // namespace

std::optional<std::vector<bool>> TwoGroups(absl::Span<const Vec3f> vectors, absl::Span<const float> weights,
                                           double least) {
  const auto square = [](Vec3d v) { return Dot(v, v); };
  const auto vector = [&](size_t i) { return Vec3d{vectors[i].x, vectors[i].y, vectors[i].z}; };
  double squares = 0, total = 0;
  for (size_t i = 0; i < vectors.size(); ++i) {
    squares += weights[i] * square(vector(i));
    total += weights[i];
  }
  std::vector<bool> second(vectors.size());
  for (size_t i = 0; i < vectors.size(); ++i) second[i] = total * square(vector(i)) > squares;
  for (int round = 0; round < kGroupingRounds; ++round) {
    Vec3d sum[2] = {};
    double weight[2] = {};
    for (size_t i = 0; i < vectors.size(); ++i) {
      sum[second[i]] = sum[second[i]] + double{weights[i]} * vector(i);
      weight[second[i]] += weights[i];
    }
    if (!(weight[0] > 0 && weight[1] > 0)) return std::nullopt;
    const Vec3d first = (1 / weight[0]) * sum[0], other = (1 / weight[1]) * sum[1];
    if (!(square(other - first) >= least * least)) return std::nullopt;
    for (size_t i = 0; i < vectors.size(); ++i) second[i] = square(vector(i) - other) < square(vector(i) - first);
  }
  return second;
}

absl::StatusOr<StageResult> RunSliding(const ExecContext& ctx, const StageTask& task, const FfdFunctions& ffd) {
  ArenaScope scope(ctx.arena());
  const Geometry& g = task.images.fixed->geometry();
  VolumeView share{nullptr, g};
  INTRAWARP_ASSIGN_OR_RETURN(share.data, ctx.arena().Allocate<float>(g.voxels()));

  const bool has_initial = task.initial != nullptr && task.initial->has_control_grid();
  std::optional<StageResult> plain;
  if (!has_initial) {
    INTRAWARP_ASSIGN_OR_RETURN(plain, RunPlain(ctx, task, ffd));
    if (plain->report.stop_reason == StopReason::kBudget) return AsSliding(*std::move(plain), /*is_stopped=*/true);
  }
  const Transform& before = has_initial ? *task.initial : plain->transform;
  INTRAWARP_ASSIGN_OR_RETURN(const bool slides, GroupVoxels(ctx, task.images, before.control_grid(), share));
  Rounds rounds;
  std::optional<double> value_before;
  if (slides) {
    INTRAWARP_ASSIGN_OR_RETURN(value_before, ffd.objective(ctx, task.images, task.options, before));
    INTRAWARP_ASSIGN_OR_RETURN(rounds, RunRounds(ctx, task, ffd, share));
  }
  double second = 0;
  if (rounds.layers.has_value()) {
    INTRAWARP_ASSIGN_OR_RETURN(second, SecondLayerFraction(ctx, task.images.fixed_masks[0], share));
  }
  // A layer may have become empty in the last round.
  if (!(second > 0 && second < 1)) {
    rounds.layers.reset();
    if (!plain.has_value()) {
      INTRAWARP_ASSIGN_OR_RETURN(plain, RunPlain(ctx, task, ffd));
    }
    return AsSliding(*std::move(plain), rounds.is_stopped);
  }
  // Its memory is free before the layers are merged (HeldBytes of ffd.cc).
  plain.reset();
  INTRAWARP_ASSIGN_OR_RETURN(Merged merged, Merge(ctx, task, *rounds.layers, share));
  StageResult result;
  result.report.options = rounds.layers->stages[0].report.options;
  std::get<FfdOptions>(result.report.options).sliding = true;
  result.report.stop_reason = StopReasonOf(rounds, merged.decision);
  result.report.second_layer_fraction = second;
  INTRAWARP_ASSIGN_OR_RETURN(result.value, ffd.objective(ctx, task.images, task.options, merged.transform));
  if (value_before.has_value() && result.value.has_value()) {
    result.report.levels.push_back({g.size, rounds.count, *value_before, *result.value});
  }
  result.transform = std::move(merged.transform);
  return result;
}

SlidingBytes SlidingWorkspaceBytes(const PreparedImage& fixed) {
  const Geometry& g = fixed.geometry();
  const absl::StatusOr<Geometry> grid = MergedGrid(g);
  if (!grid.ok()) return {};
  const auto floats = [](int64_t count) { return Arena::Rounded(count * sizeof(float)); };
  const int64_t share = floats(g.voxels());
  const int64_t grouping = floats(3 * GroupedGrid(fixed).voxels());
  const int64_t assigning =
      3 * floats(g.voxels()) + std::max<int64_t>(SplitRegionsWorkspaceBytes(g), StatisticsWorkspaceBytes(g));
  const int64_t merging = 2 * floats(3 * grid->voxels()) + std::max<int64_t>(ResampleControlGridWorkspaceBytes(*grid),
                                                                             SmoothFoldsWorkspaceBytes(*grid, g));
  return {share + std::max({grouping, assigning, merging}), share + MaskLevelsWorkspaceBytes(fixed)};
}

}  // namespace intrawarp
