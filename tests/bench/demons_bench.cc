// SPDX-License-Identifier: Apache-2.0
// Log-demons: whole runs of iterations at one level, the operators that CUDA iterates (vector_planes.h), and the
// operators on interleaved fields (vector_field.h), at sizes of the range and proportions of Leong et al. (2021).
//
//   demons_bench [--benchmark_filter=cuda:0/iterations/...]
//
// Each has the best of a few repetitions: ms; ns_voxel; bytes that a voxel moves at least (by the headers' account; of
// iterations, one of them with the squarings of its last); TB_s, those bytes over the time; to_copy, the time over that
// of a plain copy that moves as many bytes, measured in the same run. On CUDA an operator's time is that of 20 calls
// enqueued together. "iterations": 100 (CPU: 10) with sigma 3 (fluid) and 2 (diffusion), images resident, nothing
// allocated but the result, ms is that of all; ns_voxel and what follows are of one; "half" with fields in float16, and
// what the velocity loses by it, in voxels. "same_similarity": the default levels and tolerance with the fewest
// iterations a level (that is all, at the finest "finest") whose mean squared difference, "value", is not above
// "full_value", that of "iterations"; absent within as many iterations a level: reached 0.
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
#include "engine/registration/methods/demons_step_kernels.h"
#include "engine/registration/methods/log_demons.h"
#include "engine/transform/vector_field_kernels.h"
#include "tests/bench/bench_support.h"
#if INTRAWARP_WITH_CUDA
#include "engine/transform/vector_planes.h"
#endif

namespace intrawarp {
namespace {

constexpr int kRepetitions = 3;
constexpr double kFluid = 3, kDiffusion = 2;

double SecondsOfCall(const ExecContext& ctx, int calls, const std::function<absl::Status()>& call) {
  Check(ctx.device().Synchronize(ctx.stream()));
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < calls; ++i) Check(call());
  Check(ctx.device().Synchronize(ctx.stream()));
  return Seconds(begin) / calls;
}

int CallsAtOnce(const ExecContext& ctx) { return ctx.is_cuda() ? 20 : 1; }

// Seconds a byte that a copy reads or writes.
double CopySecondsPerByte(const ExecContext& ctx) {
  const size_t bytes = ctx.is_cuda() ? size_t{1} << 30 : size_t{1} << 28;
  const Buffer from = *ctx.device().Allocate(bytes, ctx.stream()), to = *ctx.device().Allocate(bytes, ctx.stream());
  Check(ctx.device().Fill(from.as<void>(), 1, bytes, ctx.stream()));
  double best = 1e9;
  for (int i = 0; i < kRepetitions; ++i) {
    best = std::min(best, SecondsOfCall(ctx, CallsAtOnce(ctx), [&] {
                      return ctx.device().Copy(to.as<void>(), from.as<void>(), bytes, ctx.stream());
                    }));
  }
  return best / (2.0 * static_cast<double>(bytes));
}

double Voxels(Int3 size) { return static_cast<double>(size.x) * size.y * size.z; }

// values[i] = f(i) for i in [0, n).
std::vector<float> Table(int n, const std::function<double(int)>& f) {
  std::vector<float> values(n);
  for (int i = 0; i < n; ++i) values[i] = static_cast<float>(f(i));
  return values;
}

PreparedImage MakeImage(const ExecContext& ctx, Int3 size, double shift) {
  Geometry g;
  g.size = size;
  const std::vector<float> in_x = Table(size.x, [&](int x) { return std::sin(0.21 * x + shift); });
  const std::vector<float> in_yz = Table(
      size.y * size.z, [&](int i) { return std::cos(0.17 * (i % size.y) - 0.1 * (i / size.y) + shift); });  // NOLINT
  const std::vector<float> in_xz =
      Table(size.x * size.z, [&](int i) { return std::sin(0.13 * (i / size.x) + 0.07 * (i % size.x)); });  // NOLINT
  std::vector<float> values(g.voxels());
  float* out = values.data();
  for (int z = 0; z < size.z; ++z)
    for (int y = 0; y < size.y; ++y)
      for (int x = 0; x < size.x; ++x) *out++ = in_x[x] + in_yz[z * size.y + y] + in_xz[z * size.x + x];
  return *PreparedImage::Prepare(ctx, values.data(), PixelType::kFloat32, 1, 0, g);
}

// Everything at one size, on one device: a pair of images, smooth motion of up to 3 voxels, room for two more fields
// and two quotients (vector_planes.h).
struct Scene {
  Scene(Device* device, Int3 scene_size)
      : size(scene_size),
        images_context(*OwnedContext::Create(*device, PreparedImage::WorkspaceBytes(Grid(), PixelType::kFloat32))),
        fixed(MakeImage(images_context.context(), size, 0)),
        moving(MakeImage(images_context.context(), size, 0.4)),
        masks_context(*OwnedContext::Create(*device, 1 << 20)),
        owned(*OwnedContext::Create(*device, LogDemonsWorkspaceBytes(fixed, moving))) {
    images = {&fixed, &moving, {}, {}};
    images.fixed_masks = *BuildMaskLevels(masks_context.context(), "fixed_mask", fixed, {});
    images.moving_masks = *BuildMaskLevels(masks_context.context(), "moving_mask", moving, {});
    const ExecContext ctx = owned.context();
    const size_t bytes = 3 * sizeof(float) * fixed.geometry().voxels();
    for (auto& f : fields) f.emplace(*device->Allocate(bytes, ctx.stream()));
    for (auto& q : quotients) q.emplace(*device->Allocate(4 * bytes / 3, ctx.stream()));
    scalar.emplace(*device->Allocate(sizeof(float), ctx.stream()));
    FillField(ctx, 3, fields[0]->as<float>());
    FillField(ctx, 2, fields[1]->as<float>());
  }

  Geometry Grid() const {
    Geometry g;
    g.size = size;
    return g;
  }

  void FillField(const ExecContext& ctx, float amplitude, float* field) const {
    std::vector<float> values(3 * fixed.geometry().voxels());
    const std::vector<float> in_y = Table(size.y, [&](int y) { return amplitude * std::sin(0.1 * y); });
    const std::vector<float> in_xz = Table(size.x * size.z, [&](int i) {
      return amplitude * std::cos(0.08 * (i % size.x) + 0.05 * (i / size.x));  // NOLINT
    });
    float* out = values.data();
    for (int z = 0; z < size.z; ++z)
      for (int y = 0; y < size.y; ++y)
        for (int x = 0; x < size.x; ++x, out += 3) {
          out[0] = in_y[y];
          out[1] = in_xz[z * size.x + x];
          out[2] = -0.5f * out[1];
        }
    Check(ctx.device().Copy(field, values.data(), values.size() * sizeof(float), ctx.stream()));
    Check(ctx.device().Synchronize(ctx.stream()));
  }

  float* field(int i) const { return fields[i]->as<float>(); }
  float* quotient(int i) const { return quotients[i]->as<float>(); }
  float* largest() const { return scalar->as<float>(); }

  Int3 size;
  OwnedContext images_context;
  PreparedImage fixed, moving;
  OwnedContext masks_context;
  RegistrationImages images;
  OwnedContext owned;
  absl::optional<Buffer> fields[4], quotients[2], scalar;
};

// Benchmarks of a size come one after another: the last scene is kept, until main drops it before its device.
std::unique_ptr<Scene>& LastScene() {
  static std::unique_ptr<Scene> scene;
  return scene;
}

Scene& SceneOf(Device* device, Int3 size) {
  static Device* of = nullptr;
  std::unique_ptr<Scene>& scene = LastScene();
  if (scene == nullptr || of != device || !(scene->size == size)) {
    scene.reset();
    scene = std::make_unique<Scene>(device, size);
    of = device;
  }
  return *scene;
}

double SecondsPerByte(Device* device) {
  static std::vector<std::pair<Device*, double>> measured;
  for (const auto& [d, seconds] : measured)
    if (d == device) return seconds;
  OwnedContext owned = *OwnedContext::Create(*device, 0);
  measured.emplace_back(device, CopySecondsPerByte(owned.context()));
  return measured.back().second;
}

void Report(benchmark::State& state, Device* device, double seconds, int times, double voxels, double bytes) {
  const double each = seconds / times;
  state.counters["ms"] = seconds * 1e3;
  state.counters["ns_voxel"] = each * 1e9 / voxels;
  state.counters["bytes"] = bytes;
  state.counters["TB_s"] = bytes * voxels / each * 1e-12;
  state.counters["to_copy"] = each / (bytes * voxels * SecondsPerByte(device));
}

struct Operator {
  const char* name;
  double bytes;
  std::function<absl::Status(const ExecContext&, const Scene&)> run;
};

std::vector<Operator> Operators() {
  using Ctx = ExecContext;
  return {
      {"smooth2", 72,
       [](const Ctx& c, const Scene& s) {
         return SmoothVectorField(c, s.field(0), s.size, {2, 2, 2}, s.field(2));
       }},
      {"smooth3", 72,
       [](const Ctx& c, const Scene& s) {
         return SmoothVectorField(c, s.field(0), s.size, {3, 3, 3}, s.field(2));
       }},
      {"compose", 36,
       [](const Ctx& c, const Scene& s) { return ComposeVectorFields(c, s.field(0), s.field(1), s.size, s.field(2)); }},
      {"exponential2", 72,  // two squarings
       [](const Ctx& c, const Scene& s) {
         return ExponentiateVectorField(c, s.field(0), s.size, 1, s.largest(), 2, s.field(2));
       }},
      {"bch", 36,
       [](const Ctx& c, const Scene& s) { return BchUpdate(c, s.field(0), s.field(1), s.size, s.field(2)); }},
  };
}

#if INTRAWARP_WITH_CUDA
// To the first quotient.
absl::Status ForcePlanes(const ExecContext& ctx, const Scene& scene) {
  DemonsForceTask task;
  task.size = task.force_size = scene.size;
  task.fixed = scene.fixed.levels()[0].volume.data;
  task.warped = scene.moving.levels()[0].volume.data;
  return cuda::DemonsForcePlanes(ctx, task, scene.quotient(0), nullptr, nullptr);
}

// The parts of an iteration on CUDA, on the same motion; the planes are another field with the same numbers, of a
// component that varies along other axes.
std::vector<Operator> PlaneOperators() {
  using Ctx = ExecContext;
  const auto exponential = [](bool half) {
    return [half](const Ctx& c, const Scene& s) {
      cuda::ExponentialWarpTask task;
      task.velocity = s.field(0);
      task.size = s.size;
      task.largest = s.largest();
      task.max_squarings = 2;
      task.work[0] = s.field(1);
      task.work[1] = s.field(2);
      task.half = half;
      task.warp.moving = s.moving.levels()[0].volume.data;
      task.warp.moving_size = s.size;
      task.warp.index_map = AffineMap::Identity();
      task.warp.displacement_map = AffineMapF::Identity();
      task.warp.out = s.field(3);
      task.warp.out_size = s.size;
      return cuda::ExponentialWarp(c, task, nullptr);
    };
  };
  const auto along_xy = [](const Ctx& c, const Scene& s) {
    return cuda::SmoothPlanesXY(c, s.field(0), s.size, 3, {kDiffusion, kDiffusion, kDiffusion}, s.field(2), nullptr,
                                nullptr)
        .status();
  };
  const auto quotient_along_xy = [](const Ctx& c, const Scene& s) {
    return cuda::SmoothPlanesXY(c, s.quotient(0), s.size, 4, {kFluid, kFluid, kFluid}, s.quotient(1), nullptr, nullptr)
        .status();
  };
  const auto along_z = [](const Ctx& c, const Scene& s) {
    return cuda::SmoothPlanesZ(c, s.field(0), s.size, kDiffusion, s.field(2), s.largest(), nullptr);
  };
  // The force's vectors are short, so that samples lie near their voxels, as in an iteration.
  const auto quotient_along_z = [](const Ctx& c, const Scene& s) {
    return cuda::SmoothQuotientZ(c, s.quotient(0), s.size, kFluid, cuda::QuotientUse::kCompose, s.field(3),
                                 s.quotient(1), s.field(2), nullptr);
  };
  return {{"exponential2_warp", 68, exponential(false)},
          {"exponential2_warp_half", 52, exponential(true)},
          {"force", 24, ForcePlanes},
          {"smooth3_quotient_xy", 32, quotient_along_xy},
          {"smooth3_quotient_z_compose", 40, quotient_along_z},
          {"smooth2_xy", 24, along_xy},
          {"smooth2_z", 24, along_z}};
}
#endif

void BenchOperator(benchmark::State& state, Device* device, Int3 size, const Operator& op,
                   [[maybe_unused]] bool planes) {
  Scene& scene = SceneOf(device, size);
  const ExecContext ctx = scene.owned.context();
#if INTRAWARP_WITH_CUDA
  if (planes) {
    scene.FillField(ctx, 3, scene.field(1));
    Check(cuda::ToPlanes(ctx, scene.field(1), size, scene.field(0)));
    Check(ctx.device().Copy(scene.field(3), scene.field(0), 3 * sizeof(float) * scene.fixed.geometry().voxels(),
                            ctx.stream()));
    Check(ForcePlanes(ctx, scene));
  }
#endif
  Check(LargestComponent(ctx, scene.field(0), size, scene.largest()));
  double best = 1e9;
  for (auto _ : state) {
    const double seconds = SecondsOfCall(ctx, CallsAtOnce(ctx), [&] { return op.run(ctx, scene); });
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  Report(state, device, best, 1, Voxels(size), op.bytes);
}

// The bytes that an iteration moves: by the account of vector_planes.h on CUDA, and of vector_field.h on the CPU.
double IterationBytes(bool is_cuda, const LogDemonsOptions& options, int squarings) {
  const bool symmetric = options.symmetric, is_bch = options.update == VelocityUpdate::kBch,
             is_composed = options.update == VelocityUpdate::kCompose;
  double exponential = is_cuda ? 24 * squarings + 20 : 24 * (squarings + 1) + 20;
  // 8 bytes instead of 12 written by the first step, read and written by squarings, and read by the last.
  if (is_cuda && options.half_fields) exponential -= 8 * squarings;
  // On the CPU the denominator is smoothed, and divided by, on its own.
  const double smoothing = is_cuda ? 108 : 144 + 24 + 28;
  // The part of the update that is not fused with the smoothing.
  const double updating = is_bch || (is_composed && !is_cuda) ? 36 : 12;
  return exponential + 24 + smoothing + updating + (symmetric ? exponential + 40 : 0);
}

LogDemonsOptions Smoothing() {
  LogDemonsOptions options;
  options.fluid_sigma = kFluid;
  options.diffusion_sigma = kDiffusion;
  return options;
}

// 100 iterations on CUDA, 10 on the CPU.
LogDemonsOptions Iterations(Device* device) {
  LogDemonsOptions options = Smoothing();
  options.levels = 1;
  options.iterations = device->kind() == DeviceKind::kCuda ? 100 : 10;
  options.tolerance = 0;
  return options;
}

std::vector<float> VelocityOf(const ExecContext& ctx, const Scene& scene, const LogDemonsOptions& options) {
  const auto result = RunLogDemonsStage(ctx, scene.images, options, 0, AffineMap::Identity(), {});
  Check(result.status());
  std::vector<float> velocity(3 * scene.fixed.geometry().voxels());
  Check(
      ctx.device().Copy(velocity.data(), result->velocity.as<float>(), velocity.size() * sizeof(float), ctx.stream()));
  Check(ctx.device().Synchronize(ctx.stream()));
  return velocity;
}

// The loss in float16: the velocity's components against those in float32, in voxels.
void ReportLoss(benchmark::State& state, const ExecContext& ctx, const Scene& scene, LogDemonsOptions options) {
  const std::vector<float> half = VelocityOf(ctx, scene, options);
  options.half_fields = false;
  const std::vector<float> single = VelocityOf(ctx, scene, options);
  double sum = 0, most = 0;
  for (size_t i = 0; i < half.size(); ++i) {
    const double d = std::abs(half[i] - single[i]);
    sum += d;
    most = std::max(most, d);
  }
  state.counters["loss_mean"] = sum / half.size();
  state.counters["loss_max"] = most;
}

void BenchIterations(benchmark::State& state, Device* device, Int3 size, const LogDemonsOptions& options) {
  Scene& scene = SceneOf(device, size);
  const ExecContext ctx = scene.owned.context();
  double best = 1e9, value = 0;
  float largest = 0;
  for (auto _ : state) {
    const double seconds = SecondsOfCall(ctx, 1, [&] {
      const auto result = RunLogDemonsStage(ctx, scene.images, options, 0, AffineMap::Identity(), {});
      Check(result.status());
      Check(LargestComponent(ctx, result->velocity.as<float>(), size, scene.largest()));
      value = result->report.levels[0].value_after;
      return absl::OkStatus();
    });
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  Check(ctx.device().Copy(&largest, scene.largest(), sizeof(largest), ctx.stream()));
  Check(ctx.device().Synchronize(ctx.stream()));
  const int squarings = Squarings(largest, 1, kMaxSquarings);
  state.counters["largest"] = largest;
  state.counters["squarings"] = squarings;
  state.counters["value"] = value;
  Report(state, device, best, *options.iterations, Voxels(size), IterationBytes(ctx.is_cuda(), options, squarings));
  if (options.half_fields) ReportLoss(state, ctx, scene, options);
}

LevelReport FinestLevel(const ExecContext& ctx, const Scene& scene, const LogDemonsOptions& options) {
  const auto result = RunLogDemonsStage(ctx, scene.images, options, 0, AffineMap::Identity(), {});
  Check(result.status());
  return result->report.levels.back();
}

void BenchSameSimilarity(benchmark::State& state, Device* device, Int3 size) {
  Scene& scene = SceneOf(device, size);
  const ExecContext ctx = scene.owned.context();
  const LogDemonsOptions full = Iterations(device);
  const double target = FinestLevel(ctx, scene, full).value_after;
  LogDemonsOptions options = Smoothing();
  const auto reaches = [&](int iterations) {
    options.iterations = iterations;
    return FinestLevel(ctx, scene, options).value_after <= target;
  };
  const bool reached = reaches(*full.iterations);
  int few = 0, enough = *full.iterations;
  while (reached && enough - few > 1) {
    const int half = (few + enough) / 2;
    (reaches(half) ? enough : few) = half;
  }
  options.iterations = enough;
  LevelReport finest;
  double best = 1e9;
  for (auto _ : state) {
    const double seconds = SecondsOfCall(ctx, 1, [&] {
      finest = FinestLevel(ctx, scene, options);
      return absl::OkStatus();
    });
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  state.counters["full_value"] = target;
  state.counters["reached"] = reached;
  state.counters["iterations"] = enough;
  state.counters["finest"] = finest.iterations;
  state.counters["value"] = finest.value_after;
  state.counters["ms"] = best * 1e3;
}

void Register(const std::string& name, Device* device, Int3 size, const std::function<void(benchmark::State&)>& body) {
  benchmark::RegisterBenchmark(absl::StrCat(device->name(), "/", name, "/", size.x, "x", size.y, "x", size.z).c_str(),
                               body)
      ->UseManualTime()
      ->Iterations(kRepetitions)
      ->Unit(benchmark::kMillisecond);
}

void RegisterIterations(Device* device, Int3 size, const LogDemonsOptions& options) {
  constexpr const char* kNames[] = {"add", "compose", "bch"};
  Register(absl::StrCat("iterations/", kNames[static_cast<int>(options.update)], options.symmetric ? "_symmetric" : "",
                        options.half_fields ? "_half" : ""),
           device, size, [=](benchmark::State& state) { BenchIterations(state, device, size, options); });
}

// Every way of iterating.
void RegisterModes(Device* device, Int3 size) {
  LogDemonsOptions options = Iterations(device);
  options.update = VelocityUpdate::kAdd;
  RegisterIterations(device, size, options);
  options.update = VelocityUpdate::kBch;
  RegisterIterations(device, size, options);
  options.update = VelocityUpdate::kCompose;
  options.symmetric = true;
  RegisterIterations(device, size, options);
}

void RegisterOperators(Device* device, Int3 size, const std::vector<Operator>& operators, bool planes) {
  for (const Operator& op : operators) {
    Register(absl::StrCat(planes ? "planes/" : "", op.name), device, size,
             [=](benchmark::State& state) { BenchOperator(state, device, size, op, planes); });
  }
}

// 1.3 to 36.8 million voxels in equal steps of the sides.
void RegisterAll(Device* device) {
  const bool is_cuda = device->kind() == DeviceKind::kCuda;
  const Int3 middle = is_cuda ? Int3{173, 208, 173} : Int3{128, 128, 128};
  std::vector<Int3> sizes = {middle};
  if (is_cuda) {
    sizes = {{103, 123, 103}, {138, 166, 138}, middle,         {208, 250, 208},
             {243, 292, 243}, {278, 334, 278}, {313, 377, 313}};
  }
  for (const Int3 size : sizes) {
    LogDemonsOptions options = Iterations(device);
    RegisterIterations(device, size, options);
    Register("same_similarity", device, size,
             [=](benchmark::State& state) { BenchSameSimilarity(state, device, size); });
    options.half_fields = true;
    if (is_cuda) RegisterIterations(device, size, options);
    if (size == middle) {
      RegisterModes(device, size);
      RegisterOperators(device, size, Operators(), false);
    }
#if INTRAWARP_WITH_CUDA
    if (is_cuda) RegisterOperators(device, size, PlaneOperators(), true);
#endif
  }
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const auto devices = intrawarp::AllDevices();
  for (const auto& device : devices) intrawarp::RegisterAll(device.get());
  benchmark::RunSpecifiedBenchmarks();
  intrawarp::LastScene().reset();
}
