// SPDX-License-Identifier: Apache-2.0
#include "engine/search/node_field.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/search/node_field_kernels.h"

namespace intrawarp {
namespace {

int64_t Floats(Int3 size) { return int64_t{3} * size.x * size.y * size.z; }

}  // namespace

absl::Status MakeConsistent(const ExecContext& ctx, Int3 size, int rounds, float* forward, float* backward) {
  ArenaScope scope(ctx.arena());
  ConsistencyRound round{size, forward, backward, nullptr, nullptr};
  INTRAWARP_ASSIGN_OR_RETURN(round.next_forward, ctx.arena().Allocate<float>(Floats(size)));
  INTRAWARP_ASSIGN_OR_RETURN(round.next_backward, ctx.arena().Allocate<float>(Floats(size)));
  float *here[2] = {forward, backward}, *there[2] = {round.next_forward, round.next_backward};
  for (int i = 0; i < rounds; ++i) {
    round = {size, here[0], here[1], there[0], there[1]};
    INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, RunConsistencyRound, round));
    std::swap(here, there);
  }
  if (here[0] == forward) return absl::OkStatus();
  const size_t bytes = Floats(size) * sizeof(float);
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(forward, here[0], bytes, ctx.stream()));
  return ctx.device().Copy(backward, here[1], bytes, ctx.stream());
}

int64_t MakeConsistentWorkspaceBytes(Int3 size) { return 2 * Arena::Rounded(Floats(size) * sizeof(float)); }

Geometry ControlGridOfNodes(const Geometry& nodes) {
  Geometry grid = nodes;
  Vec3d first{};
  for (int a = 0; a < 3; ++a) {
    if (nodes.size[a] == 1) continue;
    grid.size[a] += 2 * kControlPointsBeyond;
    first[a] = -kControlPointsBeyond;
  }
  grid.origin = IndexToPhysical(nodes)(first);
  return grid;
}

absl::Status ToControlGrid(const ExecContext& ctx, const float* field, const Geometry& nodes, FieldView grid) {
  const ControlGridTask task{field, nodes.size, grid.geometry.size, IndexToPhysical(nodes), grid.data};
  return INTRAWARP_DISPATCH(ctx, ToControlGrid, task);
}

}  // namespace intrawarp
