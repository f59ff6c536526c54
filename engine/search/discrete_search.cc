// SPDX-License-Identifier: Apache-2.0
#include "engine/search/discrete_search.h"

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/search/discrete_search_kernels.h"

namespace intrawarp {
namespace {

int64_t Nodes(Int3 size) { return int64_t{size.x} * size.y * size.z; }

// A whole vector may be written beyond the last node.
int64_t Stride(Int3 size) { return (Nodes(size) / kCostAlignment + 2) * kCostAlignment; }

absl::Status ValidateReach(Int3 size, Int3 reach) {
  for (int a = 0; a < 3; ++a) {
    const int most = size[a] == 1 ? 0 : kMostReach;
    if (reach[a] >= 0 && reach[a] <= most) continue;
    return FieldError(absl::StatusCode::kInvalidArgument, "reach",
                      absl::StrCat(reach[a], " on axis ", a, ", must be 0 to ", most));
  }
  return absl::OkStatus();
}

absl::Status Pull(const ExecContext& ctx, const DiscreteSearch& search, const NodePulls& pulls) {
  if (pulls.empty()) return absl::OkStatus();
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(NodePull* const on_device, ctx.arena().Allocate<NodePull>(pulls.size()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(on_device, pulls.data(), pulls.size() * sizeof(NodePull), ctx.stream()));
  const PulledCosts pulled{on_device, static_cast<int>(pulls.size())};
  INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, PullCosts, search, pulled));
  return ctx.device().Synchronize(ctx.stream());
}

}  // namespace

absl::Status SearchDisplacements(const ExecContext& ctx, const PooledDescriptor* fixed, const PooledDescriptor* moving,
                                 Int3 size, Int3 reach, float* displacement, const NodePulls& pulls,
                                 const NodeWeights& weights) {
  INTRAWARP_RETURN_IF_ERROR(ValidateReach(size, reach));
  ArenaScope scope(ctx.arena());
  DiscreteSearch search{.fixed = fixed, .moving = moving, .size = size, .reach = reach, .displacement = displacement};
  search.weights = weights;
  search.stride = Stride(size);
  INTRAWARP_ASSIGN_OR_RETURN(search.costs, ctx.arena().Allocate<uint16_t>(search.stride * LabelCount(reach)));
  INTRAWARP_ASSIGN_OR_RETURN(search.best, ctx.arena().Allocate<int32_t>(search.stride));
  INTRAWARP_ASSIGN_OR_RETURN(search.u, ctx.arena().Allocate<int32_t>(3 * search.stride));
  INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, ComputeCosts, search));
  INTRAWARP_RETURN_IF_ERROR(Pull(ctx, search, pulls));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(search.u, 0, 3 * search.stride * sizeof(int32_t), ctx.stream()));
  for (const int coupling : kCouplings) {
    INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, CoupledStep, search, coupling));
  }
  return INTRAWARP_DISPATCH(ctx, WriteDisplacements, search);
}

int64_t DiscreteSearchWorkspaceBytes(Int3 size, Int3 reach) {
  const int64_t stride = Stride(size);
  return Arena::Rounded(stride * LabelCount(reach) * sizeof(uint16_t)) + Arena::Rounded(stride * sizeof(int32_t)) +
         Arena::Rounded(3 * stride * sizeof(int32_t));
}

}  // namespace intrawarp
