// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/similarity.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/quality/similarity_kernels.h"

namespace intrawarp {
namespace {

absl::Status ValidateMask(const char* name, ConstMaskView mask, const Geometry& image) {
  if (mask.data == nullptr || SameGrid(mask.geometry, image)) return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, name,
                    absl::StrCat("its grid (", SizeString(mask.geometry), ") is not the grid of its image (",
                                 SizeString(image), ")"));
}

double BinsPerUnit(const VolumeStatistics& s) {
  const double range = static_cast<double>(s.maximum) - s.minimum;
  return range > 0 ? kHistogramBins / range : 0;
}

SimilarityInput MakeInput(const PreparedImage& fixed, const PreparedImage& moving, ConstMaskView fixed_mask,
                          ConstMaskView moving_mask, const Transform& transform) {
  SimilarityInput in;
  in.fixed = fixed.volume().data;
  in.moving = moving.volume().data;
  in.fixed_mask = fixed_mask.data;
  in.moving_mask = moving_mask.data;
  in.fixed_size = fixed.geometry().size;
  in.moving_size = moving.geometry().size;
  const AffineMap to_moving = PhysicalToIndex(moving.geometry());
  const AffineMap to_physical = IndexToPhysical(fixed.geometry());
  if (transform.has_control_grid()) {
    // The caller makes the field.
    in.map = MakeForwardMap(Transform(AffineMap::Identity()), to_physical, to_moving);
    in.field_to_index = to_moving;
  } else if (transform.has_displacement() && transform.displacement().geometry == fixed.geometry()) {
    in.map = MakeForwardMap(Transform(transform.affine()), to_physical, to_moving);
    in.field = transform.displacement().data;
    in.field_to_index = Compose(to_moving, transform.affine());
  } else {
    in.map = MakeForwardMap(transform, to_physical, to_moving);
  }
  in.fixed_minimum = fixed.statistics().minimum;
  in.moving_minimum = moving.statistics().minimum;
  in.fixed_bins_per_unit = BinsPerUnit(fixed.statistics());
  in.moving_bins_per_unit = BinsPerUnit(moving.statistics());
  in.fixed_shift = fixed.statistics().mean;
  in.moving_shift = moving.statistics().mean;
  in.range = static_cast<double>(fixed.statistics().maximum) - fixed.statistics().minimum;
  return in;
}

double Entropy(const unsigned long long* counts, int bins, double total) {
  double entropy = 0;
  for (int i = 0; i < bins; ++i) {
    if (counts[i] == 0) continue;
    const double p = static_cast<double>(counts[i]) / total;
    entropy -= p * std::log(p);
  }
  return entropy;
}

std::optional<double> NormalizedMutualInformation(const unsigned long long* histogram, double total) {
  unsigned long long fixed[kHistogramBins] = {}, moving[kHistogramBins] = {};
  for (int i = 0; i < kHistogramBins * kHistogramBins; ++i) {
    fixed[i / kHistogramBins] += histogram[i];
    moving[i % kHistogramBins] += histogram[i];
  }
  const double joint = Entropy(histogram, kHistogramBins * kHistogramBins, total);
  if (joint <= 0) return std::nullopt;
  return (Entropy(fixed, kHistogramBins, total) + Entropy(moving, kHistogramBins, total)) / joint;
}

std::optional<double> Correlation(const SimilaritySums& s) {
  const double n = static_cast<double>(s.valid), f = s.f / n, m = s.m / n;
  const double ff = s.ff / n - f * f, mm = s.mm / n - m * m;
  if (!(ff > 0 && mm > 0)) return std::nullopt;
  return std::clamp((s.fm / n - f * m) / (std::sqrt(ff) * std::sqrt(mm)), -1.0, 1.0);
}

SimilarityResult MakeResult(const SimilarityTotals& totals, double range) {
  const SimilaritySums& s = totals.sums;
  SimilarityResult result;
  if (s.valid == 0) return result;
  const double n = static_cast<double>(s.valid);
  result.overlap = n / static_cast<double>(s.selected);
  result.similarity.sse = s.squared;
  result.similarity.mse = s.squared / n;
  result.similarity.mae = s.absolute / n;
  if (s.f_minimum < s.f_maximum && s.m_minimum < s.m_maximum) {
    result.similarity.ncc = Correlation(s);
    result.similarity.nmi = NormalizedMutualInformation(totals.histogram, n);
  }
  if (range > 0 && std::isfinite(totals.ssim)) result.similarity.ssim = totals.ssim / n;
  return result;
}

}  // namespace

absl::StatusOr<SimilarityResult> MeasureSimilarity(const ExecContext& ctx, const PreparedImage& fixed,
                                                   const PreparedImage& moving, ConstMaskView fixed_mask,
                                                   ConstMaskView moving_mask, const Transform& transform) {
  INTRAWARP_RETURN_IF_ERROR(ValidateMask("fixed_mask", fixed_mask, fixed.geometry()));
  INTRAWARP_RETURN_IF_ERROR(ValidateMask("moving_mask", moving_mask, moving.geometry()));
  SimilarityInput in = MakeInput(fixed, moving, fixed_mask, moving_mask, transform);
  const Geometry& grid = fixed.geometry();
  ArenaScope scope(ctx.arena());
  if (transform.has_control_grid()) {
    INTRAWARP_ASSIGN_OR_RETURN(float* field, ctx.arena().Allocate<float>(3 * grid.voxels()));
    INTRAWARP_RETURN_IF_ERROR(EvaluateField(ctx, transform, grid, 0, grid.voxels(), field));
    in.field = field;
  }
  SimilarityWorkspace workspace;
  INTRAWARP_ASSIGN_OR_RETURN(workspace.warped, ctx.arena().Allocate<float>(grid.voxels()));
  INTRAWARP_ASSIGN_OR_RETURN(workspace.sums, ctx.arena().Allocate<SimilaritySums>(Pieces(grid.voxels())));
  INTRAWARP_ASSIGN_OR_RETURN(workspace.ssim, ctx.arena().Allocate<double>(Tiles(grid.size)));
  INTRAWARP_ASSIGN_OR_RETURN(workspace.totals, ctx.arena().Allocate<SimilarityTotals>(1));
  INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, SumSimilarity, in, workspace));
  SimilarityTotals totals;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&totals, workspace.totals, sizeof(totals), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return MakeResult(totals, in.range);
}

size_t SimilarityWorkspaceBytes(const Geometry& fixed, bool has_control_grid) {
  return (has_control_grid ? Arena::Rounded(3 * fixed.voxels() * sizeof(float)) : 0) +
         Arena::Rounded(fixed.voxels() * sizeof(float)) +
         Arena::Rounded(Pieces(fixed.voxels()) * sizeof(SimilaritySums)) +
         Arena::Rounded(Tiles(fixed.size) * sizeof(double)) + Arena::Rounded(sizeof(SimilarityTotals));
}

}  // namespace intrawarp
