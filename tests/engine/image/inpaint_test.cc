// SPDX-License-Identifier: Apache-2.0
#include "engine/image/inpaint.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

using Values = std::vector<float>;

constexpr ExtremeLimits kLimits{-50, 200};

Geometry Grid(Int3 size, Vec3d spacing) {
  Geometry g;
  g.size = size;
  g.spacing = spacing;
  return g;
}

// The definition of inpaint.h word by word, on sets of voxels.
class Reference {
 public:
  Reference(const Values& original, const Geometry& g) : original_(original), g_(g) {
    for (int a = 0; a < 3; ++a) {
      const double half = std::round(0.5 * kThinMm / g.spacing[a]);
      radius_[a] = g.size[a] == 1 ? 0 : half < 1 ? 1 : half > 3 ? 3 : static_cast<int>(half);
    }
    ForBox({0, 0, 0}, g.size, [&](Int3 v) { is_extreme_.push_back(Original(v) < -50 || Original(v) > 200); });
    is_thick_.assign(original.size(), false);
    ForBox({0, 0, 0}, g.size, [&](Int3 center) {
      bool is_whole = true;
      Around(center, radius_, [&](Int3 v) { is_whole = is_whole && is_extreme_[Index(v)]; });
      if (is_whole) Around(center, radius_, [&](Int3 v) { is_thick_[Index(v)] = true; });
    });
    ForBox({0, 0, 0}, g.size, [&](Int3 v) {
      bool is_painted = IsThin(v);
      for (const Int3 axis : {Int3{1, 0, 0}, Int3{0, 1, 0}, Int3{0, 0, 1}}) {
        Around(v, axis, [&](Int3 other) { is_painted = is_painted || (IsThin(other) && !is_thick_[Index(v)]); });
      }
      is_painted_.push_back(is_painted);
    });
  }

  bool IsPainted(int64_t i) const { return is_painted_[i]; }
  int64_t Painted() const { return std::count(is_painted_.begin(), is_painted_.end(), true); }

  // The image with the values `volume`, painted over.
  Values Fill(const Values& volume) const {
    Values out = volume;
    ForBox({0, 0, 0}, g_.size, [&](Int3 v) {
      if (!is_painted_[Index(v)]) return;
      Int3 reach;
      for (int a = 0; a < 3; ++a) reach[a] = g_.size[a] == 1 ? 0 : radius_[a] + 2;
      double sum = 0, weights = 0;
      Around(v, reach, [&](Int3 other) {
        if (is_painted_[Index(other)] || is_thick_[Index(other)]) return;
        double squared = 0;
        for (int a = 0; a < 3; ++a) squared += std::pow((other[a] - v[a]) * g_.spacing[a], 2);
        sum += volume[Index(other)] / std::pow(squared, 2);
        weights += 1 / std::pow(squared, 2);
      });
      if (weights > 0) out[Index(v)] = static_cast<float>(sum / weights);
    });
    return out;
  }

 private:
  template <typename F>
  static void ForBox(Int3 first, Int3 end, const F& f) {
    for (int z = first.z; z < end.z; ++z)
      for (int y = first.y; y < end.y; ++y)
        for (int x = first.x; x < end.x; ++x) f(Int3{x, y, z});
  }
  // The voxels of the grid at most so far from `center`.
  template <typename F>
  void Around(Int3 center, Int3 radius, const F& f) const {
    Int3 first, end;
    for (int a = 0; a < 3; ++a) {
      first[a] = std::max(center[a] - radius[a], 0);
      end[a] = std::min(center[a] + radius[a] + 1, g_.size[a]);
    }
    ForBox(first, end, f);
  }
  int64_t Index(Int3 v) const { return (int64_t{v.z} * g_.size.y + v.y) * g_.size.x + v.x; }
  float Original(Int3 v) const { return original_[Index(v)]; }
  bool IsThin(Int3 v) const { return is_extreme_[Index(v)] && !is_thick_[Index(v)]; }

  const Values& original_;
  const Geometry g_;
  Int3 radius_;
  std::vector<bool> is_extreme_, is_thick_, is_painted_;
};

class InpaintTest : public DeviceTest {
 protected:
  Values Inpaint(const Values& original, const Values& volume, const Geometry& g) {
    contexts_.push_back(*OwnedContext::Create(device(), InpaintWorkspaceBytes(g)));
    const ExecContext context = contexts_.back().context();
    uint8_t* marks = Poisoned<uint8_t>(original.size());
    float* data = Upload(volume);
    EXPECT_OK(MarkExtremes(context, kLimits, {Upload(original), g}, marks));
    EXPECT_OK(InpaintThin(context, marks, {data, g}));
    EXPECT_OK(device().Synchronize(context.stream()));
    return Download(data, volume.size());
  }

  std::vector<OwnedContext> contexts_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(InpaintTest);

Values Tissue(const Geometry& g, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> value(0, 100);
  Values values(g.voxels());
  for (float& v : values) v = value(engine);
  return values;
}

template <typename IsIn>
void Put(const Geometry& g, Values& values, float value, const IsIn& is_in) {
  size_t i = 0;
  for (int z = 0; z < g.size.z; ++z)
    for (int y = 0; y < g.size.y; ++y)
      for (int x = 0; x < g.size.x; ++x, ++i)
        if (is_in(x, y, z)) values[i] = value;
}

TEST_P(InpaintTest, IsTheDefinitionVoxelByVoxel) {
  for (const auto& [size, spacing] :
       {std::pair{Int3{23, 19, 17}, Vec3d{4, 4, 4}}, std::pair{Int3{31, 29, 11}, Vec3d{0.8, 1.9, 5}},
        std::pair{Int3{37, 33, 1}, Vec3d{1, 2, 3}}, std::pair{Int3{2, 21, 3}, Vec3d{3, 1, 30}}}) {
    const Geometry g = Grid(size, spacing);
    Values original = Tissue(g, 5);
    // A rod along z, a slanting one at a face, a dark wire, a blade, a thick block with a spike, single voxels.
    Put(g, original, 900, [](int x, int y, int) { return x == 4 && (y == 5 || y == 6); });
    Put(g, original, 500, [](int x, int y, int z) { return y == 0 && x - z <= 1 && x >= z; });
    Put(g, original, -400, [](int x, int y, int z) { return y == 15 && z == 0 && x > 2; });
    Put(g, original, 3000, [](int x, int y, int z) { return x > 9 && x < 18 && y > 3 && y < 12 && z < 8; });
    Put(g, original, 3000, [](int x, int y, int z) { return x == 12 && y < 14 && z == 0; });
    original.back() = 201;
    original[original.size() / 2] = -51;
    const Reference reference(original, g);
    ASSERT_GT(reference.Painted(), 10);
    // The voxels are already clamped when they are painted over.
    Values volume = original;
    for (float& v : volume) v = std::clamp(v, -20.f, 150.f);
    const Values expected = reference.Fill(volume), got = Inpaint(original, volume, g);
    for (size_t i = 0; i < got.size(); ++i) {
      if (!reference.IsPainted(i)) {
        ASSERT_EQ(got[i], volume[i]) << i;
      } else {
        ASSERT_NEAR(got[i], expected[i], 1e-4) << i;
      }
    }
  }
}

TEST_P(InpaintTest, ARodIsGoneAndABlockStays) {
  const Geometry g = Grid({24, 24, 24}, {4, 4, 4});
  Values original(g.voxels(), 50);
  Put(g, original, 4000, [](int x, int y, int z) { return x == y && z > 3 && z < 20 && x > 12; });
  Put(g, original, 300, [](int x, int y, int z) { return x > 2 && x < 6 && y > 2 && y < 6 && z > 2 && z < 6; });
  Values block(g.voxels(), 50);
  Put(g, block, 300, [](int x, int y, int z) { return x > 2 && x < 6 && y > 2 && y < 6 && z > 2 && z < 6; });
  const Values got = Inpaint(original, original, g);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], block[i], 1e-4) << i;
}

TEST_P(InpaintTest, WithoutAVoxelToTakeFromTheyStay) {
  const Geometry g = Grid({9, 8, 7}, {4, 4, 10});
  // Every voxel of a chessboard is an extreme or shares a face with one; a volume of extremes is one thick object.
  Values chessboard(g.voxels(), 50);
  Put(g, chessboard, 700, [](int x, int y, int z) { return (x + y + z) % 2 == 0; });
  EXPECT_EQ(Inpaint(chessboard, chessboard, g), chessboard);
  const Values bright(g.voxels(), 700);
  EXPECT_EQ(Inpaint(bright, bright, g), bright);
}

TEST_P(InpaintTest, NoExtremesAreNoChange) {
  const Geometry g = Grid({13, 11, 7}, {1, 1, 1});
  const Values tissue = Tissue(g, 3);
  EXPECT_EQ(Inpaint(tissue, tissue, g), tissue);
}

}  // namespace
}  // namespace intrawarp
