// SPDX-License-Identifier: Apache-2.0
// The common parts of the tests of deformable methods: a textured body whose deformation is known, and how far a
// transform is from it.
#ifndef INTRAWARP_TESTS_ENGINE_REGISTRATION_TEXTURED_PAIR_H_
#define INTRAWARP_TESTS_ENGINE_REGISTRATION_TEXTURED_PAIR_H_

#include <cmath>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "engine/image/pyramid.h"
#include "engine/registration/methods/method.h"
#include "engine/registration/registration.h"
#include "engine/registration/validate.h"
#include "tests/engine/device_test.h"

namespace intrawarp {

// Blobs of all sizes about the origin, LPS mm, so that every part of the image has something to be recognised by; 2-D
// images see the plane z = 0.
class Texture {
 public:
  Texture(unsigned seed, bool is_2d) {
    std::mt19937 engine(seed);
    std::uniform_real_distribution<double> u(-1, 1);
    for (int i = 0; i < 90; ++i) {
      blobs_.push_back(
          {{60 * u(engine), 60 * u(engine), is_2d ? 0 : 60 * u(engine)}, 9 + 4 * u(engine), 50 * u(engine)});
    }
  }
  double operator()(Vec3d p) const {
    double sum = 100;
    for (const Blob& b : blobs_) {
      const Vec3d d = p - b.center;
      const double r2 = Dot(d, d) / (b.radius * b.radius);
      if (r2 < 20) sum += b.value * std::exp(-r2);
    }
    return sum;
  }

 private:
  struct Blob {
    Vec3d center;
    double radius, value;
  };
  std::vector<Blob> blobs_;
};

// Waves of `amplitude` mm, smooth and far from folding.
inline Vec3d Waves(Vec3d p, double amplitude, bool is_2d) {
  const double k = 2 * M_PI / 80;
  return amplitude * Vec3d{std::sin(k * p.y + 0.4) * std::cos(0.7 * k * p.x), std::sin(k * p.x - 0.3),
                           is_2d ? 0 : std::cos(0.8 * k * p.x + 0.5 * k * p.y)};
}

struct Pair {
  Geometry fixed_grid, moving_grid;
  std::vector<float> fixed, moving;
  AffineMap affine = AffineMap::Identity();
  double amplitude = 0;
  Vec3d Truth(Vec3d p) const { return affine(p + Waves(p, amplitude, fixed_grid.is_2d())); }
};

inline void CenterAtOrigin(Geometry& g) { g.origin = g.origin - Center(static_cast<const Geometry&>(g)); }

template <typename Body>
void ForEachPoint(const Geometry& g, const Body& body) {
  const AffineMap to_physical = IndexToPhysical(g);
  for (int z = 0; z < g.size.z; ++z)
    for (int y = 0; y < g.size.y; ++y)
      for (int x = 0; x < g.size.x; ++x) body(to_physical({double(x), double(y), double(z)}), Int3{x, y, z});
}

// moving(y) = texture(y), fixed(x) = texture(T(x)); grids that differ, the fixed one's planes `plane_mm` apart.
inline Pair MakeTexturedPair(const Texture& texture, double plane_mm, double amplitude, bool is_2d,
                             const AffineMap& affine) {
  Pair pair;
  pair.amplitude = amplitude;
  pair.affine = affine;
  pair.fixed_grid.size = {44, 41, is_2d ? 1 : 37};
  pair.fixed_grid.spacing = {2, 2.1, plane_mm};
  pair.moving_grid.size = {52, 47, is_2d ? 1 : 46};
  pair.moving_grid.spacing = {2.1, 2.2, 2};
  pair.moving_grid.direction[0][0] = -1;
  CenterAtOrigin(pair.fixed_grid);
  CenterAtOrigin(pair.moving_grid);
  ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3) { pair.fixed.push_back(texture(pair.Truth(p))); });
  ForEachPoint(pair.moving_grid, [&](Vec3d p, Int3) { pair.moving.push_back(texture(p)); });
  return pair;
}

// A block inside the image slides along y by kSlipMm, the rest stays. Both have a texture of their own, so that nothing
// is continuous through the wall.
inline constexpr double kSlipMm = 8;
inline bool IsInBlock(Vec3d p) { return p.x > -22 && p.x < 20 && p.z > -18 && p.z < 19; }
inline Vec3d SlidingTruth(Vec3d p) { return p + Vec3d{0, IsInBlock(p) ? kSlipMm : 0, 0}; }
inline Pair MakeSlidingPair() {
  const Texture wall(21, /*is_2d=*/false), block(22, /*is_2d=*/false);
  Pair pair = MakeTexturedPair(wall, 2, 0, /*is_2d=*/false, AffineMap::Identity());
  pair.fixed.clear();
  pair.moving.clear();
  const auto value = [&](Vec3d p, bool slides) { return static_cast<float>(slides ? block(p) : wall(p)); };
  ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3) { pair.fixed.push_back(value(SlidingTruth(p), IsInBlock(p))); });
  ForEachPoint(pair.moving_grid, [&](Vec3d p, Int3) { pair.moving.push_back(value(p, IsInBlock(p))); });
  return pair;
}

class TexturedPairTest : public DeviceTest {
 protected:
  PreparedImage Prepare(const std::vector<float>& values, const Geometry& grid) {
    absl::StatusOr<PreparedImage> image = PreparedImage::Prepare(ctx(), values.data(), PixelType::kFloat32, 1, 0, grid);
    EXPECT_OK(image) << image.status();
    return *std::move(image);
  }

  // In an arena of exactly the size that is asked for.
  absl::StatusOr<RegistrationResult> RunInput(const RegistrationInput& input, CheckpointFn checkpoint = nullptr) {
    absl::Status valid = ValidateRegistration(input);
    if (!valid.ok()) return valid;
    arenas_.push_back(*OwnedContext::Create(device(), RegistrationWorkspaceBytes(device(), input)));
    return Register(arenas_.back().context(std::move(checkpoint)), input);
  }

  // Mean distance in fixed voxels between map(p, a displacement of `field`) and the truth, off the faces.
  template <typename Map>
  static double MeanDistance(const Pair& pair, const std::vector<float>& field, int margin, const Map& map) {
    const Geometry& g = pair.fixed_grid;
    double sum = 0;
    int count = 0;
    size_t i = 0;
    ForEachPoint(g, [&](Vec3d p, Int3 v) {
      const Vec3d u{field[i], field[i + 1], field[i + 2]};
      i += 3;
      for (int a = 0; a < 3; ++a)
        if (g.size[a] > 1 && (v[a] < margin || v[a] >= g.size[a] - margin)) return;
      const Vec3d d = map(p + u) - pair.Truth(p);
      sum += std::sqrt(Dot(d, d));
      ++count;
    });
    return sum / count / g.spacing.x;
  }

  // The mean error of a transform.
  double MeanError(const Pair& pair, const Transform& transform, int margin = 5) {
    const Geometry& g = pair.fixed_grid;
    float* out = Poisoned<float>(3 * g.voxels());
    EXPECT_OK(EvaluateField(ctx(), transform, g, 0, g.voxels(), out));
    return MeanDistance(pair, Download(out, 3 * g.voxels()), margin, [](Vec3d p) { return p; });
  }

  // A CoarseHook's record: how often it was called, the levels that had begun by then, and its transform's domain,
  // forms and distance to the truth.
  struct CoarseSeen {
    int calls = 0;
    std::vector<int> levels;
    std::optional<Geometry> domain;
    bool has_control_grid = false, has_velocity = false;
    double error = 0;
  };
  // The stages with a hook that takes all of its workspace, in an arena of exactly the size that is asked for.
  absl::StatusOr<RegistrationResult> RunWithHook(const Pair& pair, RegistrationInput input, CoarseSeen* seen,
                                                 absl::Status answer = absl::OkStatus()) {
    constexpr int64_t kHookBytes = int64_t{8} << 20;
    std::vector<int> levels;
    input.coarse = CoarseHook{kHookBytes, [&](const ExecContext& stage, const Transform& transform) -> absl::Status {
                                ++seen->calls;
                                seen->levels = levels;
                                seen->domain = transform.domain();
                                seen->has_control_grid = transform.has_control_grid();
                                seen->has_velocity = transform.has_velocity();
                                EXPECT_OK(device().Synchronize(stage.stream()));
                                seen->error = MeanError(pair, transform);
                                ArenaScope scope(stage.arena());
                                const absl::Status room = stage.arena().AllocateBytes(kHookBytes).status();
                                return room.ok() ? answer : room;
                              }};
    return RunInput(input, [&](const Progress& progress) {
      levels.push_back(progress.level);
      return Decision::kContinue;
    });
  }
  // Expects that a hook is called once, after every level but the finest, and changes nothing.
  void ExpectACoarseTransform(const Pair& pair, const StageOptions& stage, double error, double worse_than_final) {
    const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
    RegistrationInput input{&fixed, &moving, nullptr, nullptr, {AffineOptions{}, stage}, AffineMap::Identity()};
    const absl::StatusOr<RegistrationResult> without = RunInput(input);
    CoarseSeen seen;
    const absl::StatusOr<RegistrationResult> with = RunWithHook(pair, input, &seen);
    ASSERT_OK(without) << without.status();
    ASSERT_OK(with) << with.status();
    EXPECT_EQ(seen.calls, 1);
    ASSERT_FALSE(seen.levels.empty());
    const int levels = static_cast<int>(with->stages.back().levels.size());
    ASSERT_GT(levels, 1);
    EXPECT_EQ(seen.levels.back(), levels - 2);
    EXPECT_EQ(seen.domain, pair.fixed_grid);
    EXPECT_EQ(seen.has_control_grid, with->transform.has_control_grid());
    EXPECT_EQ(seen.has_velocity, with->transform.has_velocity());
    EXPECT_LT(seen.error, error);
    EXPECT_LT(seen.error, MeanError(pair, with->transform) + worse_than_final);
    EXPECT_EQ(FieldOn(pair, with->transform), FieldOn(pair, without->transform));
  }
  std::vector<float> FieldOn(const Pair& pair, const Transform& transform) {
    const Geometry& g = pair.fixed_grid;
    float* out = Poisoned<float>(3 * g.voxels());
    EXPECT_OK(EvaluateField(ctx(), transform, g, 0, g.voxels(), out));
    return Download(out, 3 * g.voxels());
  }
  // Expects that only a last stage of several levels calls the hook, and that the hook's error is the answer.
  void ExpectNoCoarseTransform(const Pair& pair, const StageOptions& stage) {
    const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
    RegistrationInput input{&fixed, &moving, nullptr, nullptr, {WithLevels(stage, 1)}, AffineMap::Identity()};
    CoarseSeen seen;
    EXPECT_OK(RunWithHook(pair, input, &seen));
    input.stages = {AffineOptions{}};
    EXPECT_OK(RunWithHook(pair, input, &seen));
    input.stages = {stage, WithLevels(stage, 1)};
    EXPECT_OK(RunWithHook(pair, input, &seen));
    EXPECT_EQ(seen.calls, 0);
    input.stages = {stage};
    EXPECT_EQ(RunWithHook(pair, input, &seen, absl::AbortedError("enough")).status(), absl::AbortedError("enough"));
    EXPECT_EQ(seen.calls, 1);
  }
  // Expects that a stage whose time is up before its finest level does not call the hook.
  void ExpectNoneOfAStoppedStage(const Pair& pair, const StageOptions& stage) {
    const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
    RegistrationInput input{&fixed, &moving, nullptr, nullptr, {stage}, AffineMap::Identity()};
    int calls = 0;
    input.coarse = CoarseHook{0, [&](const ExecContext&, const Transform&) {
                                ++calls;
                                return absl::OkStatus();
                              }};
    EXPECT_OK(RunInput(input, [](const Progress&) { return Decision::kStop; }));
    EXPECT_EQ(calls, 0);
  }

  std::vector<OwnedContext> arenas_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_ENGINE_REGISTRATION_TEXTURED_PAIR_H_
