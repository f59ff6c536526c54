// SPDX-License-Identifier: Apache-2.0
// The ways of Leong et al. (2021, "Performance-aware programming for intraoperative intensity-based image registration
// on graphics processing units", International Journal of Computer Assisted Radiology and Surgery) to smooth and to
// compose vector fields on CUDA (algorithms 2 and 4, figures 5 to 8), written after the paper's description, for
// comparison.
//
// Fields are three planes of float32, as the paper's (its strides are planes of floats), in voxels. Our choices where
// the paper says nothing: smoothing leaves out voxels outside the image; the window is the Gaussian exp(-d^2 / (2
// sigma^2)) normalised to sum 1 (formula 1, as printed, keeps 0.71 of a constant); composition takes the nearest voxel
// outside the image. The coordinates that algorithm 4 adds before the interpolation and subtracts after it are left
// out: a linear interpolation reproduces them, and through the texture unit they would only add their own rounding.
#ifndef INTRAWARP_TESTS_BENCH_BASELINES_DEMONS_VARIANTS_H_
#define INTRAWARP_TESTS_BENCH_BASELINES_DEMONS_VARIANTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/vec.h"
#include "tests/bench/baselines/field_error.h"
#include "tests/bench/baselines/timing.h"

namespace intrawarp::baselines {

enum class Smoothing {
  kA1,  // a thread a voxel, every value of the window from global memory
  kA2,  // a block a whole line along the pass, in shared memory; a line along y or z is loaded value by value
  kA3,  // a block 32 neighbouring lines along y or z, loaded 32 values at a time; rows four values at a time
};
enum class Composition {
  kB1,  // a thread a voxel, eight loads a component from global memory
  kB2,  // the same through the texture path (tex1Dfetch)
  kB3,  // one filtered fetch a component from three 3-D textures
  kB4,  // one filtered fetch from a 3-D texture of float4
};
// None on the CPU.
std::vector<Smoothing> SmoothingVariants(const ExecContext& ctx);
std::vector<Composition> CompositionVariants(const ExecContext& ctx);
const char* Name(Smoothing variant);
const char* Name(Composition variant);
inline bool IsFiltered(Composition variant) { return variant >= Composition::kB3; }

// k[|n|], n = 0 to nint(3 sigma), at most kMaxWindow values.
inline constexpr int kMaxWindow = 33;
std::vector<float> GaussianWindow(double sigma);

// One pass along `axis`. `in` is not `out`. Lines of A2 and A3 longer than shared memory: INVALID_ARGUMENT.
absl::StatusOr<Work> MakeSmoothingPass(const ExecContext& ctx, Smoothing variant, Int3 size, int axis,
                                       const std::vector<float>& window, const float* in, float* out);

// `compose`: out(x) = inner(x) + outer(x + inner(x)). `fill` (null for B1 and B2): outer into textures, which every
// composition in the loop of log-demons needs anew. Arrays as large as `outer` live as long as the result. Up to 2^27
// voxels (tex1Dfetch).
struct CompositionWork {
  Work fill, compose;
};
absl::StatusOr<CompositionWork> MakeComposition(const ExecContext& ctx, Composition variant, Int3 size,
                                                const float* inner, const float* outer, float* out);

// In float64, of planes in host memory, x y z interleaved: the three passes, and the composition of every
// `row_stride`-th row as CompareRows takes them.
std::vector<double> ReferenceSmoothing(const std::vector<float>& planes, Int3 size, const std::vector<float>& window);
std::vector<double> ReferenceComposition(const std::vector<float>& inner, const std::vector<float>& outer, Int3 size,
                                         int64_t row_stride);

// The largest error of a composition: float32 alone, or with the texture unit's weights, which have 8 bits after the
// point: at most 2^-8 of the difference of neighbours along each axis.
double CompositionTolerance(Composition variant, const std::vector<float>& outer, Int3 size);

namespace cuda {
absl::StatusOr<Work> MakeSmoothingPass(const ExecContext& ctx, Smoothing variant, Int3 size, int axis,
                                       const std::vector<float>& window, const float* in, float* out);
absl::StatusOr<CompositionWork> MakeComposition(const ExecContext& ctx, Composition variant, Int3 size,
                                                const float* inner, const float* outer, float* out);
}  // namespace cuda

}  // namespace intrawarp::baselines

#endif  // INTRAWARP_TESTS_BENCH_BASELINES_DEMONS_VARIANTS_H_
