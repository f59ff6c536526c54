// SPDX-License-Identifier: Apache-2.0
// The operators of vector_field.h on CUDA for fields in planes: all x components, then all y, then all z. Log-demons
// iterates on these. Trilinear samples of neighbouring voxels then lie next to each other, so that a warp's load takes
// one or two lines of the L1 cache instead of three or four, which is what bounds a composition of interleaved fields;
// and what would write a field for the next operator alone is fused with it. Internal; CUDA alone.
//
// Bytes that a voxel moves, reads that neighbours share counted once:
//   24  the first step of an exponential; a squaring
//   20  the last squaring with the warp (nothing but the image is written)
//   12 + 8 a voxel of the image, the warp by a field on a coarser grid
//   24  smoothing along x and y; 32 of a quotient's four planes
//   24  along z; 48 along z with momentum; 40 of a quotient along z, composed with the velocity
// An iteration with N > 0 squarings: 24 N + 20 + 24 (force) + 32 + 40 + 24 + 24 = 164 + 24 N.
//
// A quotient is a field of four planes: its numerator, then its denominator D; its vector is the numerator times
// QuotientFactor(D).
//
// Pointers are device memory, outputs are not inputs. Stream-ordered. `skip` as in vector_field.h.
#ifndef INTRAWARP_ENGINE_TRANSFORM_VECTOR_PLANES_H_
#define INTRAWARP_ENGINE_TRANSFORM_VECTOR_PLANES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/image/warp_kernels.h"
#include "engine/transform/vector_field_kernels.h"

namespace intrawarp::cuda {

absl::Status ToPlanes(const ExecContext& ctx, const float* field, Int3 size, float* planes);
absl::Status FromPlanes(const ExecContext& ctx, const float* planes, Int3 size, float* field);

// As SmoothVectorField along x and y, each of `planes` (3 or 4) components, to the buffer that is returned, `out` or
// `in`: what is in the other is lost. *clear = 0 when it is not null. `sigma`.z is not used.
absl::StatusOr<float*> SmoothPlanesXY(const ExecContext& ctx, float* in, Int3 size, int planes, const Vec3d& sigma,
                                      float* out, float* clear, const int* skip);

// With `reached`, a field: out = s + *factor * (s - reached), where s is what out would be without; then reached = s.
struct PlaneMomentum {
  float* reached = nullptr;
  const float* factor = nullptr;
};

// Along z. `largest` (may be null) becomes the larger of itself and the largest |component| of out.
absl::Status SmoothPlanesZ(const ExecContext& ctx, const float* in, Int3 size, double sigma, float* out, float* largest,
                           const int* skip, const PlaneMomentum& momentum = {});

// What becomes of the vector u of a quotient at x: out(x) = u, u + v(x), or u + v(x + u).
enum class QuotientUse { kAlone, kAdd, kCompose };

// `in`, a quotient, is smoothed along z; its vectors make `out`, three planes. What is in `in` and in `work`, four
// planes each, is lost.
absl::Status SmoothQuotientZ(const ExecContext& ctx, float* in, Int3 size, double sigma, QuotientUse use,
                             const float* v, float* work, float* out, const int* skip);

// As ComposeVectorFields.
absl::Status ComposePlanes(const ExecContext& ctx, const float* inner, const float* outer, Int3 size, float* out,
                           const int* skip);

absl::Status BchPlanes(const ExecContext& ctx, const float* v, const float* u, Int3 size, float* out, const int* skip);

// A byte for each voxel of an image, and their place on the grid that it is warped to.
struct WarpBytes {
  const uint8_t* in = nullptr;
  uint8_t* out = nullptr;
};

// warp.out = the image at warp.index_map(x) + warp.displacement_map.Linear(u(x)), u = exp(factor * velocity) - id as in
// ExponentiateVectorField; warp.displacement is not used. The image may have more voxels than the velocity, over the
// same domain: u is then as ResampleVectorField makes it. Where an exponential takes more than `max_squarings`, nothing
// is made and *too_few is 1 (it may be what `skip` is). `work`: two fields. Unless warp_bytes.in is null,
// warp_bytes.out = the byte at the voxel nearest to where the image is sampled (NearestByte).
struct ExponentialWarpTask {
  const float* velocity = nullptr;
  Int3 size;
  float factor = 1;
  const float* largest = nullptr;
  int max_squarings = kMaxSquarings;
  int* too_few = nullptr;
  float* work[2] = {};
  // Whether fields between the steps are held in float16.
  bool half = false;
  WarpTask warp;
  WarpBytes warp_bytes = {};
};
absl::Status ExponentialWarp(const ExecContext& ctx, const ExponentialWarpTask& task, const int* skip);

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_TRANSFORM_VECTOR_PLANES_H_
