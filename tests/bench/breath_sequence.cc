// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/breath_sequence.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"

namespace intrawarp {
namespace {

constexpr double kFieldOfView = 320;
constexpr double kNoise = 8;
constexpr int kPoints = 4000;

int16_t ToPixel(double hounsfield) {
  return static_cast<int16_t>(std::clamp(std::lround(hounsfield), -32768l, 32767l));
}

}  // namespace

absl::StatusOr<BreathSequence> BreathSequence::Create(const BreathOptions& options) {
  BreathSequence sequence;
  phantom::PhantomOptions phantom;
  phantom.size = {options.size, options.size, options.size};
  phantom.spacing = kFieldOfView / options.size * Vec3d{1, 1, 1};
  phantom.amplitude_mm = 0;
  INTRAWARP_ASSIGN_OR_RETURN(const phantom::PhantomModel rest, phantom::PhantomModel::Create(phantom));
  sequence.geometry_ = rest.fixed_geometry();
  sequence.resident_ = Render(rest, 0);
  sequence.PlacePoints(rest);
  for (int n = 0; n < options.frames; ++n) {
    if (2 * n > options.frames) {
      const BreathPhase in = sequence.phases_[options.frames - n];
      sequence.phases_.push_back(in);
      continue;
    }
    BreathPhase phase;
    phase.amplitude = options.amplitude * (1 - std::cos(2 * std::numbers::pi * n / options.frames)) / 2;
    phantom.amplitude_mm = phase.amplitude;
    INTRAWARP_ASSIGN_OR_RETURN(const phantom::PhantomModel model, phantom::PhantomModel::Create(phantom));
    phase.voxels = Render(model, n + 1);
    for (const Vec3d& p : sequence.points_) phase.truth.push_back(model.Transform(p));
    sequence.phases_.push_back(std::move(phase));
  }
  return sequence;
}

std::vector<int16_t> BreathSequence::Render(const phantom::PhantomModel& model, uint64_t noise_seed) {
  const Geometry& g = model.fixed_geometry();
  const AffineMap to_physical = IndexToPhysical(g);
  std::vector<int16_t> voxels(g.voxels());
  ParallelFor(int64_t{g.size.y} * g.size.z, [&](int64_t row) {
    const double y = static_cast<double>(row % g.size.y), z = static_cast<double>(row / g.size.y);
    for (int x = 0; x < g.size.x; ++x) {
      const int64_t i = row * g.size.x + x;
      voxels[i] = ToPixel(model.Hounsfield(model.Transform(to_physical({double(x), y, z}))) +
                          kNoise * phantom::NormalAt(noise_seed, i));
    }
  });
  return voxels;
}

// Inside the body at rest, and by more than it ever moves.
void BreathSequence::PlacePoints(const phantom::PhantomModel& rest) {
  constexpr double kMargin = 25;
  phantom::UniformRandom random(11);
  while (points_.size() < kPoints) {
    Vec3d p;
    for (int a = 0; a < 3; ++a) p[a] = random(-0.45, 0.45) * kFieldOfView;
    if (rest.BodyDistance(p) < -kMargin) points_.push_back(p);
  }
}

}  // namespace intrawarp
