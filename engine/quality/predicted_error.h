// SPDX-License-Identifier: Apache-2.0
// How far off a result may be, predicted from what the residual probe saw of it.
//
// Each matched block predicts, in nodes of the probe, the expected error and the bound below which kErrorQuantile of
// the errors lie: linear in the lengths of its two offsets and in how vague its two minima are, which is max(0, 1/2 -
// (1 - best / rival)). The coefficients are those of a least-squares and of a quantile regression (Koenker and Bassett
// 1978) on known maps and landmarks; docs/evidence/accuracy.md says on which, and how often the bound holds elsewhere.
// The probe sees neither errors along structure nor the error of a deformation that makes unlike things alike.
#ifndef INTRAWARP_ENGINE_QUALITY_PREDICTED_ERROR_H_
#define INTRAWARP_ENGINE_QUALITY_PREDICTED_ERROR_H_

#include <limits>
#include <optional>
#include <vector>

#include "engine/quality/residual_probe.h"

namespace intrawarp {

inline constexpr double kErrorQuantile = 0.95;

// The prediction for one block, in mm.
struct BlockError {
  double expected_mm = 0;
  double bound_mm = 0;
};
// For a block that is matched.
BlockError PredictBlockError(const BlockMatch& match, Vec3d node_mm);

// Over the region of interest: the matched blocks, which are those with structure inside masks and overlap.
struct ErrorEstimate {
  // The median of the expected errors.
  double expected_mm = 0;
  // The median, the 0.95 quantile and the largest of the bounds.
  double bound_mm = 0;
  double bound_p95_mm = 0;
  double bound_max_mm = 0;
  // Matched blocks among those that both images cover.
  double judged_fraction = 0;
  // The part of the matched blocks whose smoothed costs have their minimum within one node of zero, and the part that
  // chance would put there: a displacement drawn from all that are searched.
  double agreement = 0;
  double chance = 0;
  // The number of independent blocks that would say as much as the matched ones, since smoothed costs share their
  // neighbours'. Infinite: not known.
  double independent_blocks = std::numeric_limits<double>::infinity();
  // How many independent, clear matches hold the result where it is: the blocks of `agreement`, each counted by how far
  // its minimum lies below every other place (1 - best / rival; half of that and more is clear, 1). Infinite: not
  // known.
  double clear_matches = std::numeric_limits<double>::infinity();
  // How many points fix an affine map: one more than the axes that are searched.
  int fixing_points = 4;
  // The length of the longest displacement that is searched along the axis with the smallest nodes. Errors beyond it
  // look no larger: unrelated images have an expected error of about 1.6 times that. Infinite: not known.
  double reach_mm = std::numeric_limits<double>::infinity();
  // Among the regions with kLeastBlocks matched blocks, the largest median of the expected errors and the smallest
  // agreement. The regions are the octants (in 2-D quadrants) about the mean place of the matched blocks. Absent where
  // no region has enough.
  std::optional<double> worst_region_expected_mm = std::nullopt;
  std::optional<double> worst_region_agreement = std::nullopt;
  // Among the covered blocks in which either image has structure, the part in which both have. A deformation held
  // against its affine part takes the affine part's value, since a deformation can move tissue out of what is not seen.
  double visible_fraction = 1;
  // These are set for a deformation that was held against its affine part (deformation_gate.h): expected_mm, agreement
  // and bound_mm of the affine part alone, and the mean length of the deformation.
  std::optional<double> affine_expected_mm = std::nullopt;
  std::optional<double> affine_agreement = std::nullopt;
  std::optional<double> affine_bound_mm = std::nullopt;
  std::optional<double> deformation_mm = std::nullopt;
};

// Adds what the affine part's estimate says to the estimate of a deformation of this mean length.
void HoldAgainstAffine(const ErrorEstimate& affine, double deformation_mm, ErrorEstimate& error);

// Absent with fewer than kLeastBlocks matched blocks: there is too little to judge by.
inline constexpr int kLeastBlocks = 16;
std::optional<ErrorEstimate> PredictError(const ResidualProbe& probe);

// The prediction at every block of `blocks`, x fastest; NaN where a block is not matched.
struct ErrorMap {
  Geometry blocks;
  std::vector<float> expected_mm, bound_mm;
};
ErrorMap MapErrors(const ResidualProbe& probe);

// The prediction at a point is the one at the nearest matched block; the first of equally near blocks counts.
struct PointError {
  BlockError error;
  // From the point to the block's centre.
  double distance_mm = 0;
  // The point has no counterpart (missing_tissue.h), so that the error says nothing of it; set by whoever knows.
  bool is_missing = false;
};
// Points are LPS mm. Empty when no block is matched. Time: points times blocks.
std::vector<PointError> PredictErrorsAt(const ResidualProbe& probe, const std::vector<Vec3d>& points);

// An agreement below so many times chance, or below chance and so many standard deviations of it, says that the images
// have nothing in common where the result puts them.
inline constexpr double kUnrelatedChances = 1.3;
inline constexpr double kUnrelatedDeviations = 2;
// The least agreement that is not chance: of `independent_blocks`, each of which agrees by chance, a binomial count.
double LeastAgreement(const ErrorEstimate& error);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_QUALITY_PREDICTED_ERROR_H_
