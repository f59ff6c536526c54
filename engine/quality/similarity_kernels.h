// SPDX-License-Identifier: Apache-2.0
// The CPU and CUDA versions of MeasureSimilarity (similarity.h), and the per-voxel arithmetic that they share. Internal
// to this room. Partial results belong to pieces (tiles) of the fixed grid and are added in their order, so that a
// result depends on the grid only.
#ifndef INTRAWARP_ENGINE_QUALITY_SIMILARITY_KERNELS_H_
#define INTRAWARP_ENGINE_QUALITY_SIMILARITY_KERNELS_H_

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/image/sample.h"
#include "engine/image/volume.h"
#include "engine/transform/displacement.h"

namespace intrawarp {

inline constexpr int kHistogramBins = 64;
// Voxels in memory order that share one partial result.
inline constexpr int kPieceVoxels = 16384;
inline constexpr int64_t Pieces(int64_t voxels) { return (voxels + kPieceVoxels - 1) / kPieceVoxels; }

// The window of SSIM reaches this far from its centre, on each axis.
inline constexpr int kWindowRadius = 5;
inline constexpr int kWindowTaps = 2 * kWindowRadius + 1;
// The smallest tile of either device: the one that a partial result of SSIM is kept for, and workspace counted in.
inline constexpr int kTileX = 32, kTileY = 16, kTileZ = 32;
inline constexpr int64_t Tiles(Int3 size, int tile_x = kTileX) {
  return int64_t{(size.x + tile_x - 1) / tile_x} * ((size.y + kTileY - 1) / kTileY) * ((size.z + kTileZ - 1) / kTileZ);
}

// exp(-t^2 / (2 * 1.5^2)), for t in [-kWindowRadius, kWindowRadius].
INTRAWARP_HD constexpr float WindowWeight(int t) {
  const int a = t < 0 ? -t : t;
  return a == 0   ? 1.0f
         : a == 1 ? 0.80073740291680805f
         : a == 2 ? 0.41111229050718745f
         : a == 3 ? 0.13533528323661270f
         : a == 4 ? 0.02856550078455040f
                  : 0.00386592013947281f;
}

// The images that are compared, in device memory; masks may be null.
struct SimilarityInput {
  const float* fixed = nullptr;
  const float* moving = nullptr;
  const uint8_t* fixed_mask = nullptr;
  const uint8_t* moving_mask = nullptr;
  Int3 fixed_size;
  Int3 moving_size;
  // Fixed index to moving index.
  ForwardMap map;
  // Unless null: a vector at each fixed voxel, which `field_to_index` makes a difference that is added to the moving
  // index of `map`. It is T(p) - p with a control grid, and u(p) of a displacement on the fixed grid.
  const float* field = nullptr;
  AffineMap field_to_index;
  // The ranges of the whole images.
  double fixed_minimum = 0, moving_minimum = 0;
  double fixed_bins_per_unit = 0, moving_bins_per_unit = 0;
  // Subtracted before squares are summed, against cancellation.
  double fixed_shift = 0, moving_shift = 0;
  // Dynamic range of the fixed image; 0: there is no SSIM.
  double range = 0;
};

// Sums over the valid voxels; f and m are shifted.
struct SimilaritySums {
  int64_t selected = 0;
  int64_t valid = 0;
  double f = 0, m = 0, ff = 0, mm = 0, fm = 0, absolute = 0, squared = 0;
  float f_minimum = FLT_MAX, f_maximum = -FLT_MAX, m_minimum = FLT_MAX, m_maximum = -FLT_MAX;

  INTRAWARP_HD void Add(const SimilaritySums& o) {
    selected += o.selected;
    valid += o.valid;
    f += o.f;
    m += o.m;
    ff += o.ff;
    mm += o.mm;
    fm += o.fm;
    absolute += o.absolute;
    squared += o.squared;
    f_minimum = fminf(f_minimum, o.f_minimum);
    f_maximum = fmaxf(f_maximum, o.f_maximum);
    m_minimum = fminf(m_minimum, o.m_minimum);
    m_maximum = fmaxf(m_maximum, o.m_maximum);
  }
};

struct SimilarityTotals {
  SimilaritySums sums;
  // Sum over the valid voxels.
  double ssim = 0;
  // Row: bin of the fixed image; column: of the moving image.
  unsigned long long histogram[kHistogramBins * kHistogramBins] = {};
};

INTRAWARP_HD inline int HistogramBin(float value, double minimum, double bins_per_unit) {
  const int bin = static_cast<int>((static_cast<double>(value) - minimum) * bins_per_unit);
  return bin < 0 ? 0 : bin < kHistogramBins ? bin : kHistogramBins - 1;
}

// The moving image at a fixed voxel; NaN where there is no source or the moving mask (nearest voxel) does not allow it.
INTRAWARP_HD inline float WarpedValue(const SimilarityInput& in, int64_t place, Int3 voxel) {
  Vec3d mapped;
  in.map(ToVec3d(voxel), &mapped);
  if (in.field != nullptr) {
    const float* d = in.field + 3 * place;
    mapped = mapped + in.field_to_index.Linear({d[0], d[1], d[2]});
  }
  const Vec3f index = ToVec3f(mapped);
  if (!IsInside(in.moving_size, index)) return NAN;
  if (in.moving_mask != nullptr && in.moving_mask[NearestOffset(in.moving_size, index)] == 0) return NAN;
  return SampleLinear(in.moving, in.moving_size, index);
}

// Adds one fixed voxel to the sums; gives its warped value (NaN: not valid) and its bin of the joint histogram (or -1).
INTRAWARP_HD inline void Compare(const SimilarityInput& in, int64_t place, Int3 voxel, SimilaritySums* sums,
                                 float* warped, int* bin) {
  *warped = NAN;
  *bin = -1;
  if (in.fixed_mask != nullptr && in.fixed_mask[place] == 0) return;
  ++sums->selected;
  const float m = WarpedValue(in, place, voxel);
  // NaN: not valid.
  if (!(m == m)) return;
  const float f = in.fixed[place];
  *warped = m;
  *bin = HistogramBin(f, in.fixed_minimum, in.fixed_bins_per_unit) * kHistogramBins +
         HistogramBin(m, in.moving_minimum, in.moving_bins_per_unit);
  const double a = f - in.fixed_shift, b = m - in.moving_shift, d = static_cast<double>(f) - m;
  ++sums->valid;
  sums->f += a;
  sums->m += b;
  sums->ff += a * a;
  sums->mm += b * b;
  sums->fm += a * b;
  sums->absolute += fabs(d);
  sums->squared += d * d;
  sums->f_minimum = fminf(sums->f_minimum, f);
  sums->f_maximum = fmaxf(sums->f_maximum, f);
  sums->m_minimum = fminf(sums->m_minimum, m);
  sums->m_maximum = fmaxf(sums->m_maximum, m);
}

// Intensities as SSIM takes them: (value - shift) / range of the fixed image, so that its constants are those of a
// range of 1; `mean` is the shift in the same unit.
struct SsimScale {
  float inverse_range = 0;
  float fixed_shift = 0, moving_shift = 0;
  float fixed_mean = 0, moving_mean = 0;
};

INTRAWARP_HD inline SsimScale MakeSsimScale(const SimilarityInput& in) {
  SsimScale s;
  s.inverse_range = static_cast<float>(1 / in.range);
  s.fixed_shift = static_cast<float>(in.fixed_shift);
  s.moving_shift = static_cast<float>(in.moving_shift);
  s.fixed_mean = static_cast<float>(s.fixed_shift / in.range);
  s.moving_mean = static_cast<float>(s.moving_shift / in.range);
  return s;
}

// The channels that the window sums: validity v, then v f, v m, v f^2, v m^2, v f m.
inline constexpr int kSsimChannels = 6;

// SSIM at one voxel (Wang et al. 2004, eq. 13) from the windowed sums around it, with f and m scaled as above.
INTRAWARP_HD inline float Ssim(const SsimScale& scale, const float sums[kSsimChannels]) {
  constexpr float kC1 = 0.01f * 0.01f, kC2 = 0.03f * 0.03f;
  const float w = 1 / sums[0], f = w * sums[1], m = w * sums[2];
  const float ff = fmaxf(w * sums[3] - f * f, 0.0f), mm = fmaxf(w * sums[4] - m * m, 0.0f);
  // Rounding must not take the covariance beyond what Cauchy and Schwarz allow.
  const float limit = sqrtf(ff) * sqrtf(mm), fm = fminf(fmaxf(w * sums[5] - f * m, -limit), limit);
  const float mean_f = f + scale.fixed_mean, mean_m = m + scale.moving_mean;
  return (2 * mean_f * mean_m + kC1) * (2 * fm + kC2) / ((mean_f * mean_f + mean_m * mean_m + kC1) * (ff + mm + kC2));
}

// Workspace of MeasureSimilarity, in device memory.
struct SimilarityWorkspace {
  // One a fixed voxel; NaN where it is not valid.
  float* warped = nullptr;
  // One a piece.
  SimilaritySums* sums = nullptr;
  // One a tile.
  double* ssim = nullptr;
  SimilarityTotals* totals = nullptr;
};

// Fills workspace.totals. Stream-ordered.
INTRAWARP_DECLARE_ON_DEVICES(absl::Status SumSimilarity(const ExecContext& ctx, const SimilarityInput& in,
                                                        const SimilarityWorkspace& workspace);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_QUALITY_SIMILARITY_KERNELS_H_
