// SPDX-License-Identifier: Apache-2.0
// Affine registration: one evaluation of the objective, and a whole multilevel registration of resident volumes.
//
//   affine_bench [--benchmark_filter=cuda:0/...] ...
//
// floor_ms: reading the fixed and the moving image once (8 bytes a voxel) at the bandwidth that a plain copy reaches on
// this device in this run (bytes read and written). For a registration, the floor is that times its accepted
// evaluations (one more than the iterations of a level), each at its level's size. to_floor: time over floor.
#include "tests/bench/affine_bench.h"

#include <benchmark/benchmark.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/device/parallel.h"
#include "engine/registration/registration.h"
#include "tests/bench/device_benchmarks.h"

namespace intrawarp {
namespace {

constexpr size_t kWorkspace = size_t{1} << 30;

// A textured body; u, v, w in [-1, 1] over the image.
float Texture(double u, double v, double w) {
  const double r = std::sqrt(u * u / 0.62 + v * v / 0.5 + w * w / 0.55);
  const double body = 1 / (1 + std::exp((r - 1) * 30));
  const double inner = std::sin(7 * u + 2 * v) + std::sin(6 * v - 3 * w) + std::sin(5 * w + 4 * u * v);
  return static_cast<float>(body * (100 + 18 * inner));
}

struct Images {
  PreparedImage fixed, moving;
};

// moving = texture, fixed = texture after a turn of 6 degrees, scales of up to 4 % and a shift of 4 % of the image.
Images MakeImages(const ExecContext& ctx, Int3 size, bool inverted) {
  Geometry g;
  g.size = size;
  const int64_t plane = int64_t{size.x} * size.y;
  std::vector<float> fixed(g.voxels()), moving(g.voxels());
  const double c = std::cos(0.105), s = std::sin(0.105);
  ParallelFor(size.z, [&](int64_t z) {
    for (int y = 0; y < size.y; ++y)
      for (int x = 0; x < size.x; ++x) {
        const double u = 2.0 * x / size.x - 1, v = 2.0 * y / size.y - 1, w = size.z > 1 ? 2.0 * z / size.z - 1 : 0;
        const size_t i = z * plane + int64_t{y} * size.x + x;
        moving[i] = Texture(u, v, w);
        if (inverted) moving[i] = 300 - 1.5f * moving[i];
        fixed[i] = Texture(1.04 * (c * u - s * v) + 0.04, 0.97 * (s * u + c * v) - 0.03, size.z > 1 ? w + 0.05 : 0);
      }
  });
  return {*PreparedImage::Prepare(ctx, fixed.data(), PixelType::kFloat32, 1, 0, g),
          *PreparedImage::Prepare(ctx, moving.data(), PixelType::kFloat32, 1, 0, g)};
}

void Report(benchmark::State& state, double floor_seconds, double seconds) {
  state.counters["floor_ms"] = floor_seconds * 1e3;
  state.counters["to_floor"] = seconds / floor_seconds;
}

void BenchObjective(benchmark::State& state, Device* device, MetricKind metric, Int3 size) {
  OwnedContext owned = *OwnedContext::Create(*device, kWorkspace);
  const ExecContext ctx = owned.context();
  const Images images = MakeImages(ctx, size, metric == MetricKind::kNgf);
  AffineObjective objective{metric,
                            images.fixed.volume(),
                            images.moving.volume(),
                            {},
                            {},
                            images.fixed.levels()[0].mean_gradient,
                            images.moving.levels()[0].mean_gradient,
                            0.01};
  const VolumeStatistics &f = images.fixed.statistics(), &m = images.moving.statistics();
  objective.fixed_minimum = f.minimum;
  objective.fixed_maximum = f.maximum;
  objective.moving_minimum = m.minimum;
  objective.moving_maximum = m.maximum;
  objective.fixed_stddev = f.stddev;
  objective.moving_stddev = m.stddev;
  AffineMap w = NormalizedToIndex(images.fixed.geometry());
  w.m[0][1] += 0.01 * size.x;
  w.m[1][3] += 0.37;
  double seconds = 0;
  for (auto _ : state) {
    if (ctx.is_cuda()) {
#if INTRAWARP_WITH_CUDA
      seconds = *cuda::TimeObjectiveLaunches(ctx, objective, w, 20);
#endif
    } else {
      NormalEquations sums;
      const Clock::time_point begin = Clock::now();
      Check(EvaluateAffineObjective(ctx, objective, w, &sums));
      seconds = Seconds(begin);
    }
    state.SetIterationTime(seconds);
  }
  Report(state, 8.0 * images.fixed.geometry().voxels() / CopyBandwidth(*device), seconds);
}

void BenchRegistration(benchmark::State& state, Device* device, MetricKind metric, Int3 size) {
  OwnedContext owned = *OwnedContext::Create(*device, kWorkspace);
  const ExecContext ctx = owned.context();
  const Images images = MakeImages(ctx, size, metric == MetricKind::kNgf);
  const RegistrationInput input{&images.fixed, &images.moving, nullptr, nullptr, {AffineOptions{metric}}, {}};
  Check(Register(ctx, input).status());
  double seconds = 0, evaluated_voxels = 0, iterations = 0, finest = 0;
  for (auto _ : state) {
    const Clock::time_point begin = Clock::now();
    const RegistrationResult result = *Register(ctx, input);
    seconds = Seconds(begin);
    state.SetIterationTime(seconds);
    evaluated_voxels = iterations = 0;
    for (const LevelReport& level : result.stages[0].levels) {
      evaluated_voxels += (level.iterations + 1.0) * level.size.x * level.size.y * level.size.z;
      iterations += level.iterations;
      finest = level.iterations;
    }
  }
  state.counters["iterations"] = iterations;
  state.counters["finest"] = finest;
  Report(state, 8.0 * evaluated_voxels / CopyBandwidth(*device), seconds);
}

std::string SizeName(Int3 n) { return n.z > 1 ? absl::StrCat(n.x, "x", n.y, "x", n.z) : absl::StrCat(n.x, "x", n.y); }

void RegisterAll(Device* device) {
  for (const Int3 size : {Int3{512, 512, 1}, Int3{4096, 4096, 1}, Int3{128, 128, 128}, Int3{256, 256, 256}}) {
    for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNgf, MetricKind::kNmi, MetricKind::kLncc}) {
      const std::string name = absl::StrCat(device->name(), "/", MetricName(metric), "/", SizeName(size));
      benchmark::RegisterBenchmark(absl::StrCat(name, "/objective").c_str(), BenchObjective, device, metric, size)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
      benchmark::RegisterBenchmark(absl::StrCat(name, "/registration").c_str(), BenchRegistration, device, metric, size)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) { return intrawarp::DeviceBenchmarksMain(argc, argv, intrawarp::RegisterAll); }
