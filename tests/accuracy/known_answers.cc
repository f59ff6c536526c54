// SPDX-License-Identifier: Apache-2.0
// Known answers: liver-like phantoms moved by random affine maps (rotation to 20 degrees, scale to 15 %, shear to 10 %,
// translation to 30 mm), registered on every device present. Prints, as a Markdown table, the mean and largest error
// inside the body in fixed voxels, the distance between the devices' answers, and whether a second run gave the same
// bits.
//
//   known_answers [SEEDS]        default: 10 a row
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "client/phantom/phantom.h"
#include "engine/registration/registration.h"
#include "engine/registration/stage/stage.h"

namespace intrawarp {
namespace {

constexpr size_t kWorkspaceBytes = size_t{1} << 30;

struct Row {
  const char* name;
  Int3 size;
  StageOptions stage;
};

template <typename T>
T Value(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(value);
}

// Mean and largest distance of two maps over the body, in fixed voxels.
struct Distance {
  double mean = 0, max = 0;
};
Distance Compare(const phantom::Phantom& phantom, const AffineMap& a, const AffineMap& b) {
  const Geometry& g = phantom.body_mask.geometry;
  const AffineMap to_physical = IndexToPhysical(g);
  Distance d;
  int64_t count = 0, i = 0;
  for (int z = 0; z < g.size.z; ++z) {
    for (int y = 0; y < g.size.y; ++y) {
      for (int x = 0; x < g.size.x; ++x, ++i) {
        if (phantom.body_mask.pixels[i] == 0) continue;
        const Vec3d p = to_physical({double(x), double(y), double(z)}), e = a(p) - b(p);
        const double length = std::sqrt(Dot(e, e)) / g.spacing.x;
        d.mean += length;
        d.max = std::max(d.max, length);
        ++count;
      }
    }
  }
  d.mean /= std::max<int64_t>(count, 1);
  return d;
}

struct Answer {
  AffineMap map;
  StopReason stop_reason;
  double milliseconds;
  bool repeats;
};

PreparedImage Prepare(const ExecContext& ctx, const io::HostVolume& v) {
  return Value(
      PreparedImage::Prepare(ctx, v.pixels.data(), v.pixel_type, v.rescale_slope, v.rescale_intercept, v.geometry));
}

Answer Solve(Device& device, const phantom::Phantom& phantom, const Row& row) {
  OwnedContext owned = Value(OwnedContext::Create(device, kWorkspaceBytes));
  const ExecContext ctx = owned.context();
  const PreparedImage fixed = Prepare(ctx, phantom.fixed), moving = Prepare(ctx, phantom.moving);
  const RegistrationInput input{&fixed, &moving, nullptr, nullptr, {row.stage}, std::nullopt};
  const RegistrationResult first = Value(Register(ctx, input));
  const auto begin = std::chrono::steady_clock::now();
  const RegistrationResult second = Value(Register(ctx, input));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const AffineMap& map = first.transform.affine();
  return {map, first.stop_reason, seconds * 1e3, std::memcmp(&map, &second.transform.affine(), sizeof(AffineMap)) == 0};
}

void RunRow(const Row& row, int seeds, std::vector<std::unique_ptr<Device>>& devices) {
  struct Total {
    Distance worst;
    double mean = 0, milliseconds = 0, apart = 0;
    int repeats = 0, converged = 0;
  };
  std::vector<Total> totals(devices.size());
  for (int seed = 1; seed <= seeds; ++seed) {
    phantom::PhantomOptions options;
    options.size = row.size;
    options.seed = seed;
    options.amplitude_mm = 0;
    options.invert_intensities = MetricOf(row.stage) == MetricKind::kNgf;
    const double scale = std::holds_alternative<AffineOptions>(row.stage) ? 1 : 0;
    options.affine = phantom::RandomAffine(seed, 20, 0.15 * scale, 0.10 * scale, 30, {0, 0, 0}, row.size.z == 1);
    const phantom::Phantom phantom = Value(phantom::MakePhantom(options));
    AffineMap cpu_map;
    for (size_t d = 0; d < devices.size(); ++d) {
      const Answer answer = Solve(*devices[d], phantom, row);
      if (d == 0) cpu_map = answer.map;
      const Distance error = Compare(phantom, answer.map, *options.affine);
      Total& total = totals[d];
      total.mean += error.mean / seeds;
      total.worst = {std::max(total.worst.mean, error.mean), std::max(total.worst.max, error.max)};
      total.milliseconds += answer.milliseconds / seeds;
      total.apart = std::max(total.apart, Compare(phantom, answer.map, cpu_map).mean);
      total.repeats += answer.repeats;
      total.converged += answer.stop_reason == StopReason::kConverged;
    }
  }
  for (size_t d = 0; d < devices.size(); ++d) {
    const Total& t = totals[d];
    std::printf("| %s | %s | %.4f | %.4f | %.4f | %.1e | %d of %d | %d of %d | %.1f |\n", row.name,
                devices[d]->name().c_str(), t.mean, t.worst.mean, t.worst.max, t.apart, t.repeats, seeds, t.converged,
                seeds, t.milliseconds);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  using namespace intrawarp;
  const int seeds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 10;
  auto devices = AllDevices();
  std::printf(
      "| pair | device | mean error | worst mean | worst voxel | from the CPU's | same bits | converged | ms |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|\n");
  const Int3 volume{160, 160, 120}, plane{256, 256, 1};
  for (const Row& row : {Row{"3-D affine, SSD", volume, AffineOptions{MetricKind::kSsd}},
                         Row{"3-D affine, NGF, inverted", volume, AffineOptions{MetricKind::kNgf}},
                         Row{"3-D rigid, SSD", volume, RigidOptions{MetricKind::kSsd}},
                         Row{"3-D rigid, NGF, inverted", volume, RigidOptions{MetricKind::kNgf}},
                         Row{"2-D affine, SSD", plane, AffineOptions{MetricKind::kSsd}},
                         Row{"2-D affine, NGF, inverted", plane, AffineOptions{MetricKind::kNgf}}}) {
    RunRow(row, seeds, devices);
  }
  return 0;
}
