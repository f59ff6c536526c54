// SPDX-License-Identifier: Apache-2.0
#include "engine/search/feature_grids.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/feature/node_grid.h"
#include "engine/feature/sampled_image.h"
#include "engine/search/discrete_search.h"

namespace intrawarp {
namespace {

constexpr int kNeighbourDistance = 2;

absl::Status Invalid(const char* field, const std::string& text) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, text);
}

absl::Status ValidateLength(const char* field, std::optional<double> mm) {
  if (!mm || (*mm > 0 && std::isfinite(*mm))) return absl::OkStatus();
  return Invalid(field, absl::StrCat(*mm, ", must be finite and above 0"));
}

double Extent(const Geometry& g, int axis) { return g.size[axis] * g.spacing[axis]; }

// Nodes of about `side` mm.
Int3 CountsOf(const Geometry& fixed, double side) {
  Int3 counts{1, 1, 1};
  for (int a = 0; a < (fixed.is_2d() ? 2 : 3); ++a) {
    counts[a] = static_cast<int>(std::clamp(std::round(Extent(fixed, a) / side), 1.0, double{kMaxAxis}));
  }
  return counts;
}

}  // namespace

absl::StatusOr<SearchLayout> LayOutSearch(const Geometry& fixed, std::optional<double> node_mm,
                                          std::optional<double> range_mm) {
  INTRAWARP_RETURN_IF_ERROR(ValidateLength("node_mm", node_mm));
  INTRAWARP_RETURN_IF_ERROR(ValidateLength("range_mm", range_mm));
  SearchLayout layout;
  const int64_t wanted = fixed.is_2d() ? kSearchNodes2d : kSearchNodes;
  layout.nodes = Divided(fixed, node_mm ? CountsOf(fixed, *node_mm) : CubicCounts(fixed, wanted));
  if (layout.nodes.voxels() > kMostSearchNodes) {
    return Invalid("node_mm", absl::StrCat(*node_mm, ", gives ", layout.nodes.voxels(), " nodes, must give ",
                                           kMostSearchNodes, " at most"));
  }
  const int most = range_mm ? kMostReach : kDefaultReach;
  Int3 voxels{};
  for (int a = 0; a < 3; ++a) {
    const double side = layout.nodes.spacing[a], reach = std::ceil(range_mm.value_or(kDefaultRangeMm) / side - 1e-9);
    if (range_mm && layout.nodes.size[a] > 1 && reach > kMostReach) {
      return Invalid("range_mm", absl::StrCat(*range_mm, ", is ", reach, " nodes of ", side, " mm, must be ",
                                              kMostReach, " at most"));
    }
    layout.reach[a] = layout.nodes.size[a] == 1 ? 0 : static_cast<int>(std::min<double>(reach, most));
    layout.block[a] = static_cast<int>(std::clamp(std::round(side / fixed.spacing[a]), 1.0, double{kMostBlock}));
    voxels[a] = layout.nodes.size[a] * layout.block[a];
  }
  layout.voxels = Divided(fixed, voxels);
  return layout;
}

absl::Status DescribeNodes(const ExecContext& ctx, const PreparedImage& image, ConstMaskView mask,
                           const Transform& transform, const SearchLayout& layout, PooledDescriptor* out,
                           uint8_t* weights) {
  ArenaScope scope(ctx.arena());
  const int64_t voxels = layout.voxels.voxels();
  INTRAWARP_ASSIGN_OR_RETURN(float* const values, ctx.arena().Allocate<float>(voxels));
  INTRAWARP_ASSIGN_OR_RETURN(uint8_t* const valid, ctx.arena().Allocate<uint8_t>(voxels));
  INTRAWARP_ASSIGN_OR_RETURN(Descriptor* const descriptors, ctx.arena().Allocate<Descriptor>(voxels));
  INTRAWARP_ASSIGN_OR_RETURN(float* const noise, ctx.arena().Allocate<float>(1));
  INTRAWARP_RETURN_IF_ERROR(SampleImage(ctx, image, mask, transform, layout.voxels, values, valid));
  INTRAWARP_RETURN_IF_ERROR(ComputeDescriptors(ctx, {values, layout.voxels}, valid, kNeighbourDistance,
                                               DescriptorFloor(image.statistics().stddev), descriptors, noise));
  return PoolDescriptors(ctx, descriptors, valid, layout.nodes.size, layout.block, out, weights);
}

int64_t DescribeNodesWorkspaceBytes(const SearchLayout& layout) {
  const int64_t voxels = layout.voxels.voxels();
  return Arena::Rounded(voxels * sizeof(float)) + Arena::Rounded(voxels) + Arena::Rounded(voxels * sizeof(Descriptor)) +
         Arena::Rounded(sizeof(float)) + static_cast<int64_t>(DescriptorWorkspaceBytes(layout.voxels));
}

}  // namespace intrawarp
