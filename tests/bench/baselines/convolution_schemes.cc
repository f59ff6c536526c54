// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/baselines/convolution_schemes.h"

#include <algorithm>

#include "engine/device/parallel.h"

namespace intrawarp::baselines {

const char* SummationName(Summation summation) {
  switch (summation) {
    case Summation::kPlain:
      return "plain";
    case Summation::kKahan:
      return "Kahan (original)";
    case Summation::kPichat:
      return "Pichat";
    case Summation::kFma:
      return "FMA";
    case Summation::kPichatFma:
      return "Pichat + FMA";
    case Summation::kKahanFma:
      return "Kahan + FMA";
  }
  return "";
}

// A compensated sum errs by two roundings at most, a plain sum by one rounding a term (Higham 2002, section 4.3).
double SummationTolerance(Summation summation, int window) {
  constexpr double kRounding = 6e-8;
  const bool compensated =
      summation == Summation::kKahan || summation == Summation::kPichat || summation == Summation::kPichatFma;
  return compensated ? 4 * kRounding : (2 * window + 2) * kRounding;
}

absl::StatusOr<Work> MakeConvolution(const ExecContext& ctx, Summation summation, WindowLoop loop,
                                     const Convolution& convolution, const float* in, float* out) {
  return INTRAWARP_DISPATCH(ctx, MakeConvolution, summation, loop, convolution, in, out);
}

std::vector<double> ReferenceConvolution(const std::vector<float>& planes, Int3 size, int axis,
                                         const std::vector<double>& window, bool normalised, int64_t row_stride) {
  const int64_t plane = int64_t{size.x} * size.y, voxels = plane * size.z;
  const int64_t rows = (int64_t{size.y} * size.z + row_stride - 1) / row_stride;
  const int64_t stride = axis == 0 ? 1 : axis == 1 ? size.x : plane;
  const int radius = static_cast<int>(window.size()) / 2;
  double whole = 0;
  for (double w : window) whole += w;
  std::vector<double> reference(rows * size.x * 3);
  ParallelFor(rows, [&](int64_t r) {
    const int64_t row = r * row_stride;
    for (int x = 0; x < size.x; ++x) {
      const int at = axis == 0 ? x : static_cast<int>(axis == 1 ? row % size.y : row / size.y);
      const int low = std::max(-at, -radius), high = std::min(size[axis] - 1 - at, radius);
      for (int c = 0; c < 3; ++c) {
        const float* center = &planes[c * voxels + row * size.x + x];
        double sum = 0, inside = 0;
        for (int k = low; k <= high; ++k) {
          sum += window[k + radius] * center[k * stride];
          inside += window[k + radius];
        }
        reference[(r * size.x + x) * 3 + c] = normalised ? sum * whole / inside : sum;
      }
    }
  });
  return reference;
}

}  // namespace intrawarp::baselines
