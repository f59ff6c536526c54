// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/methods/search.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/metric/soft_mask.h"
#include "engine/registration/methods/grid_result.h"
#include "engine/search/discrete_search.h"
#include "engine/search/feature_grids.h"
#include "engine/search/node_field.h"
#include "engine/search/node_pulls.h"
#include "engine/transform/fold_smoothing.h"

namespace intrawarp {
namespace {

constexpr int kConsistencyRounds = 15;

const SearchOptions& OptionsOf(const StageOptions& stage) { return std::get<SearchOptions>(stage); }

absl::StatusOr<SearchLayout> LayOut(const Geometry& fixed, const SearchOptions& options) {
  return LayOutSearch(fixed, options.node_mm, options.range_mm);
}

size_t FieldBytes(const SearchLayout& layout) { return 3 * sizeof(float) * layout.nodes.voxels(); }

// The pooled descriptors of both images, in the arena, with the weights of nodes where masks have weights.
struct DescribedPair {
  PooledDescriptor* fixed = nullptr;
  PooledDescriptor* moving = nullptr;
  uint8_t* fixed_weights = nullptr;
  uint8_t* moving_weights = nullptr;
};

absl::StatusOr<DescribedPair> Describe(const ExecContext& ctx, const RegistrationImages& images,
                                       const SearchLayout& layout, const Transform& transform) {
  DescribedPair pair;
  INTRAWARP_ASSIGN_OR_RETURN(pair.fixed, ctx.arena().Allocate<PooledDescriptor>(layout.nodes.voxels()));
  INTRAWARP_ASSIGN_OR_RETURN(pair.moving, ctx.arena().Allocate<PooledDescriptor>(layout.nodes.voxels()));
  const ConstMaskView &fixed_mask = images.fixed_masks[0].mask, &moving_mask = images.moving_masks[0].mask;
  if (IsSoft(fixed_mask)) {
    INTRAWARP_ASSIGN_OR_RETURN(pair.fixed_weights, ctx.arena().Allocate<uint8_t>(layout.nodes.voxels()));
  }
  if (IsSoft(moving_mask)) {
    INTRAWARP_ASSIGN_OR_RETURN(pair.moving_weights, ctx.arena().Allocate<uint8_t>(layout.nodes.voxels()));
  }
  INTRAWARP_RETURN_IF_ERROR(DescribeNodes(ctx, *images.fixed, fixed_mask, Transform(AffineMap::Identity()), layout,
                                          pair.fixed, pair.fixed_weights));
  INTRAWARP_RETURN_IF_ERROR(
      DescribeNodes(ctx, *images.moving, moving_mask, transform, layout, pair.moving, pair.moving_weights));
  return pair;
}

template <typename T>
absl::StatusOr<std::vector<T>> OnHost(const ExecContext& ctx, const T* nodes, int64_t count) {
  std::vector<T> host(count);
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(host.data(), nodes, count * sizeof(T), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return host;
}

int64_t SquaredDistance(const PooledDescriptor& a, const PooledDescriptor& b) {
  int64_t sum = 0;
  for (int c = 0; c < kDescriptorChannels; ++c) {
    const int difference = a.channel[c] - b.channel[c];
    sum += difference * difference;
  }
  return sum;
}

// The weights of nodes, or 1 for each.
absl::StatusOr<std::vector<uint8_t>> WeightsOnHost(const ExecContext& ctx, const uint8_t* weights, int64_t count) {
  if (weights == nullptr) return std::vector<uint8_t>(count, 1);
  return OnHost(ctx, weights, count);
}

// The objective of descriptors of both images at the same nodes, by their weights; absent without a node that has both.
absl::StatusOr<std::optional<double>> MeanDistance(const ExecContext& ctx, const DescribedPair& pair, int64_t nodes) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<PooledDescriptor> fixed, OnHost(ctx, pair.fixed, nodes));
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<PooledDescriptor> moving, OnHost(ctx, pair.moving, nodes));
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<uint8_t> of_fixed, WeightsOnHost(ctx, pair.fixed_weights, nodes));
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<uint8_t> of_moving, WeightsOnHost(ctx, pair.moving_weights, nodes));
  int64_t sum = 0, weights = 0;
  for (int64_t i = 0; i < nodes; ++i) {
    if (fixed[i].squares == 0 || moving[i].squares == 0) continue;
    const int64_t weight = int64_t{of_fixed[i]} * of_moving[i];
    sum += weight * SquaredDistance(fixed[i], moving[i]);
    weights += weight;
  }
  if (weights == 0) return std::nullopt;
  return static_cast<double>(sum) / (255.0 * 255.0) / static_cast<double>(weights);
}

absl::StatusOr<std::optional<double>> Objective(const ExecContext& ctx, const RegistrationImages& images,
                                                const StageOptions& stage, const Transform& transform) {
  INTRAWARP_ASSIGN_OR_RETURN(const SearchLayout layout, LayOut(images.fixed->geometry(), OptionsOf(stage)));
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const DescribedPair pair, Describe(ctx, images, layout, transform));
  return MeanDistance(ctx, pair, layout.nodes.voxels());
}

// The pulls of the landmarks on the search: from fixed to moving nodes, the moving ones before the affine part, or
// back.
NodePulls PullsOf(absl::Span<const Landmark> landmarks, const AffineMap& start, const SearchLayout& layout,
                  bool is_forward) {
  const AffineMap to_nodes = PhysicalToIndex(layout.nodes), from_moving = Compose(to_nodes, Inverse(start));
  std::vector<NodeLandmark> pairs;
  for (const Landmark& landmark : landmarks) {
    const Vec3d fixed = to_nodes(landmark.fixed), moving = from_moving(landmark.moving);
    pairs.push_back(is_forward ? NodeLandmark{fixed, moving, landmark.sigma_mm}
                               : NodeLandmark{moving, fixed, landmark.sigma_mm});
  }
  return MakeNodePulls(pairs, layout.nodes, layout.reach);
}

// Writes the displacements of the nodes to `forward`; zeros where the decision, which is the last checkpoint's, is
// kStop.
absl::StatusOr<Decision> SearchNodes(const ExecContext& ctx, const StageTask& task, const DescribedPair& pair,
                                     const SearchLayout& layout, const Progress& progress, float* forward) {
  ArenaScope scope(ctx.arena());
  const Int3 size = layout.nodes.size;
  INTRAWARP_ASSIGN_OR_RETURN(float* const backward, ctx.arena().Allocate<float>(3 * layout.nodes.voxels()));
  for (const bool is_forward : {true, false}) {
    const Decision decision = ctx.Checkpoint(progress);
    if (decision == Decision::kCancel) return absl::CancelledError("cancelled");
    if (decision == Decision::kStop) {
      INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(forward, 0, FieldBytes(layout), ctx.stream()));
      return decision;
    }
    const PooledDescriptor *from = is_forward ? pair.fixed : pair.moving, *to = is_forward ? pair.moving : pair.fixed;
    const NodePulls pulls = PullsOf(task.images.landmarks, task.start, layout, is_forward);
    const NodeWeights weights = is_forward ? NodeWeights{pair.fixed_weights, pair.moving_weights}
                                           : NodeWeights{pair.moving_weights, pair.fixed_weights};
    INTRAWARP_RETURN_IF_ERROR(
        SearchDisplacements(ctx, from, to, size, layout.reach, is_forward ? forward : backward, pulls, weights));
  }
  INTRAWARP_RETURN_IF_ERROR(MakeConsistent(ctx, size, kConsistencyRounds, forward, backward));
  return Decision::kContinue;
}

absl::StatusOr<StageResult> Run(const ExecContext& ctx, const StageTask& task) {
  const Geometry& domain = task.images.fixed->geometry();
  INTRAWARP_ASSIGN_OR_RETURN(const SearchLayout layout, LayOut(domain, OptionsOf(task.options)));
  ArenaScope scope(ctx.arena());
  StageResult result;
  result.report.options = task.options;
  INTRAWARP_ASSIGN_OR_RETURN(const DescribedPair pair, Describe(ctx, task.images, layout, Transform(task.start)));
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<double> before, MeanDistance(ctx, pair, layout.nodes.voxels()));
  if (!before.has_value()) return TooLittleOverlap();

  INTRAWARP_ASSIGN_OR_RETURN(float* const field, ctx.arena().Allocate<float>(3 * layout.nodes.voxels()));
  Progress progress{task.index, 0, 1, 0, *before};
  INTRAWARP_ASSIGN_OR_RETURN(Decision decision, SearchNodes(ctx, task, pair, layout, progress, field));
  FieldView grid{nullptr, ControlGridOfNodes(layout.nodes)};
  INTRAWARP_ASSIGN_OR_RETURN(grid.data, ctx.arena().Allocate<float>(3 * grid.geometry.voxels()));
  INTRAWARP_RETURN_IF_ERROR(ToControlGrid(ctx, field, layout.nodes, grid));
  if (decision == Decision::kContinue) {
    progress.iteration = static_cast<int>(std::size(kCouplings));
    INTRAWARP_ASSIGN_OR_RETURN(decision, UnfoldGrid(ctx, grid, domain, progress));
  }
  INTRAWARP_ASSIGN_OR_RETURN(result.transform, MakeGridTransform(ctx, task.start, grid, domain));
  INTRAWARP_RETURN_IF_ERROR(DescribeNodes(ctx, *task.images.moving, task.images.moving_masks[0].mask, result.transform,
                                          layout, pair.moving, pair.moving_weights));
  INTRAWARP_ASSIGN_OR_RETURN(result.value, MeanDistance(ctx, pair, layout.nodes.voxels()));
  result.report.stop_reason = decision == Decision::kStop ? StopReason::kBudget : StopReason::kConverged;
  result.report.levels.push_back({layout.nodes.size, progress.iteration, *before, result.value.value_or(*before)});
  return result;
}

absl::Status Validate(const StageOptions& stage, const Geometry& fixed) {
  return LayOut(fixed, OptionsOf(stage)).status();
}

// The sides of nodes that are not cubic differ by less than half of one.
StageOptions ResolvedStage(const StageOptions& stage, const Geometry& fixed) {
  SearchOptions options = OptionsOf(stage);
  const absl::StatusOr<SearchLayout> layout = LayOut(fixed, options);
  if (!layout.ok()) return options;
  const Geometry& nodes = layout->nodes;
  if (!options.node_mm) options.node_mm = nodes.spacing.x;
  if (!options.range_mm) options.range_mm = layout->reach.x * nodes.spacing.x;
  return options;
}

// With the weights that masks can have.
int64_t PairBytes(const SearchLayout& layout) {
  const int64_t nodes = layout.nodes.voxels();
  return 2 * Arena::Rounded(nodes * sizeof(PooledDescriptor)) + 2 * Arena::Rounded(nodes);
}

int64_t GridBytes(const SearchLayout& layout) {
  return 3 * static_cast<int64_t>(sizeof(float)) * ControlGridOfNodes(layout.nodes).voxels();
}

int64_t WorkspaceBytes(const Device&, const PreparedImage& fixed, const PreparedImage&, const StageOptions& stage) {
  const absl::StatusOr<SearchLayout> layout = LayOut(fixed.geometry(), OptionsOf(stage));
  if (!layout.ok()) return 0;
  const int64_t field = Arena::Rounded(FieldBytes(*layout));
  const int64_t describe = DescribeNodesWorkspaceBytes(*layout);
  const int64_t search = field + std::max(DiscreteSearchWorkspaceBytes(layout->nodes.size, layout->reach),
                                          MakeConsistentWorkspaceBytes(layout->nodes.size));
  const Geometry grid = ControlGridOfNodes(layout->nodes);
  const int64_t finish = Arena::Rounded(GridBytes(*layout)) +
                         std::max<int64_t>(SmoothFoldsWorkspaceBytes(grid, fixed.geometry()), describe);
  return PairBytes(*layout) + field + std::max({describe, search, finish});
}

int64_t CoarseBytes(const PreparedImage&, const StageOptions&) { return 0; }

int64_t ResultBytes(const Geometry& fixed, const StageOptions& stage) {
  const absl::StatusOr<SearchLayout> layout = LayOut(fixed, OptionsOf(stage));
  return layout.ok() ? GridBytes(*layout) : 0;
}

// Only the affine part is used.
bool StartsFrom(const Transform&) { return true; }

}  // namespace

constinit const Method kSearchMethod = {.name = "search",
                                        .is_deformable = true,
                                        .unset = SearchOptions{},
                                        .starts_from = StartsFrom,
                                        .validate = Validate,
                                        .resolved = ResolvedStage,
                                        .workspace_bytes = WorkspaceBytes,
                                        .coarse_bytes = CoarseBytes,
                                        .result_bytes = ResultBytes,
                                        .held_bytes = ResultBytes,
                                        .run = Run,
                                        .objective = Objective};

}  // namespace intrawarp
