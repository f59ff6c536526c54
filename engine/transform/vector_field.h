// SPDX-License-Identifier: Apache-2.0
// Operators on dense vector fields in index units: what diffeomorphic log-demons iterates (Leong et al. 2021,
// algorithms 2 to 4; Vercauteren et al. 2008). A field has three float32 a voxel, x y z interleaved: a displacement (or
// velocity) in voxels of its own grid, x fastest.
//
// Design. A row of a field is a row of 3 nx floats, so that smoothing across rows is the scalar filter on wider rows;
// only the pass along x strides by 3. On CUDA every kernel loads and stores whole lines (a warp takes 96 floats of a
// row through shared memory), outputs along an axis are made in runs from registers, and what a step needs next rides
// along: the last pass of a smoothing adds another field and finds the largest component. No operator waits for the
// host: how many squarings an exponential needs is read from device memory, and launches beyond it return at once.
// `skip` (device memory, may be null): a stream of work in which it becomes nonzero does nothing more.
//
// Bytes that a voxel moves between memory and the CUDA device (reads that neighbours share counted once):
//   SmoothVectorField        72  three passes of 12 + 12; 84 with `add`
//   ComposeVectorFields      36  24 when inner and outer are one field (squaring)
//   ExponentiateVectorField  24 (N + 1)  with N squarings
// Log-demons iterates on CUDA with operators of its own, which move less (vector_planes.h).
//
// Pointers are device memory; outputs are not inputs unless it says so. Sizes are 1..kMaxAxis and voxels below 2^31
// (INVALID_ARGUMENT "size: ..."). All are stream-ordered, and their sums run in an order that sizes alone give.
#ifndef INTRAWARP_ENGINE_TRANSFORM_VECTOR_FIELD_H_
#define INTRAWARP_ENGINE_TRANSFORM_VECTOR_FIELD_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/vec.h"

namespace intrawarp {

// out = the components convolved with Gaussians of `sigma` voxels (standard deviations, [0, 64]; 0 leaves an axis
// alone), cut at ceil(3 sigma), normalised to sum 1, and near the faces over the part that is inside: SmoothGaussian's
// kernel. `out` may be `in`. `add` (may be null): out = smoothed + add. `largest` (may be null): the
// largest |component| of out. Workspace: SmoothVectorFieldWorkspaceBytes.
absl::Status SmoothVectorField(const ExecContext& ctx, const float* in, Int3 size, Vec3d sigma, float* out,
                               const float* add = nullptr, float* largest = nullptr, const int* skip = nullptr);
size_t SmoothVectorFieldWorkspaceBytes(Int3 size);

// out(x) = inner(x) + outer(x + inner(x)): the displacement of (id + outer) after (id + inner); outer is trilinear, and
// beyond its outermost voxels that of the nearest point on them.
absl::Status ComposeVectorFields(const ExecContext& ctx, const float* inner, const float* outer, Int3 size, float* out,
                                 const int* skip = nullptr);

// The largest |component|.
absl::Status LargestComponent(const ExecContext& ctx, const float* field, Int3 size, float* largest,
                              const int* skip = nullptr);

// The longest first step of scaling and squaring, for a component, in voxels. The step is of second order (the
// midpoint rule), so that it may be long: what is left of forward and inverse composed is their interpolation (0.03
// voxel for smooth motion of 10 voxels), the same for steps from 0.5 to 2. A velocity smoothed by a voxel or more
// changes by less than a voxel within it, so that the step does not fold.
inline constexpr float kExponentialStep = 1.0f;
inline constexpr int kMaxSquarings = 12;

// out = exp(factor * velocity) - id by scaling and squaring (Arsigny et al. 2006): with h = factor 2^-N, first
// s(x) = h v(x + h v(x) / 2), then N times s <- s(x) + s(x + s(x)). N is the least with largest |h v| <=
// kExponentialStep, and at most `max_squarings` (which is at most kMaxSquarings); `largest` is the largest |component|
// of velocity (LargestComponent, SmoothVectorField). Workspace: ExponentiateWorkspaceBytes.
absl::Status ExponentiateVectorField(const ExecContext& ctx, const float* velocity, Int3 size, float factor,
                                     const float* largest, int max_squarings, float* out, const int* skip = nullptr);
size_t ExponentiateWorkspaceBytes(Int3 size);

// out = v + u + [v, u] / 2, [v, u] = (grad v) u - (grad u) v: the logarithm of exp(v) after exp(u) to second order
// (Baker, Campbell and Hausdorff; Bossa et al. 2007). Central differences, one-sided at the faces.
absl::Status BchUpdate(const ExecContext& ctx, const float* v, const float* u, Int3 size, float* out,
                       const int* skip = nullptr);

// The mean over voxels of |grad field|^2 (sum over components and axes of squared differences as in BchUpdate).
// Workspace: HarmonicEnergyWorkspaceBytes.
absl::Status HarmonicEnergy(const ExecContext& ctx, const float* field, Int3 size, double* energy,
                            const int* skip = nullptr);
size_t HarmonicEnergyWorkspaceBytes(Int3 size);

// The same field on a grid of another size over the same domain (levels of a pyramid), in voxels of that grid:
// trilinear, clamped as in ComposeVectorFields.
absl::Status ResampleVectorField(const ExecContext& ctx, const float* in, Int3 in_size, float* out, Int3 out_size);

// field = linear part of `map` times field, in place: voxels to LPS mm with IndexToPhysical, for example.
absl::Status MapVectors(const ExecContext& ctx, const AffineMapF& map, Int3 size, float* field);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_VECTOR_FIELD_H_
