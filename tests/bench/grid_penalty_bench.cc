// SPDX-License-Identifier: Apache-2.0
// Penalties on control grids, and cubic interpolation of images.
//
//   grid_penalty_bench [--benchmark_filter=cuda:0/penalty/bending/...] ...
//
// floor_us: for penalties a plain copy of the control points, as often enqueued and waited for; for images the
// operator's least traffic (prefilter: 8 bytes a voxel and axis; warps: 8 a voxel, and the prefilter's) at the
// bandwidth of a plain copy of 1 GiB (CPU: 256 MiB). to_floor: time over it. On CUDA the time is that of 20 calls
// enqueued together. "folded" grids have samples below the jacobian threshold everywhere, "smooth" ones nowhere.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/image/bspline_filter.h"
#include "engine/image/warp.h"
#include "engine/transform/grid_penalty.h"
#include "tests/bench/bench_support.h"

namespace intrawarp {
namespace {

// The time of one call out of several enqueued together.
double SecondsOfCall(const ExecContext& ctx, const std::function<absl::Status()>& call) {
  const int calls = ctx.is_cuda() ? 20 : 1;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < calls; ++i) Check(call());
  Check(ctx.device().Synchronize(ctx.stream()));
  return Seconds(begin) / calls;
}

double BestSeconds(const ExecContext& ctx, const std::function<absl::Status()>& call) {
  double best = 1e9;
  for (int i = 0; i < 10; ++i) best = std::min(best, SecondsOfCall(ctx, call));
  return best;
}

double CopySeconds(const ExecContext& ctx, size_t bytes) {
  Buffer from = *ctx.device().Allocate(bytes, ctx.stream()), to = *ctx.device().Allocate(bytes, ctx.stream());
  Check(ctx.device().Fill(from.as<void>(), 1, bytes, ctx.stream()));
  return BestSeconds(ctx, [&] { return ctx.device().Copy(to.as<void>(), from.as<void>(), bytes, ctx.stream()); });
}

void Time(benchmark::State& state, const ExecContext& ctx, double floor, const std::function<absl::Status()>& call) {
  SecondsOfCall(ctx, call);
  double best = 1e9;
  for (auto _ : state) {
    const double seconds = SecondsOfCall(ctx, call);
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  state.counters["best_us"] = best * 1e6;
  state.counters["floor_us"] = floor * 1e6;
  state.counters["to_floor"] = best / floor;
}

Buffer ToDevice(const ExecContext& ctx, const std::vector<float>& values) {
  Buffer buffer = *ctx.device().Allocate(values.size() * sizeof(float), ctx.stream());
  Check(ctx.device().Copy(buffer.as<float>(), values.data(), buffer.bytes(), ctx.stream()));
  Check(ctx.device().Synchronize(ctx.stream()));
  return buffer;
}

void BenchPenalty(benchmark::State& state, Device* device, PenaltyWeights weights, Int3 size, bool folded) {
  Geometry g;
  g.size = size;
  g.spacing = {5, 5, 5};
  OwnedContext owned = *OwnedContext::Create(*device, GridPenaltyWorkspaceBytes(g));
  const ExecContext ctx = owned.context();
  std::vector<float> points;
  std::mt19937 engine(1);
  std::uniform_real_distribution<float> noise(-15, 15);
  for (int64_t i = 0; i < g.voxels(); ++i) {
    const double x = static_cast<double>(i % size.x), y = static_cast<double>(i / size.x % size.y),
                 z = static_cast<double>(i / size.x / size.y);
    const double u[3] = {8 * std::sin(0.1 * x + 0.05 * y), 7 * std::cos(0.1 * y + 0.08 * z),
                         8 * std::sin(0.1 * z - 0.06 * x)};
    for (double c : u) points.push_back(static_cast<float>(c) + (folded ? noise(engine) : 0));
  }
  const Buffer grid = ToDevice(ctx, points), gradient = ToDevice(ctx, std::vector<float>(points.size()));
  const Buffer value = *device->Allocate(sizeof(double), ctx.stream());
  Time(state, ctx, CopySeconds(ctx, points.size() * sizeof(float)), [&] {
    return AddGridPenalties(ctx, weights, 1, {grid.as<float>(), g}, nullptr, gradient.as<float>(), value.as<double>());
  });
}

void BenchImage(benchmark::State& state, Device* device, Int3 size, bool warps) {
  Geometry g;
  g.size = size;
  OwnedContext owned = *OwnedContext::Create(*device, CubicWarpWorkspaceBytes(g));
  const ExecContext ctx = owned.context();
  std::vector<float> values(g.voxels());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1013);
  const Buffer image = ToDevice(ctx, values), out = ToDevice(ctx, values);
  AffineMap turn = AffineMap::Identity();
  turn.m[0][1] = 0.05;
  turn.m[1][0] = -0.05;
  turn.m[2][3] = 0.3;
  const size_t copied = ctx.is_cuda() ? size_t{1} << 30 : size_t{1} << 28;
  const double voxel = CopySeconds(ctx, copied) / (copied / sizeof(float));
  Time(state, ctx, voxel * static_cast<double>(g.voxels()) * (warps ? 4 : 3), [&] {
    return warps ? WarpAffine(ctx, {image.as<float>(), g}, turn, Interpolation::kCubic, 0, {out.as<float>(), g})
                 : PrefilterCubic(ctx, {image.as<float>(), g}, {out.as<float>(), g});
  });
}

template <typename... Args>
void Register(const std::string& name, Args... args) {
  benchmark::RegisterBenchmark(name.c_str(), args...)->UseManualTime()->MinTime(0.3)->Unit(benchmark::kMicrosecond);
}

void RegisterAll(const std::vector<std::unique_ptr<Device>>& devices) {
  const std::pair<const char*, PenaltyWeights> penalties[] = {
      {"bending", {1, 0, 0}}, {"elasticity", {0, 1, 0}}, {"jacobian", {0, 0, 1}}, {"all", {1, 1, 1}}};
  for (const auto& device : devices) {
    for (Int3 size : {Int3{60, 27, 43}, Int3{105, 48, 80}}) {
      const std::string suffix = absl::StrCat(size.x, "x", size.y, "x", size.z);
      for (const auto& [name, weights] : penalties) {
        Register(absl::StrCat(device->name(), "/penalty/", name, "/smooth/", suffix), BenchPenalty, device.get(),
                 weights, size, false);
      }
      Register(absl::StrCat(device->name(), "/penalty/jacobian/folded/", suffix), BenchPenalty, device.get(),
               PenaltyWeights{0, 0, 1}, size, true);
    }
    for (Int3 size : {Int3{256, 256, 256}, Int3{512, 228, 385}}) {
      const std::string suffix = absl::StrCat(size.x, "x", size.y, "x", size.z);
      Register(absl::StrCat(device->name(), "/cubic/prefilter/", suffix), BenchImage, device.get(), size, false);
      Register(absl::StrCat(device->name(), "/cubic/warp/", suffix), BenchImage, device.get(), size, true);
    }
  }
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const auto devices = intrawarp::AllDevices();
  intrawarp::RegisterAll(devices);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
