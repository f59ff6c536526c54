// SPDX-License-Identifier: Apache-2.0
// How alike the fixed image and the warped moving one are.
#ifndef INTRAWARP_ENGINE_QUALITY_SIMILARITY_H_
#define INTRAWARP_ENGINE_QUALITY_SIMILARITY_H_

#include <cstddef>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/image/pyramid.h"
#include "engine/transform/transform.h"

namespace intrawarp {

// Between the fixed and the warped moving image, over the fixed voxels that have a source and that masks allow.
// A value is absent where it is undefined: all without overlap, ncc and nmi when either image is constant there (nmi
// also when both stay within one bin), ssim when the whole fixed image is constant.
struct Similarity {
  std::optional<double> mse;
  // Sum of squared differences.
  std::optional<double> sse;
  std::optional<double> mae;
  // Pearson's correlation, -1 to 1.
  std::optional<double> ncc;
  // (H(F) + H(M)) / H(F, M), 64 equal bins from each image's minimum to its maximum over the whole image; 1 to 2.
  std::optional<double> nmi;
  // Mean structural similarity (Wang 2004, eq. 13): Gaussian window of sigma 1.5 voxels cut at 5 and normalised over
  // the valid voxels inside, K1 0.01, K2 0.03, dynamic range of the fixed image; averaged over the valid voxels.
  std::optional<double> ssim;
};

struct SimilarityResult {
  Similarity similarity;
  // Fraction of the fixed voxels (of the fixed mask) that have a source the moving mask allows.
  double overlap = 0;
};

// Waits for the stream. Masks lie on their images' grids (INVALID_ARGUMENT "fixed_mask: ..." otherwise); a mask without
// data selects everything. Whether the moving mask allows a source is decided by the voxel nearest to it. Sums run in a
// fixed order, so that a result is the same each time on one device; SSIM is computed in float32.
absl::StatusOr<SimilarityResult> MeasureSimilarity(const ExecContext& ctx, const PreparedImage& fixed,
                                                   const PreparedImage& moving, ConstMaskView fixed_mask,
                                                   ConstMaskView moving_mask, const Transform& transform);
size_t SimilarityWorkspaceBytes(const Geometry& fixed, bool has_control_grid = false);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_QUALITY_SIMILARITY_H_
