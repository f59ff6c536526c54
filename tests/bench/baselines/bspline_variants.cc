// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/baselines/bspline_variants.h"

namespace intrawarp::baselines {

// Tolerances: float32 sums of 64 values below 10 stay under 1e-5. TV computes its weights in float32 from x / tile, so
// that their error grows with x. The texture unit rounds a weight to 8 bits, by up to 1/512 of a difference of up to 20
// along each of three axes.
std::vector<Variant> Variants(const ExecContext& ctx) {
#if INTRAWARP_WITH_CUDA
  if (ctx.is_cuda()) {
    return {{"TV (NiftyReg)", 5.3, 5e-4, cuda::MakeThreadPerVoxel},
            {"TH", 9245, 0.12, cuda::MakeTextureHardware},
            {"TV-tiling", 5.5, 1e-5, cuda::MakeThreadPerVoxelTiling},
            {"TT", 5.6, 1e-5, cuda::MakeThreadPerTile},
            {"TTLI", 2.8, 1e-5, cuda::MakeThreadPerTileLerp}};
  }
#endif
  (void)ctx;
  return {{"VT", 3.0, 1e-5, cpu::MakeVectorPerTile}, {"VV", 3.0, 1e-5, cpu::MakeVectorPerVoxel}};
}

FieldLayout LayoutOf(const ExecContext& ctx, const TiledVolume& volume) {
  return ctx.is_cuda() ? InterleavedLayout(4) : PlanarLayout(volume.size);
}

}  // namespace intrawarp::baselines
