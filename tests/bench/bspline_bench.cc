// SPDX-License-Identifier: Apache-2.0
// B-spline interpolation of a dense field from control points, and the operators beside it, on resident data.
//
//   bspline_bench [--rows=1|2|4] [--planes=N] [--benchmark_filter=cuda:0/evaluate/...] ...
//
// ns_voxel: time a voxel. GB_s: the bytes that must move (stores of a field 12, of a determinant 4, loads of a
// transposed field 12 a voxel) over the time. floor_ns: the same bytes moved by the fastest plain fill (vectors,
// memset, past the caches; for the transpose: half of a copy) in this run, on this memory. of_floor: floor over time, 1
// at best. error: mean absolute difference to float64, at rows drawn at random, for control points uniform in (-10,
// 10).
//
// --rows and --planes override how the CUDA kernel cuts its work.
#include "tests/bench/bspline_bench.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/device/parallel.h"
#include "engine/transform/control_grid.h"
#include "engine/transform/control_grid_kernels.h"
#include "engine/transform/float_rows.h"
#include "hwy/cache_control.h"
#include "tests/bench/bench_support.h"

namespace intrawarp {
namespace {

EvaluationTuning tuning;

// Seconds of one call: inside the device, or of the fastest of a few on the CPU.
double Time([[maybe_unused]] const ExecContext& ctx, const std::function<absl::Status()>& call) {
#if INTRAWARP_WITH_CUDA
  if (ctx.is_cuda()) return Value(cuda::TimeLaunches(ctx, 20, call));
#endif
  double best = 1e9;
  for (int i = 0; i < 4; ++i) {
    const Clock::time_point begin = Clock::now();
    Check(call());
    if (i > 0) best = std::min(best, Seconds(begin));
  }
  return best;
}

// Seconds of the fastest plain fill of `count` floats.
double FillSeconds(const ExecContext& ctx, float* out, int64_t count) {
  const size_t bytes = count * sizeof(float);
  const double set = Time(ctx, [&] { return ctx.device().Fill(out, 0, bytes, ctx.stream()); });
#if INTRAWARP_WITH_CUDA
  if (ctx.is_cuda()) return std::min(set, Time(ctx, [&] { return cuda::FillVectors(ctx, out, count / 4 * 4); }));
#endif
  static constexpr int64_t kPiece = 1 << 16;
  const auto in_pieces = [&](const auto& body) {
    return Time(ctx, [&] {
      ParallelFor((count + kPiece - 1) / kPiece,
                  [&](int64_t i) { body(out + i * kPiece, std::min(kPiece, count - i * kPiece)); });
      return absl::OkStatus();
    });
  };
  const auto streamed = [](float* to, int64_t n) {
    static const std::vector<float> ones(kPiece + cpu::RowFloats(0), 1.0f);
    cpu::CopyRow(ones.data(), static_cast<int>(n), /*streamed=*/true, to);
    hwy::FlushStream();
  };
  return std::min({set, in_pieces([](float* to, int64_t n) { std::fill(to, to + n, 1.0f); }),
                   in_pieces([](float* to, int64_t n) { std::memset(to, 0, n * sizeof(float)); }),
                   in_pieces(streamed)});
}

double CopySeconds(const ExecContext& ctx, float* to, const float* from, int64_t count) {
  return Time(ctx, [&] { return ctx.device().Copy(to, from, count * sizeof(float), ctx.stream()); });
}

std::vector<float> Random(int64_t count, float limit) {
  std::mt19937 engine(1);
  std::uniform_real_distribution<float> distribution(-limit, limit);
  std::vector<float> values(count);
  for (float& v : values) v = distribution(engine);
  return values;
}

// An image, its control points and a field, resident.
struct Scene {
  OwnedContext owned;
  ExecContext ctx;
  Geometry image, grid;
  std::vector<float> points;
  Buffer on_device, field;

  Scene(Device& device, Int3 size, double spacing, int64_t workspace)
      : owned(Value(OwnedContext::Create(device, workspace))), ctx(owned.context()) {
    image.size = size;
    grid = Value(MakeControlGrid(image, {spacing, spacing, spacing}));
    points = Random(3 * grid.voxels(), 10);
    on_device = Value(device.Allocate(points.size() * sizeof(float), ctx.stream()));
    field = Value(device.Allocate(3 * sizeof(float) * image.voxels(), ctx.stream()));
    Check(device.Copy(on_device.as<float>(), points.data(), points.size() * sizeof(float), ctx.stream()));
    Check(device.Synchronize(ctx.stream()));
  }
  ConstFieldView control_grid() const { return {on_device.as<float>(), grid}; }
};

struct DoubleTap {
  int base;
  double weight[4];
};

// Mean absolute difference to float64 over rows drawn at random.
double MeanError(Scene& s) {
  constexpr int kRows = 200;
  const AffineMap map = Compose(PhysicalToIndex(s.grid), IndexToPhysical(s.image));
  const auto tap = [&](int axis, int voxel) {
    const SplinePosition a = MakeSplinePosition(map.m[axis][3] + map.m[axis][axis] * voxel, s.grid.size[axis]);
    DoubleTap t{a.base, {}};
    BsplineWeights(a.t, t.weight);
    return t;
  };
  std::mt19937 engine(2);
  const Int3 n = s.image.size, nodes = s.grid.size;
  std::vector<float> row(3 * n.x);
  double sum = 0;
  for (int i = 0; i < kRows; ++i) {
    const int y = static_cast<int>(engine() % n.y), z = static_cast<int>(engine() % n.z);
    const float* from = s.field.as<float>() + 3 * (int64_t{z} * n.y + y) * n.x;
    Check(s.ctx.device().Copy(row.data(), from, row.size() * sizeof(float), s.ctx.stream()));
    Check(s.ctx.device().Synchronize(s.ctx.stream()));
    const DoubleTap ty = tap(1, y), tz = tap(2, z);
    for (int x = 0; x < n.x; ++x) {
      const DoubleTap tx = tap(0, x);
      double u[3] = {};
      for (int k = 0; k < 64; ++k) {
        const int a = k % 4, b = k / 4 % 4, c = k / 16;
        const float* node = &s.points[3 * ((int64_t{tz.base + c} * nodes.y + ty.base + b) * nodes.x + tx.base + a)];
        for (int m = 0; m < 3; ++m) u[m] += tx.weight[a] * ty.weight[b] * tz.weight[c] * node[m];
      }
      for (int m = 0; m < 3; ++m) sum += std::abs(row[3 * x + m] - u[m]);
    }
  }
  return sum / kRows / row.size();
}

void Report(benchmark::State& state, const Scene& scene, double seconds, double floor, double bytes) {
  const double voxels = static_cast<double>(scene.image.voxels());
  state.counters["ns_voxel"] = seconds / voxels * 1e9;
  state.counters["GB_s"] = bytes * voxels / seconds / 1e9;
  state.counters["floor_ns"] = floor / voxels * 1e9;
  state.counters["of_floor"] = floor / seconds;
}

absl::Status Evaluate(const Scene& s, const AffineMap& affine, ConstMaskView mask) {
  float* const out = s.field.as<float>();
  const int64_t count = s.image.voxels();
#if INTRAWARP_WITH_CUDA
  if (s.ctx.is_cuda()) {
    const VoxelRun run{s.image.size, 0, count, mask.data, out};
    return cuda::EvaluateAligned(s.ctx, *MakeAlignedEvaluation(s.control_grid(), affine, s.image, run), tuning);
  }
#endif
  return EvaluateControlGrid(s.ctx, s.control_grid(), affine, s.image, 0, count, out, mask);
}

enum class Kind { kPlain, kAffine, kMasked };

void BenchEvaluate(benchmark::State& state, Device* device, Int3 size, double spacing, Kind kind) {
  Scene s(*device, size, spacing, 1);
  AffineMap affine = AffineMap::Identity();
  if (kind == Kind::kAffine) {
    affine.m[0][1] = 0.1;
    affine.m[1][0] = -0.1;
  }
  Buffer memory;
  ConstMaskView mask;
  if (kind == Kind::kMasked) {
    // A ball that fills about half of the image.
    std::vector<uint8_t> ball(s.image.voxels());
    ParallelFor(size.z, [&](int64_t z) {
      for (int y = 0; y < size.y; ++y)
        for (int x = 0; x < size.x; ++x) {
          const double u = 2.0 * x / size.x - 1, v = 2.0 * y / size.y - 1, w = 2.0 * z / size.z - 1;
          ball[(z * size.y + y) * size.x + x] = u * u + v * v + w * w < 0.97;
        }
    });
    memory = Value(device->Allocate(ball.size(), s.ctx.stream()));
    Check(device->Copy(memory.as<uint8_t>(), ball.data(), ball.size(), s.ctx.stream()));
    Check(device->Synchronize(s.ctx.stream()));
    mask = {memory.as<uint8_t>(), s.image};
  }
  const double floor = FillSeconds(s.ctx, s.field.as<float>(), 3 * s.image.voxels());
  double seconds = 0;
  for (auto _ : state) {
    seconds = Time(s.ctx, [&] { return Evaluate(s, affine, mask); });
    state.SetIterationTime(seconds);
  }
  Report(state, s, seconds, floor, 12);
  if (kind == Kind::kPlain) state.counters["error"] = MeanError(s);
}

void BenchDeterminant(benchmark::State& state, Device* device, Int3 size, double spacing) {
  Scene s(*device, size, spacing, 1);
  float* const out = s.field.as<float>();
  const double floor = FillSeconds(s.ctx, out, s.image.voxels());
  double seconds = 0;
  for (auto _ : state) {
    seconds = Time(s.ctx, [&] { return EvaluateControlGridDeterminant(s.ctx, s.control_grid(), {out, s.image}); });
    state.SetIterationTime(seconds);
  }
  Report(state, s, seconds, floor, 4);
}

void BenchTranspose(benchmark::State& state, Device* device, Int3 size, double spacing) {
  Geometry image;
  image.size = size;
  const Geometry grid = Value(MakeControlGrid(image, {spacing, spacing, spacing}));
  Scene s(*device, size, spacing, TransposeControlGridWorkspaceBytes(image, grid));
  Check(Evaluate(s, AffineMap::Identity(), {}));
  const int64_t floats = 3 * s.image.voxels();
  Buffer copy = Value(device->Allocate(floats * sizeof(float), s.ctx.stream()));
  const double floor = 0.5 * CopySeconds(s.ctx, copy.as<float>(), s.field.as<float>(), floats);
  double seconds = 0;
  for (auto _ : state) {
    seconds = Time(s.ctx, [&] {
      return TransposeControlGrid(s.ctx, {s.field.as<float>(), s.image}, {s.on_device.as<float>(), s.grid});
    });
    state.SetIterationTime(seconds);
  }
  Report(state, s, seconds, floor, 12);
}

template <typename Function, typename... Arguments>
void Add(const std::string& name, Function function, Arguments... arguments) {
  benchmark::RegisterBenchmark(name.c_str(), function, arguments...)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(3);
}

std::string SizeName(Int3 n) { return absl::StrCat(n.x, "x", n.y, "x", n.z); }

void AddDevice(Device* device) {
  // Table 2.1 of Zachariadis et al. 2020, and cubes.
  const Int3 sizes[] = {{512, 228, 385}, {294, 130, 208}, {303, 167, 212},
                        {267, 169, 237}, {256, 256, 256}, {512, 512, 512}};
  for (const Int3& size : sizes) {
    const std::string at = SizeName(size);
    for (double spacing : {3.0, 4.0, 5.0, 6.0, 7.0, 4.7}) {
      Add(absl::StrCat(device->name(), "/evaluate/", at, "/", spacing), BenchEvaluate, device, size, spacing,
          Kind::kPlain);
    }
    Add(absl::StrCat(device->name(), "/affine/", at, "/5"), BenchEvaluate, device, size, 5.0, Kind::kAffine);
    Add(absl::StrCat(device->name(), "/masked/", at, "/5"), BenchEvaluate, device, size, 5.0, Kind::kMasked);
    Add(absl::StrCat(device->name(), "/determinant/", at, "/5"), BenchDeterminant, device, size, 5.0);
    Add(absl::StrCat(device->name(), "/transpose/", at, "/5"), BenchTranspose, device, size, 5.0);
  }
}

// Takes --rows and --planes out of the arguments.
void TakeTuning(int* argc, char** argv) {
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    const absl::string_view argument = argv[i];
    const size_t equals = argument.find('=');
    int* const value = argument.substr(0, equals) == "--rows"     ? &tuning.rows
                       : argument.substr(0, equals) == "--planes" ? &tuning.planes
                                                                  : nullptr;
    if (value == nullptr) {
      argv[kept++] = argv[i];
    } else if (equals == absl::string_view::npos || !absl::SimpleAtoi(argument.substr(equals + 1), value)) {
      Check(absl::InvalidArgumentError(argument));
    }
  }
  *argc = kept;
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  intrawarp::TakeTuning(&argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const auto devices = intrawarp::AllDevices();
  for (const auto& device : devices) {
    benchmark::AddCustomContext(device->name(), device->model());
    intrawarp::AddDevice(device.get());
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
