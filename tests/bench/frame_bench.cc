// SPDX-License-Identifier: Apache-2.0
// What a frame costs the device: a breathing phantom, frame by frame, each from the one before, as a session runs it
// (prepare, register, assess), without server and network.
//
//   frame_bench [--device=auto|cpu|cuda:N] [--size=128] [--frames=12] [--breaths=2] [--multiprocessors=96]
//               [--sessions=8] [--seconds=2] [--stages=log-demons] [--iterations=N] [--finest_iterations=N]
//               [--levels=N] [--tolerance=X] [--momentum=X] [--velocity_grid=full|half] [--mask]
//               [--weights]
//
// --stages are methods with their defaults (affine,ffd); the options after it are for log-demons. With --mask a fixed
// mask leaves out every other voxel of one half of the frame, and a corner. With --weights the other voxels of the
// frame weigh 0.5 to 1.
//
// First table: means over the frames of one session; ms by phase, iterations by level (coarsest first), and the
// distance from the phantom's map in mm at its points. Second: the kernels of one frame where CUPTI is found: how many,
// us in all, and the time in which none ran. Third: frames a second of 1, 2, 4 ... sessions that run at once, each on a
// stream of its own in the frames' partition; p50 and p99 are of a frame's time.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "engine/base/flags.h"
#include "engine/base/status_macros.h"
#include "engine/registration/registration.h"
#include "engine/transform/transform.h"
#include "server/registration/registration_job.h"
#include "tests/bench/bench_support.h"
#include "tests/bench/breath_sequence.h"
#if INTRAWARP_WITH_CUDA
#include "engine/device/cuda_device.h"
#include "tests/bench/kernel_trace.h"
#endif

namespace intrawarp {
namespace {

using server::RegistrationOutcome;
using server::RunRegistration;

constexpr int kMultiprocessors = 96;

struct BenchOptions {
  std::string device;
  int size, frames, breaths, sessions;
  std::optional<int> multiprocessors;
  double seconds;
  bool has_mask, has_weights;
  std::vector<StageOptions> stages;
};

CommandSyntax Syntax() {
  const auto integer = [](const char* name, const char* help, double least) {
    return FlagSpec{.name = name, .type = FlagType::kInteger, .placeholder = "N", .help = help, .minimum = least};
  };
  const auto number = [](const char* name, const char* help) {
    return FlagSpec{.name = name, .type = FlagType::kNumber, .placeholder = "X", .help = help, .minimum = 0};
  };
  return {{{.name = "device", .placeholder = "D", .help = "auto"},
           integer("size", "128", 32),
           integer("frames", "12", 2),
           integer("breaths", "2", 1),
           integer("multiprocessors", "96", 8),
           integer("sessions", "8", 0),
           number("seconds", "2"),
           {.name = "stages", .placeholder = "METHOD,METHOD", .help = "log-demons"},
           integer("iterations", "the default", 1),
           integer("finest_iterations", "the default", 1),
           integer("levels", "the default", 1),
           number("tolerance", "the default"),
           number("momentum", "the default"),
           {.name = "velocity_grid", .placeholder = "full|half", .help = "the default", .choices = {"full", "half"}},
           {.name = "mask", .type = FlagType::kSwitch, .placeholder = "", .help = "register under a mask"},
           {.name = "weights", .type = FlagType::kSwitch, .placeholder = "", .help = "register under weights"}}};
}

LogDemonsOptions DemonsOptions(const ParsedFlags& flags) {
  LogDemonsOptions demons;
  if (flags.Has("iterations")) demons.iterations = static_cast<int>(flags.Integer("iterations", 1));
  if (flags.Has("finest_iterations")) {
    demons.finest_iterations = static_cast<int>(flags.Integer("finest_iterations", 1));
  }
  if (flags.Has("velocity_grid")) {
    demons.velocity_grid = flags.String("velocity_grid") == "half" ? VelocityGrid::kHalf : VelocityGrid::kFull;
  }
  if (flags.Has("levels")) demons.levels = static_cast<int>(flags.Integer("levels", 1));
  if (flags.Has("tolerance")) demons.tolerance = flags.Number("tolerance", 0);
  if (flags.Has("momentum")) demons.momentum = flags.Number("momentum", 0);
  return demons;
}

absl::StatusOr<std::vector<StageOptions>> Stages(const ParsedFlags& flags) {
  std::vector<StageOptions> stages;
  for (const absl::string_view name : absl::StrSplit(flags.String("stages", "log-demons"), ',')) {
    const std::optional<StageOptions> stage = StageNamed(name);
    if (!stage) return absl::InvalidArgumentError(absl::StrCat("--stages: there is no method ", name));
    const bool is_demons = std::holds_alternative<LogDemonsOptions>(*stage);
    stages.push_back(is_demons ? StageOptions(DemonsOptions(flags)) : *stage);
  }
  return stages;
}

// INVALID_ARGUMENT for a flag of log-demons without such a stage, and for a time of sessions without any.
absl::Status CheckAllUsed(const ParsedFlags& flags, const BenchOptions& options) {
  const bool has_demons = std::any_of(options.stages.begin(), options.stages.end(), [](const StageOptions& stage) {
    return std::holds_alternative<LogDemonsOptions>(stage);
  });
  for (const char* name : {"iterations", "finest_iterations", "levels", "tolerance", "momentum", "velocity_grid"}) {
    if (flags.Has(name) && !has_demons) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, ": only log-demons uses it"));
    }
  }
  if (flags.Has("seconds") && options.sessions == 0) {
    return absl::InvalidArgumentError("--seconds: only sessions at once use it");
  }
  return absl::OkStatus();
}

absl::StatusOr<BenchOptions> ParseOptions(const std::vector<std::string>& arguments) {
  INTRAWARP_ASSIGN_OR_RETURN(const ParsedFlags flags, ParseFlags(Syntax(), arguments));
  BenchOptions options;
  options.device = flags.String("device", "auto");
  options.size = static_cast<int>(flags.Integer("size", 128));
  options.frames = static_cast<int>(flags.Integer("frames", 12));
  options.breaths = static_cast<int>(flags.Integer("breaths", 2));
  if (flags.Has("multiprocessors")) options.multiprocessors = static_cast<int>(flags.Integer("multiprocessors"));
  options.sessions = static_cast<int>(flags.Integer("sessions", 8));
  options.seconds = flags.Number("seconds", 2);
  options.has_mask = flags.Has("mask");
  options.has_weights = flags.Has("weights");
  INTRAWARP_ASSIGN_OR_RETURN(options.stages, Stages(flags));
  INTRAWARP_RETURN_IF_ERROR(CheckAllUsed(flags, options));
  return options;
}

// A GPU with a partition of frames.
absl::StatusOr<std::unique_ptr<Device>> Open(const BenchOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(options.device));
  if (device->kind() != DeviceKind::kCuda) {
    if (!options.multiprocessors) return device;
    return absl::InvalidArgumentError("--multiprocessors: only a GPU has them");
  }
#if INTRAWARP_WITH_CUDA
  int ordinal = 0;
  if (!absl::SimpleAtoi(absl::StripPrefix(device->name(), "cuda:"), &ordinal)) {
    return absl::InternalError(absl::StrCat("not the name of a GPU: ", device->name()));
  }
  device.reset();
  return OpenCudaDevice(ordinal, {.frames_multiprocessors = options.multiprocessors.value_or(kMultiprocessors)});
#else
  return device;
#endif
}

// The images of the bench, the resident one prepared.
struct Bed {
  Device& device;
  const BreathSequence& sequence;
  const std::vector<StageOptions>& stages;
  const PreparedImage& resident;
  // Null: none.
  const PreparedImage* mask;
  const PreparedImage* weights;
};

std::vector<float> MaskVoxels(const Geometry& g) {
  std::vector<float> voxels(g.voxels());
  for (int64_t v = 0; v < g.voxels(); ++v) {
    const int64_t x = v % g.size.x, z = v / (int64_t{g.size.x} * g.size.y);
    const bool is_corner = 8 * x < g.size.x && 8 * z < g.size.z, is_half = 2 * x < g.size.x;
    voxels[v] = is_corner || (is_half && v % 2 == 1) ? 0.0f : 1.0f;
  }
  return voxels;
}

std::vector<float> WeightVoxels(const Geometry& g) {
  std::vector<float> voxels(g.voxels());
  for (int64_t v = 0; v < g.voxels(); ++v) voxels[v] = 0.5f + static_cast<float>(v % 64) / 126;
  return voxels;
}

// One session's frames, each from the one before.
class Session {
 public:
  explicit Session(const Bed& bed)
      : bed_(bed), owned_(Value(OwnedContext::Create(bed.device, Bytes(bed), Partition::kFrames))) {
    const int64_t bytes = static_cast<int64_t>(sizeof(int16_t)) * bed.sequence.geometry().voxels();
    pixels_ = Value(bed.device.AllocatePinned(bytes));
  }

  struct Answer {
    LatencyBreakdown latency;
    RegistrationOutcome outcome;
    double milliseconds = 0;
  };

  Answer Register(int number) {
    const BreathPhase& phase = bed_.sequence.phases()[number % bed_.sequence.phases().size()];
    std::copy(phase.voxels.begin(), phase.voxels.end(), pixels_.as<int16_t>());
    const Clock::time_point begin = Clock::now();
    const ExecContext ctx = owned_.context();
    Answer answer;
    PreparedImage frame;
    {
      PhaseTimer timer(answer.latency, Phase::kPrepare);
      frame = Value(PreparedImage::Prepare(ctx, pixels_.as<void>(), PixelType::kInt16, 1, 0, bed_.sequence.geometry()));
    }
    server::RegistrationTask task;
    task.input = Input(bed_, frame);
    if (last_) task.input.initial_transform = &*last_;
    task.reserve = [](int64_t) { return nullptr; };
    task.scrutiny = Scrutiny::kFrame;
    server::JobControl control(seams_, std::nullopt);
    answer.outcome = Value(RunRegistration(ctx, task, control, answer.latency));
    last_ = answer.outcome.result.transform;
    answer.milliseconds = Seconds(begin) * 1e3;
    return answer;
  }

  // The mean distance from the truth.
  double Error(int number) {
    const std::vector<Vec3d>& points = bed_.sequence.points();
    const BreathPhase& phase = bed_.sequence.phases()[number % bed_.sequence.phases().size()];
    const std::vector<Vec3d> mapped = Value(Map(points));
    double sum = 0;
    for (size_t i = 0; i < points.size(); ++i) {
      const Vec3d d = mapped[i] - phase.truth[i];
      sum += std::sqrt(Dot(d, d));
    }
    return sum / static_cast<double>(points.size());
  }

 private:
  static RegistrationInput Input(const Bed& bed, const PreparedImage& frame) {
    RegistrationInput input;
    input.fixed = &frame;
    input.moving = &bed.resident;
    input.fixed_mask = bed.mask;
    input.fixed_weight = bed.weights;
    input.stages = bed.stages;
    return input;
  }
  static size_t Bytes(const Bed& bed) {
    const Geometry& g = bed.sequence.geometry();
    const int64_t prepare = PreparedImage::WorkspaceBytes(g, PixelType::kInt16);
    const int64_t work = server::RegistrationJobBytes(bed.device, Input(bed, bed.resident));
    return static_cast<size_t>(std::max(prepare, work));
  }
  absl::StatusOr<std::vector<Vec3d>> Map(const std::vector<Vec3d>& points) {
    std::vector<double> flat;
    for (const Vec3d& p : points) flat.insert(flat.end(), {p.x, p.y, p.z});
    INTRAWARP_RETURN_IF_ERROR(MapPoints(owned_.context(), *last_, /*inverse=*/false, absl::MakeSpan(flat)));
    std::vector<Vec3d> mapped;
    for (size_t i = 0; i < flat.size(); i += 3) mapped.push_back({flat[i], flat[i + 1], flat[i + 2]});
    return mapped;
  }

  const Bed& bed_;
  server::Seams seams_;
  OwnedContext owned_;
  PinnedBuffer pixels_;
  std::optional<Transform> last_;
};

void PrintFrames(const Bed& bed, const BenchOptions& options) {
  Session session(bed);
  session.Register(0);
  std::printf("frame  total prepare optimise assess  value      error mm  iterations by level\n");
  std::map<std::string, double> sums;
  const int count = options.frames * options.breaths;
  for (int n = 1; n <= count; ++n) {
    const Session::Answer answer = session.Register(n);
    const auto ms = [&](Phase phase) {
      return std::chrono::duration<double, std::milli>(answer.latency.phase(phase)).count();
    };
    const double error = session.Error(n);
    std::string levels;
    for (const StageReport& stage : answer.outcome.result.stages) {
      for (const LevelReport& level : stage.levels) {
        absl::StrAppend(&levels, " ", level.size.x, ":", level.iterations);
        sums[absl::StrCat(MethodName(stage.options), ", iterations at ", level.size.x)] += level.iterations;
      }
    }
    sums["total ms"] += answer.milliseconds;
    sums["prepare ms"] += ms(Phase::kPrepare);
    sums["optimise ms"] += ms(Phase::kOptimise);
    sums["assess ms"] += ms(Phase::kAssess);
    sums["error mm"] += error;
    sums["error mm, the largest of a frame"] = std::max(sums["error mm, the largest of a frame"], error * count);
    std::printf("%5d %6.2f %7.2f %8.2f %6.2f  %.3e  %8.4f %s%s\n", n, answer.milliseconds, ms(Phase::kPrepare),
                ms(Phase::kOptimise), ms(Phase::kAssess), answer.outcome.result.stages.back().levels.back().value_after,
                error, levels.c_str(), NeedsReview(answer.outcome.quality.review_reasons) ? " review" : "");
  }
  for (const auto& [name, sum] : sums) std::printf("mean %-34s %.4f\n", name.c_str(), sum / count);
  std::fflush(stdout);
}

#if INTRAWARP_WITH_CUDA
void PrintKernelsOfAFrame(const Bed& bed) {
  Session session(bed);
  int number = 0;
  PrintKernels("one frame", [&] {
    session.Register(number++);
    return absl::OkStatus();
  });
}
#endif

void PrintThroughput(const Bed& bed, int count, double seconds) {
  std::vector<std::unique_ptr<Session>> sessions;
  for (int i = 0; i < count; ++i) {
    sessions.push_back(std::make_unique<Session>(bed));
    sessions.back()->Register(0);
  }
  std::vector<std::vector<double>> times(count);
  std::vector<std::thread> threads;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 1; Seconds(begin) < seconds; ++n) times[i].push_back(sessions[i]->Register(n).milliseconds);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double elapsed = Seconds(begin);
  std::vector<double> all;
  for (const auto& own : times) all.insert(all.end(), own.begin(), own.end());
  std::sort(all.begin(), all.end());
  std::printf("%d sessions at once: %.1f frames/s, p50 %.2f ms, p99 %.2f ms\n", count,
              static_cast<double>(all.size()) / elapsed, all[all.size() / 2], all[all.size() * 99 / 100]);
  std::fflush(stdout);
}

absl::Status Bench(const BenchOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(const BreathSequence sequence,
                             BreathSequence::Create({.size = options.size, .frames = options.frames}));
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, Open(options));
  OwnedContext owned = Value(OwnedContext::Create(
      *device, static_cast<size_t>(std::max(PreparedImage::WorkspaceBytes(sequence.geometry(), PixelType::kInt16),
                                            PreparedImage::WorkspaceBytes(sequence.geometry(), PixelType::kFloat32)))));
  const PreparedImage resident = Value(PreparedImage::Prepare(owned.context(), sequence.resident().data(),
                                                              PixelType::kInt16, 1, 0, sequence.geometry()));
  const auto prepare = [&](const std::vector<float>& voxels) {
    return Value(
        PreparedImage::Prepare(owned.context(), voxels.data(), PixelType::kFloat32, 1, 0, sequence.geometry()));
  };
  const PreparedImage mask = prepare(MaskVoxels(sequence.geometry()));
  const PreparedImage weights = prepare(WeightVoxels(sequence.geometry()));
  const Bed bed{*device,
                sequence,
                options.stages,
                resident,
                options.has_mask ? &mask : nullptr,
                options.has_weights ? &weights : nullptr};
  INTRAWARP_RETURN_IF_ERROR(device->Warm(device->kind() == DeviceKind::kCuda ? int64_t{8} << 30 : 0));
  std::printf("%s (%s), %d^3 voxels, %d frames a breath, %d multiprocessors\n", device->name().c_str(),
              device->model().c_str(), options.size, options.frames, device->multiprocessors(Partition::kFrames));
  PrintFrames(bed, options);
#if INTRAWARP_WITH_CUDA
  if (device->kind() == DeviceKind::kCuda) PrintKernelsOfAFrame(bed);
#endif
  for (int count = 1; count <= options.sessions; count *= 2) PrintThroughput(bed, count, options.seconds);
  return absl::OkStatus();
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  return intrawarp::MainWithOptions(intrawarp::ParseOptions({argv + 1, argv + argc}),
                                    intrawarp::FlagHelp(intrawarp::Syntax()), intrawarp::Bench);
}
