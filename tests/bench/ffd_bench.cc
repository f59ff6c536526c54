// SPDX-License-Identifier: Apache-2.0
// The objective of FFD registration: one evaluation, value alone or with its gradient, on resident images.
//
//   ffd_bench [--benchmark_filter=cuda:0/ssd/...] ...
//
// DEV/METRIC/SIZE/gradient and .../value, control points every 5 voxels, sizes with their next levels of a pyramid; and
// DEV/METRIC/SIZE/masks and .../weights, the gradient under masks of both images that leave out a corner, and whose
// other voxels count fully or by weights. ns_voxel: time by voxel. floor_us: reading the fixed and the moving image
// once (8 bytes a voxel) at the bandwidth that a plain copy reaches on this device in this run (bytes read and
// written). to_floor: time over floor. bytes_voxel: what the passes read and write, by the voxel, if images are read
// once each; scratch for partial sums not counted.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/device/device.h"
#include "engine/device/exec_context.h"
#include "engine/device/parallel.h"
#include "engine/metric/ffd_objective.h"
#include "tests/bench/device_benchmarks.h"

namespace intrawarp {
namespace {

constexpr double kSpacing = 5;

// A textured body before a background of one value; u, v, w in [-1, 1] over the image.
float Texture(double u, double v, double w) {
  const double r = std::sqrt(u * u / 0.62 + v * v / 0.5 + w * w / 0.55);
  const double body = r > 1.2 ? 0 : 1 / (1 + std::exp((r - 1) * 30));
  const double inner = std::sin(7 * u + 2 * v) + std::sin(6 * v - 3 * w) + std::sin(5 * w + 4 * u * v);
  return static_cast<float>(body * (100 + 18 * inner + 4 * std::sin(61 * u + 40 * v) * std::sin(53 * w)));
}

std::vector<float> MakeImage(Int3 size, double shift) {
  std::vector<float> image(static_cast<size_t>(size.x) * size.y * size.z);
  ParallelFor(size.z, [&](int64_t z) {
    size_t i = static_cast<size_t>(z) * size.x * size.y;
    for (int y = 0; y < size.y; ++y)
      for (int x = 0; x < size.x; ++x, ++i) {
        const double u = 2.0 * x / size.x - 1, v = 2.0 * y / size.y - 1, w = 2.0 * z / size.z - 1;
        image[i] = Texture(u + shift, v - 0.5 * shift, w + 0.7 * shift);
      }
  });
  return image;
}

Geometry MakeGrid(const Geometry& image) {
  Geometry grid = image;
  for (int a = 0; a < 3; ++a) {
    grid.spacing[a] = kSpacing * image.spacing[a];
    grid.size[a] = static_cast<int>(std::ceil(image.size[a] / kSpacing)) + 3;
  }
  grid.origin = IndexToPhysical(image)({-0.5 - kSpacing, -0.5 - kSpacing, -0.5 - kSpacing});
  return grid;
}

// A smooth field of up to three voxels.
std::vector<float> MakeCoefficients(Int3 n) {
  std::vector<float> c;
  for (int z = 0; z < n.z; ++z)
    for (int y = 0; y < n.y; ++y)
      for (int x = 0; x < n.x; ++x)
        for (int k = 0; k < 3; ++k) {
          c.push_back(
              static_cast<float>(1.5 * std::sin(0.31 * x + 0.2 * z + k) + 1.5 * std::cos(0.27 * y - 0.1 * z + k)));
        }
  return c;
}

template <typename T>
Buffer Upload(const ExecContext& ctx, const std::vector<T>& values) {
  Buffer b = *ctx.device().Allocate(values.size() * sizeof(T), ctx.stream());
  Check(ctx.device().Copy(b.as<void>(), values.data(), b.bytes(), ctx.stream()));
  Check(ctx.device().Synchronize(ctx.stream()));
  return b;
}

enum class Masks { kNone, kBinary, kWeights };

// Without the corner; weights are 128 to 255.
std::vector<uint8_t> MaskBytes(const Geometry& g, Masks masks) {
  std::vector<uint8_t> bytes(g.voxels());
  for (int64_t v = 0; v < g.voxels(); ++v) {
    const int64_t x = v % g.size.x, z = v / (int64_t{g.size.x} * g.size.y);
    const bool is_corner = 8 * x < g.size.x && 8 * z < g.size.z;
    bytes[v] = is_corner ? 0 : masks == Masks::kWeights ? 128 + v % 128 : 1;
  }
  return bytes;
}

double BytesPerVoxel(MetricKind metric, bool gradient) {
  switch (metric) {
    case MetricKind::kSsd:
      return 8;
    case MetricKind::kMind:  // both descriptors; the CPU reads twelve channels of both
      return 32;
    case MetricKind::kNmi:  // bin and moving image, twice
      return gradient ? 10 : 5;
    default:  // warp: moving, warped; the metric: fixed, warped, voxel_gradient; force: moving, voxel_gradient
      return gradient ? 28 : 16;
  }
}

void BenchEvaluation(benchmark::State& state, Device* device, MetricKind metric, Int3 size, bool with_gradient,
                     Masks masks) {
  Geometry geometry;
  geometry.size = size;
  FfdObjective objective;
  objective.metric = metric;
  objective.grid = MakeGrid(geometry);
  OwnedContext owned =
      *OwnedContext::Create(*device, FfdEvaluatorBytes(*device, metric, geometry, geometry, objective.grid));
  const ExecContext ctx = owned.context();
  const std::vector<float> fixed_image = MakeImage(size, 0), moving_image = MakeImage(size, 0.02);
  const Buffer fixed = Upload(ctx, fixed_image), moving = Upload(ctx, moving_image),
               grid = Upload(ctx, MakeCoefficients(objective.grid.size));
  objective.fixed = {fixed.as<float>(), geometry};
  objective.moving = {moving.as<float>(), geometry};
  objective.affine = AffineMap::Identity();
  objective.affine.m[0][1] = 0.01;
  objective.affine.m[1][3] = 0.37;
  objective.fixed_maximum = *std::max_element(fixed_image.begin(), fixed_image.end());
  objective.moving_maximum = *std::max_element(moving_image.begin(), moving_image.end());
  objective.fixed_stddev = objective.moving_stddev = 40;
  objective.fixed_edge = objective.moving_edge = 2;
  objective.intensity_scale = 0.01;
  const Buffer mask = Upload(ctx, MaskBytes(geometry, masks));
  if (masks != Masks::kNone) {
    objective.fixed_mask = {mask.as<uint8_t>(), geometry, masks == Masks::kWeights ? 1 / 255.0f : 1};
    objective.moving_mask = objective.fixed_mask;
  }
  auto evaluator = MakeFfdEvaluator(ctx, objective);
  Check(evaluator.status());
  const Buffer gradient = *device->Allocate(3 * sizeof(float) * objective.grid.voxels(), ctx.stream());
  const Buffer value = *device->Allocate(sizeof(MetricValue), ctx.stream());
  const auto evaluate = [&] {
    Check((*evaluator)
              ->Evaluate(ctx, grid.as<float>(), nullptr, with_gradient ? gradient.as<float>() : nullptr,
                         value.as<MetricValue>()));
  };
  evaluate();
  // Enough for the launches of one to hide behind the work of others.
  const int repeats = ctx.is_cuda() ? 50 : 1;
  double best = 1e9;
  for (auto _ : state) {
    Check(device->Synchronize(ctx.stream()));
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < repeats; ++i) evaluate();
    Check(device->Synchronize(ctx.stream()));
    const double seconds = Seconds(begin) / repeats;
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
  }
  const double floor = 8.0 * geometry.voxels() / CopyBandwidth(*device);
  MetricValue result;
  Check(device->Copy(&result, value.as<void>(), sizeof(result), ctx.stream()));
  Check(device->Synchronize(ctx.stream()));
  state.counters["best_us"] = best * 1e6;
  state.counters["ns_voxel"] = best * 1e9 / geometry.voxels();
  state.counters["floor_us"] = floor * 1e6;
  state.counters["to_floor"] = best / floor;
  state.counters["bytes_voxel"] = BytesPerVoxel(metric, with_gradient);
  state.counters["value"] = result.metric;
}

void Register(const std::string& name, Device* device, MetricKind metric, Int3 size, bool with_gradient, Masks masks) {
  benchmark::RegisterBenchmark(name.c_str(), BenchEvaluation, device, metric, size, with_gradient, masks)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

void RegisterAll(Device* device) {
  for (const MetricTraits& metric : kMetricTable) {
    for (Int3 size : {Int3{294, 130, 208}, Int3{512, 228, 385}, Int3{256, 256, 256}}) {
      for (int level = 0; level < 3; ++level, size = {(size.x + 1) / 2, (size.y + 1) / 2, (size.z + 1) / 2}) {
        for (bool gradient : {true, false}) {
          const std::string name = absl::StrCat(device->name(), "/", metric.name, "/", size.x, "x", size.y, "x", size.z,
                                                gradient ? "/gradient" : "/value");
          Register(name, device, metric.kind, size, gradient, Masks::kNone);
        }
      }
    }
    for (const auto& [masks, masks_name] :
         {std::pair(Masks::kBinary, "masks"), std::pair(Masks::kWeights, "weights")}) {
      const std::string name = absl::StrCat(device->name(), "/", metric.name, "/294x130x208/", masks_name);
      Register(name, device, metric.kind, {294, 130, 208}, /*with_gradient=*/true, masks);
    }
  }
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) { return intrawarp::DeviceBenchmarksMain(argc, argv, intrawarp::RegisterAll); }
