// SPDX-License-Identifier: Apache-2.0
// NiftyReg's convolution of a field with a window along one axis, and the ways to sum it that are compared by Álvarez
// González (2015, "Graphics supercomputing applied to brain image analysis with NiftyReg", University of Málaga),
// section 6.2.1, figures 6.1 and 6.2, table 6.1. Voxels outside the image are left out.
#ifndef INTRAWARP_TESTS_BENCH_BASELINES_CONVOLUTION_SCHEMES_H_
#define INTRAWARP_TESTS_BENCH_BASELINES_CONVOLUTION_SCHEMES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/vec.h"
#include "tests/bench/baselines/field_error.h"
#include "tests/bench/baselines/timing.h"

namespace intrawarp::baselines {

enum class Summation {
  kPlain,      // a product, then a sum, each rounded
  kKahan,      // NiftyReg's own
  kPichat,     // Kahan's corrections gathered, added at the end
  kFma,        // a fused multiply and add
  kPichatFma,  // Pichat's with fused operations
  kKahanFma,   // Kahan's with fused operations, as the thesis prints it (its correction forgets the one before)
};
inline constexpr Summation kSummations[] = {Summation::kPlain, Summation::kKahan,     Summation::kPichat,
                                            Summation::kFma,   Summation::kPichatFma, Summation::kKahanFma};
const char* SummationName(Summation summation);

// How the CUDA kernel's loop runs over the window: an `if` a sample as NiftyReg, or bounds computed before; unrolled so
// many times. The thesis measures 1 (its 0), 5 and 20. The CPU's loop has bounds, and knows no other.
struct WindowLoop {
  bool branch = false;
  int unroll = 1;
};

struct Convolution {
  Int3 size;
  int axis = 0;
  // Has 2 radius + 1 floats.
  std::vector<float> window;
  int radius() const { return static_cast<int>(window.size()) / 2; }
};

// A field of three components, before and after. On CUDA four floats a voxel as NiftyReg's (the fourth is not
// smoothed); on the CPU three planes. `in` is not `out`; both outlive the result, as does `ctx`, which holds the
// window.
absl::StatusOr<Work> MakeConvolution(const ExecContext& ctx, Summation summation, WindowLoop loop,
                                     const Convolution& convolution, const float* in, float* out);

// The largest difference allowed from ReferenceConvolution, relative to the largest value times the window's sum.
double SummationTolerance(Summation summation, int window);

// The convolution in float64 of planes in host memory: every `row_stride`-th row, as CompareRows takes them.
// `normalised`: divided by the sum of the window inside the image and multiplied by the sum of the whole window.
std::vector<double> ReferenceConvolution(const std::vector<float>& planes, Int3 size, int axis,
                                         const std::vector<double>& window, bool normalised, int64_t row_stride);

namespace cuda {
absl::StatusOr<Work> MakeConvolution(const ExecContext& ctx, Summation summation, WindowLoop loop,
                                     const Convolution& convolution, const float* in, float* out);
}  // namespace cuda
namespace cpu {
absl::StatusOr<Work> MakeConvolution(const ExecContext& ctx, Summation summation, WindowLoop loop,
                                     const Convolution& convolution, const float* in, float* out);
}  // namespace cpu

}  // namespace intrawarp::baselines

#endif  // INTRAWARP_TESTS_BENCH_BASELINES_CONVOLUTION_SCHEMES_H_
