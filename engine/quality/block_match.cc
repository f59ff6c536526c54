// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/block_match.h"

#include "engine/base/status_macros.h"
#include "engine/quality/block_match_kernels.h"

namespace intrawarp {

absl::Status MatchBlocks(const ExecContext& ctx, const DescriptorVolume& fixed, const DescriptorVolume& moving,
                         Int3 size, BlockMatch* out) {
  ArenaScope scope(ctx.arena());
  BlockMatchInput in{fixed, moving, size, BlockCounts(size), nullptr};
  INTRAWARP_ASSIGN_OR_RETURN(in.costs, ctx.arena().Allocate<float>(BlockCount(size) * kSearchCount));
  return INTRAWARP_DISPATCH(ctx, MatchBlocks, in, out);
}

size_t MatchBlocksWorkspaceBytes(Int3 size) { return Arena::Rounded(BlockCount(size) * kSearchCount * sizeof(float)); }

}  // namespace intrawarp
