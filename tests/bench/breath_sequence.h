// SPDX-License-Identifier: Apache-2.0
// Images of a breathing phantom: the anatomy at rest, and the phases of a breath. Equal options give equal bytes.
#ifndef INTRAWARP_TESTS_BENCH_BREATH_SEQUENCE_H_
#define INTRAWARP_TESTS_BENCH_BREATH_SEQUENCE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/phantom/phantom.h"
#include "engine/geometry/geometry.h"

namespace intrawarp {

struct BreathOptions {
  // Voxels along each axis, over 320 mm.
  int size = 128;
  // Phases of a breath; breathing out shows the images of breathing in again.
  int frames = 20;
  // The motion of the abdominal wall, mm: phase n moves it by amplitude * (1 - cos(2 pi n / frames)) / 2.
  double amplitude = 15;
};

// The image that a scanner sees at one phase of the breath.
struct BreathPhase {
  double amplitude = 0;
  std::vector<int16_t> voxels;
  std::vector<Vec3d> truth;  // where the points lie in the resident volume
};

// Immutable, so thread-safe.
class BreathSequence {
 public:
  static absl::StatusOr<BreathSequence> Create(const BreathOptions& options);

  const Geometry& geometry() const { return geometry_; }
  // The anatomy at rest.
  const std::vector<int16_t>& resident() const { return resident_; }
  // In frames, inside the body, the same for all.
  const std::vector<Vec3d>& points() const { return points_; }
  const std::vector<BreathPhase>& phases() const { return phases_; }

 private:
  static std::vector<int16_t> Render(const phantom::PhantomModel& model, uint64_t noise_seed);
  void PlacePoints(const phantom::PhantomModel& rest);

  Geometry geometry_;
  std::vector<int16_t> resident_;
  std::vector<Vec3d> points_;
  std::vector<BreathPhase> phases_;
};

inline absl::string_view BytesOf(const std::vector<int16_t>& voxels) {
  return {reinterpret_cast<const char*>(voxels.data()), voxels.size() * sizeof(int16_t)};
}

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_BENCH_BREATH_SEQUENCE_H_
