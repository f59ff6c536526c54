// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/vector_field.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/geometry/geometry.h"
#include "engine/image/rows.h"
#include "engine/transform/vector_field_kernels.h"

namespace intrawarp {
namespace {

int64_t Voxels(Int3 size) { return int64_t{size.x} * size.y * size.z; }
size_t FieldBytes(Int3 size) { return 3 * sizeof(float) * Voxels(size); }

absl::Status ValidateSize(Int3 size) {
  for (int a = 0; a < 3; ++a) {
    if (size[a] < 1 || size[a] > kMaxAxis) {
      return absl::InvalidArgumentError(absl::StrCat("size: ", size[a], " is not in [1, ", kMaxAxis, "]"));
    }
  }
  if (Voxels(size) > INT32_MAX) return absl::InvalidArgumentError("size: 2^31 voxels or more");
  return absl::OkStatus();
}

absl::Status SmoothVectorAxis(const ExecContext& ctx, const SmoothPass& pass, const GaussianKernel& kernel) {
  return INTRAWARP_DISPATCH(ctx, SmoothVectorAxis, pass, kernel);
}

}  // namespace

size_t SmoothVectorFieldWorkspaceBytes(Int3 size) { return 2 * Arena::Rounded(FieldBytes(size)); }

absl::Status SmoothVectorField(const ExecContext& ctx, const float* in, Int3 size, Vec3d sigma, float* out,
                               const float* add, float* largest, const int* skip) {
  INTRAWARP_RETURN_IF_ERROR(ValidateSize(size));
  int axes[3], passes = 0;
  for (int a = 0; a < 3; ++a) {
    if (!(sigma[a] >= 0 && sigma[a] <= kMaxSigma)) {
      return absl::InvalidArgumentError(absl::StrCat("sigma: ", sigma[a], " is not in [0, ", kMaxSigma, "] voxels"));
    }
    if (sigma[a] > 0 && size[a] > 1) axes[passes++] = a;
  }
  // A pass with the kernel {1} copies, adds and finds the largest where there is nothing to smooth.
  if (passes == 0) axes[passes++] = 1;

  ArenaScope scope(ctx.arena());
  float* work[2] = {};
  // The last pass may write what the others read only when it is not what it reads itself.
  const int buffers = std::min(2, passes - 1 + (passes == 1 && in == out ? 1 : 0));
  for (int i = 0; i < buffers; ++i) {
    INTRAWARP_ASSIGN_OR_RETURN(work[i], ctx.arena().Allocate<float>(3 * Voxels(size)));
  }
  if (passes == 1 && in == out) {
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(work[0], in, FieldBytes(size), ctx.stream()));
    in = work[0];
  }
  for (int p = 0; p < passes; ++p) {
    const bool last = p == passes - 1;
    SmoothPass pass;
    pass.in = in;
    pass.out = last ? out : work[p];
    pass.add = last ? add : nullptr;
    pass.largest = last ? largest : nullptr;
    pass.skip = skip;
    pass.size = size;
    pass.axis = axes[p];
    const GaussianKernel kernel = MakeGaussianKernel(sigma[axes[p]]);
    INTRAWARP_RETURN_IF_ERROR(SmoothVectorAxis(ctx, pass, kernel));
    in = pass.out;
  }
  return absl::OkStatus();
}

absl::Status ComposeVectorFields(const ExecContext& ctx, const float* inner, const float* outer, Int3 size, float* out,
                                 const int* skip) {
  INTRAWARP_RETURN_IF_ERROR(ValidateSize(size));
  return INTRAWARP_DISPATCH(ctx, ComposeVectorFields, inner, outer, size, out, skip);
}

absl::Status LargestComponent(const ExecContext& ctx, const float* field, Int3 size, float* largest, const int* skip) {
  INTRAWARP_RETURN_IF_ERROR(ValidateSize(size));
  return INTRAWARP_DISPATCH(ctx, LargestComponent, field, size, largest, skip);
}

size_t ExponentiateWorkspaceBytes(Int3 size) { return Arena::Rounded(FieldBytes(size)); }

absl::Status ExponentiateVectorField(const ExecContext& ctx, const float* velocity, Int3 size, float factor,
                                     const float* largest, int max_squarings, float* out, const int* skip) {
  INTRAWARP_RETURN_IF_ERROR(ValidateSize(size));
  if (!std::isfinite(factor)) return absl::InvalidArgumentError("factor: not finite");
  if (max_squarings < 0 || max_squarings > kMaxSquarings) {
    return absl::InvalidArgumentError(absl::StrCat("max_squarings: not in [0, ", kMaxSquarings, "]"));
  }
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(float* const other, ctx.arena().Allocate<float>(3 * Voxels(size)));
  return INTRAWARP_DISPATCH(ctx, ExponentiateVectorField, velocity, size, factor, largest, max_squarings, out, other,
                            skip);
}

absl::Status BchUpdate(const ExecContext& ctx, const float* v, const float* u, Int3 size, float* out, const int* skip) {
  INTRAWARP_RETURN_IF_ERROR(ValidateSize(size));
  return INTRAWARP_DISPATCH(ctx, BchUpdate, v, u, size, out, skip);
}

size_t HarmonicEnergyWorkspaceBytes(Int3 size) {
  return Arena::Rounded(MakeRowPieces(size.y * size.z, size.x).pieces * sizeof(double));
}

absl::Status HarmonicEnergy(const ExecContext& ctx, const float* field, Int3 size, double* energy, const int* skip) {
  INTRAWARP_RETURN_IF_ERROR(ValidateSize(size));
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(double* const partial,
                             ctx.arena().Allocate<double>(MakeRowPieces(size.y * size.z, size.x).pieces));
  return INTRAWARP_DISPATCH(ctx, HarmonicEnergy, field, size, partial, energy, skip);
}

absl::Status ResampleVectorField(const ExecContext& ctx, const float* in, Int3 in_size, float* out, Int3 out_size) {
  INTRAWARP_RETURN_IF_ERROR(ValidateSize(in_size));
  INTRAWARP_RETURN_IF_ERROR(ValidateSize(out_size));
  return INTRAWARP_DISPATCH(ctx, ResampleVectorField, in, in_size, MakeGridScale(in_size, out_size), out, out_size);
}

absl::Status MapVectors(const ExecContext& ctx, const AffineMapF& map, Int3 size, float* field) {
  INTRAWARP_RETURN_IF_ERROR(ValidateSize(size));
  return INTRAWARP_DISPATCH(ctx, MapVectors, map, size, field);
}

}  // namespace intrawarp
