// SPDX-License-Identifier: Apache-2.0
// How the intensities of two images relate where a map brings them together: by a straight line, as within a modality,
// or by any function.
//
// Pearson's correlation r sees straight lines alone; the correlation ratio eta^2 (Roche et al. 1998, eq. 3), the part
// of one image's variance that the classes of the other explain, sees every function. r^2 is at most eta^2, and their
// quotient is 1 where the relation is a straight line, however noisy it is and however far the images still are apart.
#ifndef INTRAWARP_ENGINE_REGISTRATION_CHOOSE_INTENSITY_RELATION_H_
#define INTRAWARP_ENGINE_REGISTRATION_CHOOSE_INTENSITY_RELATION_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/device/exec_context.h"
#include "engine/registration/stage/levels.h"

namespace intrawarp {

struct IntensityRelation {
  // r, -1 to 1.
  double correlation = 0;
  // The larger eta^2 of the two directions, 0 to 1.
  double correlation_ratio = 0;
  // Voxels that were compared.
  int64_t samples = 0;

  // r^2 / eta^2: 1 for a straight line, rising or falling.
  double linearity() const { return correlation * correlation / correlation_ratio; }
  // (eta^2 - r^2) / (1 - eta^2): how far the curve through the means of the classes departs from the straight line, in
  // variances of the scatter around that curve. For one modality it is about 0; binning can take it below.
  double lack_of_fit() const {
    return (correlation_ratio - correlation * correlation) / std::max(1 - correlation_ratio, 1e-9);
  }
};

// Equal bins, from the smallest to the largest sample, that are the classes of eta^2.
inline constexpr int kIntensityClasses = 32;
// Fewer samples relate to nothing.
inline constexpr int kLeastRelatedSamples = 4 * kIntensityClasses;

// Takes the pairs (fixed[i], moving[i]). Absent with fewer than kLeastRelatedSamples pairs, and where either is
// constant. Sums run in double, in the order of the samples.
std::optional<IntensityRelation> RelationOf(absl::Span<const float> fixed, absl::Span<const float> moving);

// At the finest fixed level of at most 64^3 voxels, and the moving level of like voxels, or the first coarser one that
// has at most 8 * 64^3 voxels. Both are copied to the host, which takes less than 20 MB there. A sample counts where
// masks select it and the moving image has a source; where a mask selects nothing at its level, there are none. `map`:
// fixed to moving, LPS mm. Waits for the stream; takes no workspace.
absl::StatusOr<std::optional<IntensityRelation>> MeasureIntensityRelation(const ExecContext& ctx,
                                                                          const RegistrationImages& images,
                                                                          const AffineMap& map);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_CHOOSE_INTENSITY_RELATION_H_
