// SPDX-License-Identifier: Apache-2.0
// Known maps between modalities: two aligned images of one head, the moving one turned by 10 to 20 degrees about a
// random axis and shifted by 10 to 20 mm, registered on the CPU from where the headers say. Prints, as a Markdown
// table, the error over the fixed voxels brighter than the mean, in mm, iterations and seconds of each metric, and of
// the mean of two.
//
//   known_maps FIXED.nii.gz MOVING.nii.gz [SEEDS]        default: 10 seeds
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "engine/image/sample.h"
#include "engine/registration/choose/automatic_rules.h"
#include "engine/registration/registration.h"
#include "engine/registration/stage/stage.h"
#include "io/format/nifti.h"

namespace intrawarp {
namespace {

constexpr size_t kWorkspaceBytes = size_t{1} << 30;

template <typename T>
T Value(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(value);
}

struct Image {
  Geometry grid;
  std::vector<float> values;
};

Image ReadImage(Device& device, const std::string& path) {
  const io::HostVolume v = Value(io::ReadNifti(path));
  OwnedContext owned = Value(OwnedContext::Create(device, kWorkspaceBytes));
  const PreparedImage prepared = Value(PreparedImage::Prepare(owned.context(), v.pixels.data(), v.pixel_type,
                                                              v.rescale_slope, v.rescale_intercept, v.geometry));
  const float* data = prepared.levels()[0].volume.data;
  return {v.geometry, std::vector<float>(data, data + v.geometry.voxels())};
}

Vec3d IndexOf(int64_t voxel, Int3 n) {
  const int64_t row = voxel / n.x, plane = row / n.y;
  return {static_cast<double>(voxel % n.x), static_cast<double>(row % n.y), static_cast<double>(plane)};
}

AffineMap RandomRigid(uint32_t seed, Vec3d center, bool is_2d) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> amount(10, 20);
  const auto direction = [&] {
    const Vec3d v{normal(engine), normal(engine), is_2d ? 0 : normal(engine)};
    return (1 / std::sqrt(Dot(v, v))) * v;
  };
  const Vec3d axis = is_2d ? Vec3d{0, 0, normal(engine) < 0 ? -1.0 : 1.0} : direction();
  const double angle = amount(engine) * M_PI / 180, c = std::cos(angle), s = std::sin(angle);
  const double k[3][3] = {{0, -axis.z, axis.y}, {axis.z, 0, -axis.x}, {-axis.y, axis.x, 0}};
  AffineMap turn;
  for (int r = 0; r < 3; ++r) {
    for (int q = 0; q < 3; ++q) turn.m[r][q] = (r == q ? c : 0) + (1 - c) * axis[r] * axis[q] + s * k[r][q];
  }
  const Vec3d shift = amount(engine) * direction(), moved = center - turn(center) + shift;
  for (int r = 0; r < 3; ++r) turn.m[r][3] = moved[r];
  return turn;
}

// The image moved by the map, on its grid: what was at x is at map(x).
Image Moved(const Image& image, const AffineMap& map) {
  const AffineMap back = Compose(PhysicalToIndex(image.grid), Compose(Inverse(map), IndexToPhysical(image.grid)));
  const Int3 n = image.grid.size;
  Image moved{image.grid, std::vector<float>(image.values.size())};
  for (int64_t i = 0; i < image.grid.voxels(); ++i) {
    const Vec3d p = back(IndexOf(i, n));
    const Vec3f index{static_cast<float>(p.x), static_cast<float>(p.y), static_cast<float>(p.z)};
    moved.values[i] = IsInside(n, index) ? SampleLinear(image.values.data(), n, index) : 0;
  }
  return moved;
}

struct Error {
  double mean = 0, max = 0;
};
Error Compare(const Image& fixed, const AffineMap& found, const AffineMap& truth) {
  double brightness = 0;
  for (float v : fixed.values) brightness += v / static_cast<double>(fixed.values.size());
  const AffineMap to_physical = IndexToPhysical(fixed.grid);
  const Int3 n = fixed.grid.size;
  Error error;
  int64_t count = 0;
  for (int64_t i = 0; i < fixed.grid.voxels(); ++i) {
    if (fixed.values[i] <= brightness) continue;
    const Vec3d p = to_physical(IndexOf(i, n));
    const Vec3d d = found(p) - truth(p);
    error.mean += std::sqrt(Dot(d, d));
    error.max = std::max(error.max, std::sqrt(Dot(d, d)));
    ++count;
  }
  error.mean /= static_cast<double>(std::max<int64_t>(count, 1));
  return error;
}

PreparedImage Prepare(const ExecContext& ctx, const Image& image) {
  return Value(PreparedImage::Prepare(ctx, image.values.data(), PixelType::kFloat32, 1, 0, image.grid));
}

// One row: the mean of the maps that the estimates find (automatic.h), or the map of one.
void RunRow(Device& device, const Image& fixed, const Image& moving, const std::vector<StageOptions>& estimates,
            int seeds) {
  std::vector<double> means;
  std::vector<std::string> metrics;
  for (const StageOptions& stage : estimates) metrics.emplace_back(MetricName(MetricOf(stage)));
  double worst = 0, iterations = 0, finest = 0, seconds = 0;
  int converged = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    const AffineMap truth = RandomRigid(seed, Center(moving.grid), moving.grid.is_2d());
    OwnedContext owned = Value(OwnedContext::Create(device, kWorkspaceBytes));
    const ExecContext ctx = owned.context();
    const PreparedImage f = Prepare(ctx, fixed), m = Prepare(ctx, Moved(moving, truth));
    std::vector<AffineMap> found;
    bool all_converged = true;
    const auto begin = std::chrono::steady_clock::now();
    for (const StageOptions& stage : estimates) {
      const RegistrationResult result =
          Value(Register(ctx, {&f, &m, nullptr, nullptr, {stage}, AffineMap::Identity()}));
      found.push_back(result.transform.affine());
      for (const LevelReport& level : result.stages[0].levels) iterations += 1.0 * level.iterations / seeds;
      finest += 1.0 * result.stages[0].levels.back().iterations / seeds;
      all_converged = all_converged && result.stop_reason == StopReason::kConverged;
    }
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / seeds;
    const Error error = Compare(fixed, MeanOf(found), truth);
    means.push_back(error.mean);
    worst = std::max(worst, error.max);
    converged += all_converged;
  }
  std::sort(means.begin(), means.end());
  std::printf("| %s | %s | %.2f | %.2f | %.2f | %.1f | %.1f | %d of %d | %.2f |\n",
              std::string(MethodName(estimates[0])).c_str(), absl::StrJoin(metrics, ", ").c_str(),
              means[means.size() / 2], means.back(), worst, iterations, finest, converged, seeds, seconds);
  std::fflush(stdout);
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  using namespace intrawarp;
  if (argc < 3) {
    std::fprintf(stderr, "known_maps FIXED.nii.gz MOVING.nii.gz [SEEDS]\n");
    return 2;
  }
  const int seeds = argc > 3 ? std::max(1, std::atoi(argv[3])) : 10;
  const auto devices = AllDevices();
  Device& cpu = *devices[0];
  const Image fixed = ReadImage(cpu, argv[1]), moving = ReadImage(cpu, argv[2]);
  std::printf(
      "| method | metric | median error, mm | worst mean | worst voxel | iterations | at the finest level |"
      " converged | s |\n|---|---|---|---|---|---|---|---|---|\n");
  for (MetricKind metric : {MetricKind::kNgf, MetricKind::kNmi, MetricKind::kLncc}) {
    RunRow(cpu, fixed, moving, {RigidOptions{metric}}, seeds);
    RunRow(cpu, fixed, moving, {AffineOptions{metric}}, seeds);
  }
  RunRow(cpu, fixed, moving, {AffineOptions{MetricKind::kNgf}, AffineOptions{MetricKind::kNmi}}, seeds);
  return 0;
}
