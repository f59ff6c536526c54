// SPDX-License-Identifier: Apache-2.0
// Log-demons: its operators on vector fields, and whole registrations at one level.
//
//   demons_bench [--benchmark_filter=cuda:0/smooth3/...] ...
//
// ns_voxel: of the best time. floor_ns: the bytes that the operator must move (vector_field.h) at the bandwidth of a
// plain copy, measured in the same run; to_floor: time over it. On CUDA an operator's time is that of 20 calls enqueued
// together. "iterations": 100 (CPU: 10) iterations at one level with sigma 3 (fluid) and 2 (diffusion), images
// resident, nothing allocated but the result; ns_voxel is that of one iteration.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/registration/log_demons.h"
#include "engine/transform/vector_field.h"

namespace intrawarp {
namespace {

using Clock = std::chrono::steady_clock;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::exit(1);
}

double Seconds(const ExecContext& ctx, int calls, const std::function<absl::Status()>& call) {
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < calls; ++i) Check(call());
  Check(ctx.device().Synchronize(ctx.stream()));
  return std::chrono::duration<double>(Clock::now() - begin).count() / calls;
}

int CallsAtOnce(const ExecContext& ctx) { return ctx.is_cuda() ? 20 : 1; }

// Nanoseconds a byte that a copy reads or writes.
double CopyNsPerByte(const ExecContext& ctx) {
  const size_t bytes = ctx.is_cuda() ? size_t{1} << 30 : size_t{1} << 28;
  const Buffer from = *ctx.device().Allocate(bytes, ctx.stream()), to = *ctx.device().Allocate(bytes, ctx.stream());
  Check(ctx.device().Fill(from.as<void>(), 1, bytes, ctx.stream()));
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    best = std::min(best, Seconds(ctx, CallsAtOnce(ctx), [&] {
                      return ctx.device().Copy(to.as<void>(), from.as<void>(), bytes, ctx.stream());
                    }));
  }
  return best * 1e9 / (2.0 * static_cast<double>(bytes));
}

void Report(benchmark::State& state, double best, double voxels, double bytes, double ns_per_byte) {
  const double ns = best * 1e9 / voxels;
  state.counters["ns_voxel"] = ns;
  state.counters["floor_ns"] = bytes * ns_per_byte;
  state.counters["to_floor"] = ns / (bytes * ns_per_byte);
}

// Motion of up to `amplitude` voxels.
Buffer MakeField(const ExecContext& ctx, Int3 size, float amplitude) {
  std::vector<float> values;
  values.reserve(size_t{3} * size.x * size.y * size.z);
  for (int z = 0; z < size.z; ++z)
    for (int y = 0; y < size.y; ++y)
      for (int x = 0; x < size.x; ++x) {
        values.push_back(amplitude * std::sin(0.1f * y));
        values.push_back(amplitude * std::cos(0.08f * x + 0.05f * z));
        values.push_back(amplitude * std::sin(0.07f * z - 0.06f * x));
      }
  Buffer buffer = *ctx.device().Allocate(values.size() * sizeof(float), ctx.stream());
  Check(ctx.device().Copy(buffer.as<float>(), values.data(), buffer.bytes(), ctx.stream()));
  Check(ctx.device().Synchronize(ctx.stream()));
  return buffer;
}

struct Operator {
  const char* name;
  double bytes;
  std::function<absl::Status(const ExecContext&, Int3, const float* in, float* other, float* out, float* largest)> run;
};

std::vector<Operator> Operators() {
  using Ctx = ExecContext;
  return {
      {"smooth2", 72,
       [](const Ctx& c, Int3 n, const float* in, float*, float* out, float*) {
         return SmoothVectorField(c, in, n, {2, 2, 2}, out);
       }},
      {"smooth3", 72,
       [](const Ctx& c, Int3 n, const float* in, float*, float* out, float*) {
         return SmoothVectorField(c, in, n, {3, 3, 3}, out);
       }},
      {"smooth3_add_largest", 84,
       [](const Ctx& c, Int3 n, const float* in, float* add, float* out, float* largest) {
         return SmoothVectorField(c, in, n, {3, 3, 3}, out, add, largest);
       }},
      {"compose", 36,
       [](const Ctx& c, Int3 n, const float* in, float* other, float* out, float*) {
         return ComposeVectorFields(c, in, other, n, out);
       }},
      {"exponential3", 96,  // three squarings
       [](const Ctx& c, Int3 n, const float* in, float*, float* out, float* largest) {
         return ExponentiateVectorField(c, in, n, 1, largest, 3, out);
       }},
      {"bch", 36,
       [](const Ctx& c, Int3 n, const float* in, float* other, float* out, float*) {
         return BchUpdate(c, in, other, n, out);
       }},
      {"largest", 12,
       [](const Ctx& c, Int3 n, const float* in, float*, float*, float* largest) {
         return LargestComponent(c, in, n, largest);
       }},
  };
}

void BenchOperator(benchmark::State& state, Device* device, Int3 size, const Operator& op) {
  const size_t workspace = std::max(SmoothVectorFieldWorkspaceBytes(size), ExponentiateWorkspaceBytes(size));
  OwnedContext owned = *OwnedContext::Create(*device, workspace);
  const ExecContext ctx = owned.context();
  const Buffer in = MakeField(ctx, size, 4), other = MakeField(ctx, size, 2), out = MakeField(ctx, size, 0),
               largest = *device->Allocate(sizeof(float), ctx.stream());
  Check(LargestComponent(ctx, in.as<float>(), size, largest.as<float>()));
  const double ns_per_byte = CopyNsPerByte(ctx);
  double best = 1e9;
  for (auto _ : state) {
    const double seconds = Seconds(ctx, CallsAtOnce(ctx), [&] {
      return op.run(ctx, size, in.as<float>(), other.as<float>(), out.as<float>(), largest.as<float>());
    });
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  Report(state, best, static_cast<double>(size.x) * size.y * size.z, op.bytes, ns_per_byte);
}

PreparedImage MakeImage(const ExecContext& ctx, Int3 size, float shift) {
  Geometry g;
  g.size = size;
  std::vector<float> values;
  values.reserve(g.voxels());
  for (int z = 0; z < size.z; ++z)
    for (int y = 0; y < size.y; ++y)
      for (int x = 0; x < size.x; ++x) {
        values.push_back(std::sin(0.21f * x + shift) + std::cos(0.17f * y - 0.1f * z + shift) +
                         std::sin(0.13f * z + 0.07f * x));
      }
  return *PreparedImage::Prepare(ctx, values.data(), PixelType::kFloat32, 1, 0, g);
}

void BenchIterations(benchmark::State& state, Device* device, Int3 size, VelocityUpdate update, bool symmetric) {
  Geometry g;
  g.size = size;
  OwnedContext images_context = *OwnedContext::Create(*device, PreparedImage::WorkspaceBytes(g, PixelType::kFloat32));
  const PreparedImage fixed = MakeImage(images_context.context(), size, 0),
                      moving = MakeImage(images_context.context(), size, 0.4f);
  RegistrationImages images{&fixed, &moving, {}, {}};
  OwnedContext masks_context = *OwnedContext::Create(*device, 1 << 20);
  images.fixed_masks = *BuildMaskLevels(masks_context.context(), "fixed_mask", fixed, nullptr);
  images.moving_masks = *BuildMaskLevels(masks_context.context(), "moving_mask", moving, nullptr);
  OwnedContext owned = *OwnedContext::Create(*device, LogDemonsWorkspaceBytes(fixed, moving));
  const ExecContext ctx = owned.context();
  LogDemonsOptions options;
  options.levels = 1;
  options.iterations = ctx.is_cuda() ? 100 : 10;
  options.tolerance = 0;
  options.update = update;
  options.symmetric = symmetric;
  const double ns_per_byte = CopyNsPerByte(ctx);
  double best = 1e9;
  for (auto _ : state) {
    const double seconds =
        Seconds(ctx, 1, [&] { return RunLogDemonsStage(ctx, images, options, 0, AffineMap::Identity(), {}).status(); });
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  state.counters["total_ms"] = best * 1e3;
  // Without squarings, which the motion decides: what every iteration moves.
  const double bytes = symmetric ? 284 : 220;
  Report(state, best / options.iterations, static_cast<double>(g.voxels()), bytes, ns_per_byte);
}

void RegisterAll(Device* device) {
  const std::vector<Int3> sizes = device->kind() == DeviceKind::kCuda
                                      ? std::vector<Int3>{{110, 109, 109}, {256, 256, 256}, {334, 399, 278}}
                                      : std::vector<Int3>{{128, 128, 128}};
  for (const Int3 size : sizes) {
    const std::string at = absl::StrCat("/", size.x, "x", size.y, "x", size.z);
    for (const Operator& op : Operators()) {
      benchmark::RegisterBenchmark(absl::StrCat(device->name(), "/", op.name, at).c_str(),
                                   [=](benchmark::State& state) { BenchOperator(state, device, size, op); })
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
    const std::pair<const char*, VelocityUpdate> updates[] = {
        {"add", VelocityUpdate::kAdd}, {"compose", VelocityUpdate::kCompose}, {"bch", VelocityUpdate::kBch}};
    for (const auto& [name, update] : updates) {
      for (const bool symmetric : {false, true}) {
        const std::string full = absl::StrCat(device->name(), "/iterations/", name, symmetric ? "_symmetric" : "", at);
        benchmark::RegisterBenchmark(
            full.c_str(),
            [=, update = update](benchmark::State& state) { BenchIterations(state, device, size, update, symmetric); })
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const auto devices = intrawarp::AllDevices();
  for (const auto& device : devices) intrawarp::RegisterAll(device.get());
  benchmark::RunSpecifiedBenchmarks();
}
