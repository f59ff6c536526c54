// SPDX-License-Identifier: Apache-2.0
// The ways of Zachariadis (2020, chapter 2) to make a deformation field from control points, written after the thesis's
// descriptions, for comparison.
//
// Each Make* takes control points in device memory and returns a run; calling the run makes the field once
// (on CUDA: enqueues it). A texture is made beforehand and is not part of a run. Volumes have any size, tiles kMinTile
// to kMaxTile voxels. `control` and `out` outlive the run.
#ifndef INTRAWARP_TESTS_BENCH_BASELINES_BSPLINE_VARIANTS_H_
#define INTRAWARP_TESTS_BENCH_BASELINES_BSPLINE_VARIANTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "tests/bench/baselines/bspline_tiles.h"
#include "tests/bench/baselines/field_error.h"
#include "tests/bench/baselines/timing.h"

namespace intrawarp::baselines {

struct Variant {
  const char* name;
  double paper_error;  // Zachariadis (2020), table 2.2 or 2.3, in 1e-6 of the control points' unit
  double tolerance;    // largest error allowed for control points in (-10, 10)
  absl::StatusOr<Work> (*make)(const ExecContext& ctx, const TiledVolume& volume, const Float4* control, float* out);
};

// The variants for the context's device. `out`: float4 a voxel on CUDA as NiftyReg's; on the CPU three planes, as
// NiftyReg's.
std::vector<Variant> Variants(const ExecContext& ctx);
FieldLayout LayoutOf(const ExecContext& ctx, const TiledVolume& volume);
inline int64_t FieldFloats(const ExecContext& ctx, const TiledVolume& v) {
  return v.voxels() * (ctx.is_cuda() ? 4 : 3);
}

// The product's EvaluateControlGrid on the same grid: 12 bytes a voxel, x y z interleaved. Control points in host
// memory.
absl::StatusOr<Work> MakeProduction(const ExecContext& ctx, const TiledVolume& volume,
                                    const std::vector<Float4>& control, float* out);

namespace cpu {
// VT: the voxels of a row of a tile are the lanes of a vector; 63 linear interpolations each (section 2.5.5).
absl::StatusOr<Work> MakeVectorPerTile(const ExecContext& ctx, const TiledVolume& volume, const Float4* control,
                                       float* out);
// VV: the eight sub-cubes of a voxel are the lanes of a vector (section 2.5.5).
absl::StatusOr<Work> MakeVectorPerVoxel(const ExecContext& ctx, const TiledVolume& volume, const Float4* control,
                                        float* out);
}  // namespace cpu

namespace cuda {
// TV: a thread makes a voxel, weights on the fly, 64 fetches through the texture path (NiftyReg's kernel without mask).
absl::StatusOr<Work> MakeThreadPerVoxel(const ExecContext& ctx, const TiledVolume& volume, const Float4* control,
                                        float* out);
// TV-tiling: a block makes a tile, a thread a voxel, control points and weights in shared memory (Ellingwood et al.).
absl::StatusOr<Work> MakeThreadPerVoxelTiling(const ExecContext& ctx, const TiledVolume& volume, const Float4* control,
                                              float* out);
// TH: a thread makes a voxel of 8 trilinear fetches of the texture unit (Sigg and Hadwiger; Ruijters et al.).
absl::StatusOr<Work> MakeTextureHardware(const ExecContext& ctx, const TiledVolume& volume, const Float4* control,
                                         float* out);
// TT: a thread makes a tile, its 64 control points in registers, weighted sums; blocks of 4 x 4 x 4 tiles (2.5.2).
absl::StatusOr<Work> MakeThreadPerTile(const ExecContext& ctx, const TiledVolume& volume, const Float4* control,
                                       float* out);
// TTLI: TT with 63 linear interpolations, a quarter of the control points in shared memory (2.5.3).
absl::StatusOr<Work> MakeThreadPerTileLerp(const ExecContext& ctx, const TiledVolume& volume, const Float4* control,
                                           float* out);
}  // namespace cuda

}  // namespace intrawarp::baselines

#endif  // INTRAWARP_TESTS_BENCH_BASELINES_BSPLINE_VARIANTS_H_
