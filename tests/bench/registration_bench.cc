// SPDX-License-Identifier: Apache-2.0
// Whole registrations of resident volumes by engine calls, and what their time is spent on.
//
//   registration_bench [--device=cuda:0] [--times=9] [--trace] FIXED MOVING
//
// The images are NIfTI files. In milliseconds (the median of several calls and the least): the search of
// a start, the affine registration from an unknown start and from the start that was found, ffd by each of three
// metrics after an affine registration, and the automatic registration. --trace adds the kernels of the search and of
// the automatic registration (CUDA).
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/flags.h"
#include "engine/base/status_macros.h"
#include "engine/registration/registration.h"
#include "engine/registration/start/starts.h"
#include "io/format/nifti.h"
#include "tests/bench/bench_support.h"
#if INTRAWARP_WITH_CUDA
#include "tests/bench/kernel_trace.h"
#endif

namespace intrawarp {
namespace {

struct Options {
  std::string device;
  int times;
  bool trace;
  std::string fixed, moving;
};

CommandSyntax Syntax() {
  return {{{.name = "device", .placeholder = "D", .help = "auto"},
           {.name = "times", .type = FlagType::kInteger, .placeholder = "N", .help = "9", .minimum = 1},
           {.name = "trace", .type = FlagType::kSwitch, .placeholder = "", .help = "print the kernels"}},
          {"FIXED", "MOVING"}};
}

absl::StatusOr<Options> Parse(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  INTRAWARP_ASSIGN_OR_RETURN(const ParsedFlags flags, ParseFlags(Syntax(), arguments));
  return Options{flags.String("device", "auto"), static_cast<int>(flags.Integer("times", 9)), flags.Has("trace"),
                 flags.Positional(0), flags.Positional(1)};
}

// Times a call that ends with the stream, after one that does not count.
void PrintTime(const char* what, int times, const std::function<absl::Status()>& call) {
  std::vector<double> ms;
  Check(call());
  for (int i = 0; i < times; ++i) {
    const Clock::time_point begin = Clock::now();
    Check(call());
    ms.push_back(1e3 * Seconds(begin));
  }
  std::sort(ms.begin(), ms.end());
  std::printf("  %-32s %9.2f ms, least %9.2f\n", what, ms[ms.size() / 2], ms.front());
  std::fflush(stdout);
}

struct Pair {
  PreparedImage fixed, moving;
};

PreparedImage Load(Device& device, const std::string& file) {
  const io::HostVolume volume = Value(io::ReadNifti(file));
  const std::vector<float> voxels = io::ToFloat(volume);
  OwnedContext owned =
      Value(OwnedContext::Create(device, PreparedImage::WorkspaceBytes(volume.geometry, PixelType::kFloat32)));
  return Value(PreparedImage::Prepare(owned.context(), voxels.data(), PixelType::kFloat32, 1, 0, volume.geometry));
}

RegistrationImages ImagesOf(const Pair& pair) {
  const auto all = [](const PreparedImage& image) {
    std::vector<MaskLevel> levels(image.levels().size());
    for (size_t i = 0; i < levels.size(); ++i) {
      levels[i].count = static_cast<double>(image.levels()[i].volume.geometry.voxels());
    }
    return levels;
  };
  return {&pair.fixed, &pair.moving, all(pair.fixed), all(pair.moving)};
}

void BenchFfd(const ExecContext& ctx, int times, const Pair& pair, const Transform& affine) {
  for (const MetricKind metric : {MetricKind::kSsd, MetricKind::kNmi, MetricKind::kLncc}) {
    RegistrationInput ffd{&pair.fixed, &pair.moving, nullptr, nullptr, {FfdOptions{.metric = metric}}, std::nullopt};
    ffd.initial_transform = &affine;
    PrintTime(absl::StrCat("ffd after affine (", MetricName(metric), ")").c_str(), times,
              [&] { return Register(ctx, ffd).status(); });
  }
}

void BenchPair(Device& device, const Options& options, const Pair& pair) {
  RegistrationInput affine{&pair.fixed, &pair.moving, nullptr, nullptr, {AffineOptions{}}, std::nullopt};
  RegistrationInput automatic = affine;
  automatic.stages = AutomaticStages();
  automatic.automatic = true;
  RegistrationInput ffd = affine;
  ffd.stages = {FfdOptions{.metric = MetricKind::kLncc}};
  OwnedContext owned = Value(OwnedContext::Create(
      device, std::max({RegistrationWorkspaceBytes(device, affine), RegistrationWorkspaceBytes(device, automatic),
                        RegistrationWorkspaceBytes(device, ffd)})));
  const ExecContext ctx = owned.context();
  const RegistrationImages images = ImagesOf(pair);
  const auto search = [&] { return SearchStart(ctx, images, MetricKind::kNgf).status(); };
  const auto choose = [&] { return Register(ctx, automatic).status(); };
  PrintTime("search of a start (ngf)", options.times, search);
  PrintTime("search of a start (ssd)", options.times,
            [&] { return SearchStart(ctx, images, MetricKind::kSsd).status(); });
  PrintTime("affine, unknown start", options.times, [&] { return Register(ctx, affine).status(); });
  affine.initial = Value(SearchStart(ctx, images, MetricKind::kNgf)).found;
  PrintTime("affine, start known", options.times, [&] { return Register(ctx, affine).status(); });
  BenchFfd(ctx, options.times, pair, Value(Register(ctx, affine)).transform);
  PrintTime("automatic", options.times, choose);
#if INTRAWARP_WITH_CUDA
  if (!options.trace) return;
  PrintKernels("search of a start (ngf)", search);
  PrintKernels("automatic", choose);
#endif
}

absl::Status Bench(const Options& options) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, OpenDevice(options.device));
  if (options.trace && device->kind() != DeviceKind::kCuda) {
    return absl::InvalidArgumentError("--trace: only a GPU has kernels");
  }
  const Pair pair{Load(*device, options.fixed), Load(*device, options.moving)};
  const Int3 n = pair.fixed.geometry().size;
  std::printf("%s: %s, %s: %dx%dx%d\n", device->model().c_str(), options.fixed.c_str(), options.moving.c_str(), n.x,
              n.y, n.z);
  BenchPair(*device, options, pair);
  return absl::OkStatus();
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  return intrawarp::MainWithOptions(intrawarp::Parse(argc, argv), intrawarp::FlagHelp(intrawarp::Syntax()),
                                    intrawarp::Bench);
}
