// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/baselines/demons_variants.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/device/parallel.h"

namespace intrawarp::baselines {
namespace {

constexpr int64_t kMaxVoxels = int64_t{1} << 27;

int64_t Voxels(Int3 size) { return int64_t{size.x} * size.y * size.z; }

absl::Status OnCudaAlone() { return absl::UnimplementedError("device: the published variants are for CUDA"); }

// One pass over three planes.
std::vector<double> ReferencePass(const std::vector<double>& in, Int3 size, int axis,
                                  const std::vector<float>& window) {
  const int64_t voxels = Voxels(size), stride = axis == 0 ? 1 : axis == 1 ? size.x : int64_t{size.x} * size.y;
  const int length = axis == 0 ? size.x : axis == 1 ? size.y : size.z;
  const int radius = static_cast<int>(window.size()) - 1;
  std::vector<double> out(in.size());
  ParallelFor(static_cast<int64_t>(in.size()), [&](int64_t i) {
    const int at = static_cast<int>(i % voxels / stride % length);
    double sum = 0;
    for (int n = std::max(-radius, -at); n <= std::min(radius, length - 1 - at); ++n)
      sum += static_cast<double>(window[std::abs(n)]) * in[i + n * stride];
    out[i] = sum;
  });
  return out;
}

// Two neighbours along one axis, and the weight of the second.
struct Neighbours {
  Neighbours(double at, int length) {
    at = std::clamp(at, 0.0, length - 1.0);
    first = std::min(static_cast<int>(at), std::max(length - 2, 0));
    second = std::min(first + 1, length - 1);
    weight = at - first;
  }
  int first, second;
  double weight;
};

double Trilinear(const float* plane, Int3 size, const Neighbours& x, const Neighbours& y, const Neighbours& z) {
  const auto row = [&](int row_y, int row_z) {
    const float* r = plane + (int64_t{row_z} * size.y + row_y) * size.x;
    return r[x.first] * (1 - x.weight) + r[x.second] * x.weight;
  };
  const auto slice = [&](int row_z) { return row(y.first, row_z) * (1 - y.weight) + row(y.second, row_z) * y.weight; };
  return slice(z.first) * (1 - z.weight) + slice(z.second) * z.weight;
}

// The largest difference of neighbours along an axis, summed over the axes.
double SteepestStep(const std::vector<float>& planes, Int3 size) {
  const int64_t voxels = Voxels(size), strides[] = {1, size.x, int64_t{size.x} * size.y};
  const int lengths[] = {size.x, size.y, size.z};
  double sum = 0;
  for (int axis = 0; axis < 3; ++axis) {
    float largest = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(planes.size()); ++i) {
      if (i % voxels / strides[axis] % lengths[axis] + 1 == lengths[axis]) continue;
      largest = std::max(largest, std::abs(planes[i + strides[axis]] - planes[i]));
    }
    sum += largest;
  }
  return sum;
}

}  // namespace

std::vector<Smoothing> SmoothingVariants(const ExecContext& ctx) {
  if (!ctx.is_cuda()) return {};
  return {Smoothing::kA1, Smoothing::kA2, Smoothing::kA3};
}

std::vector<Composition> CompositionVariants(const ExecContext& ctx) {
  if (!ctx.is_cuda()) return {};
  return {Composition::kB1, Composition::kB2, Composition::kB3, Composition::kB4};
}

const char* Name(Smoothing variant) {
  return variant == Smoothing::kA1 ? "A1" : variant == Smoothing::kA2 ? "A2" : "A3";
}

const char* Name(Composition variant) {
  constexpr const char* kNames[] = {"B1", "B2", "B3", "B4"};
  return kNames[static_cast<int>(variant)];
}

std::vector<float> GaussianWindow(double sigma) {
  const int radius = std::min(static_cast<int>(std::lround(3 * sigma)), kMaxWindow - 1);
  std::vector<double> exact(radius + 1);
  double sum = 0;
  for (int d = 0; d <= radius; ++d) {
    exact[d] = std::exp(-0.5 * d * d / (sigma * sigma));
    sum += d == 0 ? exact[d] : 2 * exact[d];
  }
  std::vector<float> window;
  window.reserve(exact.size());
  for (const double w : exact) window.push_back(static_cast<float>(w / sum));
  return window;
}

absl::StatusOr<Work> MakeSmoothingPass(const ExecContext& ctx, Smoothing variant, Int3 size, int axis,
                                       const std::vector<float>& window, const float* in, float* out) {
  if (window.empty() || window.size() > kMaxWindow) return absl::InvalidArgumentError("window: 1 to 33 values");
#if INTRAWARP_WITH_CUDA
  if (ctx.is_cuda()) return cuda::MakeSmoothingPass(ctx, variant, size, axis, window, in, out);
#else
  (void)ctx, (void)variant, (void)size, (void)axis, (void)in, (void)out;
#endif
  return OnCudaAlone();
}

absl::StatusOr<CompositionWork> MakeComposition(const ExecContext& ctx, Composition variant, Int3 size,
                                                const float* inner, const float* outer, float* out) {
  if (Voxels(size) > kMaxVoxels) return absl::InvalidArgumentError("size: more than 2^27 voxels");
#if INTRAWARP_WITH_CUDA
  if (ctx.is_cuda()) return cuda::MakeComposition(ctx, variant, size, inner, outer, out);
#else
  (void)ctx, (void)variant, (void)inner, (void)outer, (void)out;
#endif
  return OnCudaAlone();
}

std::vector<double> ReferenceSmoothing(const std::vector<float>& planes, Int3 size, const std::vector<float>& window) {
  std::vector<double> smooth(planes.begin(), planes.end());
  for (int axis = 0; axis < 3; ++axis) smooth = ReferencePass(smooth, size, axis, window);
  const int64_t voxels = Voxels(size);
  std::vector<double> interleaved(smooth.size());
  for (int64_t i = 0; i < 3 * voxels; ++i) interleaved[i % voxels * 3 + i / voxels] = smooth[i];
  return interleaved;
}

std::vector<double> ReferenceComposition(const std::vector<float>& inner, const std::vector<float>& outer, Int3 size,
                                         int64_t row_stride) {
  const int64_t voxels = Voxels(size), rows = (int64_t{size.y} * size.z + row_stride - 1) / row_stride;
  std::vector<double> reference(rows * size.x * 3);
  ParallelFor(rows, [&](int64_t r) {
    const int64_t row = r * row_stride;
    for (int x = 0; x < size.x; ++x) {
      const int64_t v = row * size.x + x;
      const double u[] = {inner[v], inner[voxels + v], inner[2 * voxels + v]};
      const Neighbours nx(x + u[0], size.x), ny(static_cast<double>(row % size.y) + u[1], size.y),
          nz(static_cast<double>(row / size.y) + u[2], size.z);
      for (int c = 0; c < 3; ++c)
        reference[(r * size.x + x) * 3 + c] = u[c] + Trilinear(&outer[c * voxels], size, nx, ny, nz);
    }
  });
  return reference;
}

double CompositionTolerance(Composition variant, const std::vector<float>& outer, Int3 size) {
  // A coordinate of some hundreds has 2^-16 of a voxel in float32.
  const double steepest = SteepestStep(outer, size);
  return steepest * ((IsFiltered(variant) ? 0x1p-8 : 0) + 0x1p-14) + 1e-5;
}

}  // namespace intrawarp::baselines
