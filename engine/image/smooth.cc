// SPDX-License-Identifier: Apache-2.0
#include "engine/image/smooth.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/image/smooth_kernels.h"

namespace intrawarp {
namespace {

absl::Status SmoothAxis(const ExecContext& ctx, const float* in, float* out, Int3 size, int axis,
                        const GaussianKernel& kernel) {
  return INTRAWARP_DISPATCH(ctx, SmoothAxis, in, out, size, axis, kernel);
}

}  // namespace

GaussianKernel MakeGaussianKernel(double sigma) {
  GaussianKernel kernel;
  kernel.radius = static_cast<int>(std::ceil(3 * sigma));
  double weights[kMaxRadius + 1] = {1.0};
  double sum = 1.0;
  for (int k = 1; k <= kernel.radius; ++k) {
    const double t = k / sigma;
    weights[k] = std::exp(-0.5 * t * t);
    sum += 2 * weights[k];
  }
  double cumulative = 0;
  for (int k = 0; k <= kernel.radius; ++k) {
    cumulative += weights[k] / sum;
    kernel.weights[k] = static_cast<float>(weights[k] / sum);
    kernel.cumulative[k] = static_cast<float>(cumulative);
  }
  return kernel;
}

size_t SmoothGaussianWorkspaceBytes(const Geometry& geometry) {
  return Arena::Rounded(geometry.voxels() * sizeof(float));
}

absl::Status SmoothGaussian(const ExecContext& ctx, ConstVolumeView volume, Vec3d sigma, VolumeView out) {
  if (!SameGrid(volume.geometry, out.geometry)) return absl::InvalidArgumentError("out: not on the volume's grid");
  const Int3 size = volume.geometry.size;
  int axes[3], passes = 0;
  for (int a = 0; a < 3; ++a) {
    if (!(sigma[a] >= 0 && sigma[a] <= kMaxSigma)) {
      return absl::InvalidArgumentError(absl::StrCat("sigma: ", sigma[a], " is not in [0, ", kMaxSigma, "] voxels"));
    }
    if (sigma[a] > 0 && size[a] > 1) axes[passes++] = a;
  }

  // The passes go to and fro between `out` and the workspace so that the last ends in `out`; none may read what it
  // writes.
  const size_t bytes = volume.geometry.voxels() * sizeof(float);
  const float* from = volume.data;
  const bool copies = passes % 2 == 1 && volume.data == out.data;
  if (passes == 0) {
    return volume.data == out.data ? absl::OkStatus() : ctx.device().Copy(out.data, from, bytes, ctx.stream());
  }
  ArenaScope scope(ctx.arena());
  float* other = nullptr;
  if (copies || passes > 1) {
    INTRAWARP_ASSIGN_OR_RETURN(other, ctx.arena().Allocate<float>(volume.geometry.voxels()));
  }
  if (copies) {
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(other, from, bytes, ctx.stream()));
    from = other;
  }
  for (int p = 0; p < passes; ++p) {
    float* to = (passes - p) % 2 == 1 ? out.data : other;
    INTRAWARP_RETURN_IF_ERROR(SmoothAxis(ctx, from, to, size, axes[p], MakeGaussianKernel(sigma[axes[p]])));
    from = to;
  }
  return absl::OkStatus();
}

}  // namespace intrawarp
