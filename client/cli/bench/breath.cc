// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/breath.h"

#include <cmath>
#include <numbers>
#include <utility>

#include "client/phantom/phantom.h"
#include "engine/base/status_macros.h"

namespace intrawarp::cli::bench {
namespace {

constexpr double kFieldOfViewMm = 320;
constexpr double kAmplitudeMm = 15;
constexpr int kFrames = 12;
// Breathing in, from rest to the deepest point, both included.
constexpr int kBreathPhases = kFrames / 2 + 1;
constexpr double kNoiseSd = 8;

}  // namespace

absl::StatusOr<Breath> Breath::Make(int size, uint32_t seed) {
  phantom::PhantomOptions options;
  options.size = {size, size, size};
  options.spacing = kFieldOfViewMm / size * Vec3d{1, 1, 1};
  options.seed = seed;
  Breath breath;
  for (int n = -1; n < kBreathPhases; ++n) {
    // -1 is the resident volume, which differs from the frame at rest by its noise alone.
    options.amplitude_mm = n <= 0 ? 0 : kAmplitudeMm * (1 - std::cos(2 * std::numbers::pi * n / kFrames)) / 2;
    INTRAWARP_ASSIGN_OR_RETURN(const phantom::PhantomModel model, phantom::PhantomModel::Create(options));
    const uint64_t noise_seed = uint64_t{seed} * (kBreathPhases + 1) + static_cast<uint64_t>(n + 1);
    io::HostVolume image = phantom::SampleFixed(model, kNoiseSd, noise_seed);
    if (n < 0) {
      breath.rest_ = std::move(image);
    } else {
      breath.phases_.push_back(std::move(image));
    }
  }
  return breath;
}

int64_t Breath::Bytes(int size) { return int64_t{2} * (kBreathPhases + 1) * size * size * size; }

const io::HostVolume& Breath::Frame(int64_t number) const {
  const int64_t n = number % kFrames;
  return phases_[static_cast<size_t>(n < kBreathPhases ? n : kFrames - n)];
}

absl::string_view BytesOf(const io::HostVolume& volume) {
  return {reinterpret_cast<const char*>(volume.pixels.data()), volume.pixels.size()};
}

}  // namespace intrawarp::cli::bench
