// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/control_grid.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

#include "engine/image/warp.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

using testing::HasSubstr;

constexpr float kPoison = -12345.0f;

// --- The reference: the definition, in float64 ---

struct Grid {
  Geometry geometry;
  std::vector<float> c;
};

int64_t Place(Int3 size, int x, int y, int z) { return (int64_t{z} * size.y + y) * size.x + x; }

template <typename Body>
void ForEachVoxel(Int3 size, const Body& body) {
  for (int z = 0; z < size.z; ++z)
    for (int y = 0; y < size.y; ++y)
      for (int x = 0; x < size.x; ++x) body(x, y, z);
}

Vec3d PointOf(const Geometry& g, int x, int y, int z) { return IndexToPhysical(g)({double(x), double(y), double(z)}); }

// The centred cubic B-spline and its derivative; an axis with one control point has none.
double Spline(double x, int nodes) {
  if (nodes == 1) return 1;
  const double a = std::abs(x);
  return a < 1 ? 2.0 / 3 - a * a + a * a * a / 2 : a < 2 ? (2 - a) * (2 - a) * (2 - a) / 6 : 0;
}

double SplineDerivative(double x, int nodes) {
  if (nodes == 1) return 0;
  const double a = std::abs(x), sign = x < 0 ? -1 : 1;
  return a < 1 ? sign * (-2 * a + 1.5 * a * a) : a < 2 ? -sign * (2 - a) * (2 - a) / 2 : 0;
}

bool InDomain(Int3 nodes, Vec3d index) {
  for (int a = 0; a < 3; ++a) {
    const double low = nodes[a] == 1 ? -0.5 : 1, high = nodes[a] == 1 ? 0.5 : nodes[a] - 2;
    if (index[a] < low - 1e-6 || index[a] > high + 1e-6) return false;
  }
  return true;
}

// body(node place, weight) for the 64 neighbours; `derivative`: the axis along which weights are derivatives, or -1.
template <typename Body>
void ForEachNeighbour(const Geometry& grid, Vec3d p, int derivative, const Body& body) {
  const Vec3d index = PhysicalToIndex(grid)(p);
  if (!InDomain(grid.size, index)) return;
  Int3 low, high;
  double weight[3][6];
  for (int a = 0; a < 3; ++a) {
    const int n = grid.size[a], below = static_cast<int>(std::floor(index[a]));
    low[a] = std::clamp(below - 2, 0, n - 1);
    high[a] = std::clamp(below + 3, 0, n - 1);
    for (int k = low[a]; k <= high[a]; ++k) {
      weight[a][k - low[a]] = a == derivative ? SplineDerivative(index[a] - k, n) : Spline(index[a] - k, n);
    }
  }
  for (int z = low.z; z <= high.z; ++z) {
    for (int y = low.y; y <= high.y; ++y) {
      const double wzy = weight[2][z - low.z] * weight[1][y - low.y];
      for (int x = low.x; x <= high.x; ++x) body(Place(grid.size, x, y, z), weight[0][x - low.x] * wzy);
    }
  }
}

Vec3d ReferenceU(const Grid& grid, Vec3d p, int derivative = -1) {
  Vec3d u;
  ForEachNeighbour(grid.geometry, p, derivative, [&](int64_t node, double w) {
    for (int c = 0; c < 3; ++c) u[c] += w * grid.c[3 * node + c];
  });
  return u;
}

double ReferenceDeterminant(const Grid& grid, Vec3d p) {
  AffineMap j = AffineMap::Identity();
  const AffineMap to_index = PhysicalToIndex(grid.geometry);
  for (int a = 0; a < 3; ++a) {
    const Vec3d d = ReferenceU(grid, p, a);
    for (int r = 0; r < 3; ++r)
      for (int c = 0; c < 3; ++c) j.m[r][c] += d[r] * to_index.m[a][c];
  }
  return Determinant(j);
}

// --- Inputs ---

Geometry GridFor(const Geometry& image, Vec3d spacing_vox) {
  Vec3d spacing;
  for (int a = 0; a < 3; ++a) spacing[a] = spacing_vox[a] * image.spacing[a];
  const absl::StatusOr<Geometry> grid = MakeControlGrid(image, spacing);
  EXPECT_TRUE(grid.ok()) << grid.status();
  return *grid;
}

Grid RandomGrid(const Geometry& g, uint32_t seed, float amplitude = 10) {
  return {g, RandomFloats(3 * g.voxels(), seed, -amplitude, amplitude)};
}

AffineMap TestAffine() {
  AffineMap a;
  const double m[3][4] = {{0.97, -0.21, 0.05, 4.5}, {0.18, 1.04, -0.11, -7.25}, {-0.02, 0.13, 0.92, 3.0}};
  std::copy(&m[0][0], &m[0][0] + 12, &a.m[0][0]);
  return a;
}

// The voxels begin, begin + step, ... of an image (may lie outside it).
Geometry Part(const Geometry& image, Vec3d begin, Vec3d step, Int3 size) {
  Geometry part = image;
  part.size = size;
  part.origin = IndexToPhysical(image)(begin);
  for (int a = 0; a < 3; ++a) part.spacing[a] *= step[a];
  return part;
}

class ControlGridTest : public DeviceTest {
 protected:
  std::vector<float> Evaluate(const Grid& grid, const AffineMap& affine, const Geometry& image, int64_t first,
                              int64_t count, const std::vector<uint8_t>& mask = {}, int offset = 0) {
    // A guard on both sides that must stay as it was; at any alignment.
    const std::vector<float> guarded(3 * count + 16 + offset, kPoison);
    float* out = Upload(guarded);
    const ConstMaskView view = mask.empty() ? ConstMaskView{} : ConstMaskView{Upload(mask), image};
    const absl::Status status = EvaluateControlGrid(ctx(), {Upload(grid.c), grid.geometry}, affine, image, first, count,
                                                    out + 8 + offset, view);
    EXPECT_OK(status) << status;
    std::vector<float> result = Download(out, guarded.size());
    for (int i = 0; i < 8 + offset; ++i) EXPECT_EQ(result[i], kPoison) << "wrote before the begin";
    for (int i = 0; i < 8; ++i) EXPECT_EQ(result[8 + offset + 3 * count + i], kPoison) << "wrote behind the end";
    return std::vector<float>(result.begin() + 8 + offset, result.begin() + 8 + offset + 3 * count);
  }
  std::vector<float> Evaluate(const Grid& grid, const Geometry& image) {
    return Evaluate(grid, AffineMap::Identity(), image, 0, image.voxels());
  }
  std::vector<float> Determinants(const Grid& grid, const Geometry& image) {
    float* out = Poisoned<float>(image.voxels());
    EXPECT_OK(EvaluateControlGridDeterminant(ctx(), {Upload(grid.c), grid.geometry}, {out, image}));
    return Download(out, image.voxels());
  }
  std::vector<float> Transpose(const std::vector<float>& field, const Geometry& image, const Geometry& grid) {
    float* out = Poisoned<float>(3 * grid.voxels());
    OwnedContext exact = *OwnedContext::Create(device(), TransposeControlGridWorkspaceBytes(image, grid));
    const float* on_device = Upload(field);
    const ExecContext context = exact.context();
    EXPECT_OK(TransposeControlGrid(context, {on_device, image}, {out, grid}));
    EXPECT_OK(device().Synchronize(context.stream()));
    EXPECT_EQ(context.arena().used(), 0u);
    return Download(out, 3 * grid.voxels());
  }
  void ExpectReference(const Grid& grid, const AffineMap& affine, const Geometry& image, double tolerance) {
    SCOPED_TRACE(SizeString(image) + " on " + SizeString(grid.geometry));
    const std::vector<float> field = Evaluate(grid, affine, image, 0, image.voxels());
    ForEachVoxel(image.size, [&](int x, int y, int z) {
      const Vec3d p = PointOf(image, x, y, z), d = affine(p + ReferenceU(grid, p)) - p;
      for (int c = 0; c < 3; ++c) {
        const float value = field[3 * Place(image.size, x, y, z) + c];
        ASSERT_NEAR(value, d[c], tolerance + 2e-7 * std::abs(d[c])) << x << ' ' << y << ' ' << z;
      }
    });
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(ControlGridTest);

struct Case {
  Int3 size;
  Vec3d spacing_vox;
};

// Odd and even sizes around the widths of vectors and blocks, thin axes, integer and real spacings, one tile an axis.
const Case kCases[] = {{{2, 1, 1}, {2, 1, 1}},       {{5, 4, 3}, {2.5, 2, 1.5}},   {{33, 17, 12}, {5, 5, 5}},
                       {{41, 30, 1}, {3.7, 4.2, 1}}, {{64, 9, 70}, {4, 7, 3}},     {{130, 3, 5}, {6.3, 3, 2}},
                       {{267, 6, 9}, {5, 4.9, 7}},   {{1, 40, 9}, {1, 3, 4}},      {{43, 21, 20}, {1, 1, 1}},
                       {{42, 1, 33}, {1.9, 1, 1.3}}, {{86, 34, 7}, {7, 2.2, 100}}, {{31, 29, 67}, {12.3, 3.3, 3}},
                       {{1, 1, 50}, {1, 1, 3}},      {{84, 5, 5}, {5, 5, 5}},      {{85, 18, 3}, {3, 1.1, 1}}};

TEST_P(ControlGridTest, EvaluationEqualsReference) {
  uint32_t seed = 1;
  for (const Case& c : kCases) {
    const Geometry image = ObliqueGeometry(c.size, seed % 2 == 0);
    const Grid grid = RandomGrid(GridFor(image, c.spacing_vox), seed++);
    ExpectReference(grid, AffineMap::Identity(), image, 3e-6);
    ExpectReference(grid, TestAffine(), image, 5e-6);
  }
}

TEST_P(ControlGridTest, EvaluationKeepsItsPrecision) {
  // The error that the fastest published kernels have: 2e-7 for control points within (-10, 10).
  for (Int3 size : {Int3{64, 56, 40}, Int3{61, 55, 41}}) {
    Geometry image;
    image.size = size;
    const Grid grid = RandomGrid(GridFor(image, {5, 5, 5}), 77);
    const std::vector<float> field = Evaluate(grid, image);
    double error = 0;
    ForEachVoxel(size, [&](int x, int y, int z) {
      const Vec3d u = ReferenceU(grid, PointOf(image, x, y, z));
      for (int c = 0; c < 3; ++c) error += std::abs(field[3 * Place(size, x, y, z) + c] - u[c]);
    });
    EXPECT_LT(error / static_cast<double>(field.size()), 2e-7);
  }
}

TEST_P(ControlGridTest, EvaluatesOnRegionsAndStridesAndIsZeroOutsideTheDomain) {
  const Geometry image = ObliqueGeometry({37, 29, 23});
  const Grid grid = RandomGrid(GridFor(image, {4.3, 5, 3}), 5);
  ExpectReference(grid, AffineMap::Identity(), Part(image, {7, 3, 11}, {1, 1, 1}, {13, 20, 5}), 3e-6);
  ExpectReference(grid, TestAffine(), Part(image, {0.4, 0.3, 0.2}, {3, 2, 4}, {12, 14, 5}), 5e-6);
  // Steps longer than a tile, and shorter than a voxel.
  ExpectReference(grid, AffineMap::Identity(), Part(image, {0, 0, 0}, {9, 8, 7}, {4, 4, 4}), 3e-6);
  ExpectReference(grid, TestAffine(), Part(image, {1, 0, 2}, {9, 26, 7}, {4, 2, 3}), 5e-6);
  ExpectReference(grid, AffineMap::Identity(), Part(image, {20.1, 5.3, 7.7}, {0.13, 0.3, 0.21}, {90, 11, 17}), 3e-6);
  // Beyond every face.
  const Geometry beyond = Part(image, {-20.3, -15.2, -12.6}, {1.7, 1.3, 1.9}, {47, 50, 30});
  ExpectReference(grid, AffineMap::Identity(), beyond, 3e-6);
  ExpectReference(grid, TestAffine(), beyond, 5e-6);
  const std::vector<float> field = Evaluate(grid, beyond);
  EXPECT_EQ(field[0], 0.0f);
  EXPECT_EQ(field.back(), 0.0f);
  EXPECT_GT(std::count_if(field.begin(), field.end(), [](float v) { return v != 0; }), 1000);
  // A plane of a flat grid has its u on both sides of it, half a voxel deep.
  const Geometry flat = ObliqueGeometry({20, 18, 1});
  ExpectReference(RandomGrid(GridFor(flat, {4, 4, 1}), 6), AffineMap::Identity(),
                  Part(flat, {-1.2, 0.1, -1.0}, {1, 1, 0.3}, {24, 17, 8}), 3e-6);
}

// Pages that the process has in memory, in bytes.
int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// A client may bring a grid of a few megabytes with thousands of control points between two rows of voxels.
TEST_P(ControlGridTest, AGridMuchFinerThanTheImageTakesLittleMemory) {
  Geometry nodes;
  nodes.size = {4, kMaxAxis, 4};
  nodes.spacing = {3000, 0.001, 1};
  const Grid grid = RandomGrid(nodes, 7);
  Geometry image;
  image.size = {3000, 17, 1};
  image.spacing = {1, 1, 1};
  image.origin = {3000, 0, 1.5};
  const int64_t before = ResidentBytes();
  ExpectReference(grid, AffineMap::Identity(), image, 3e-6);
  EXPECT_LT(ResidentBytes() - before, int64_t{512} << 20);
}

TEST_P(ControlGridTest, EvaluatesOnAnImageOfAnotherDirection) {
  const Geometry image = ObliqueGeometry({30, 24, 20}), other = ObliqueGeometry({29, 23, 17}, true);
  Geometry turned = other;
  turned.origin = other.origin + Center(image) - Center(other) + Vec3d{0.31, 0.17, 0.23};
  const Grid grid = RandomGrid(GridFor(image, {5, 4, 3}), 8);
  ExpectReference(grid, AffineMap::Identity(), turned, 5e-6);
  ExpectReference(grid, TestAffine(), turned, 1e-5);
}

TEST_P(ControlGridTest, PiecesEqualTheWhole) {
  for (Int3 size : {Int3{37, 11, 9}, Int3{40, 12, 7}, Int3{300, 3, 2}}) {
    const Geometry image = ObliqueGeometry(size);
    const Grid grid = RandomGrid(GridFor(image, {5, 3.1, 3}), 9);
    for (const AffineMap& affine : {AffineMap::Identity(), TestAffine()}) {
      const std::vector<float> whole = Evaluate(grid, affine, image, 0, image.voxels());
      for (int64_t piece : {1, 2, 36, 37, 38, 100, 445, 1025}) {
        for (int64_t first = 0; first < image.voxels(); first += std::max<int64_t>(7 * piece, 41)) {
          const int64_t count = std::min(piece, image.voxels() - first);
          const std::vector<float> part = Evaluate(grid, affine, image, first, count, {}, first % 4);
          ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 3 * first)) << first << " + " << count;
        }
      }
    }
  }
}

TEST_P(ControlGridTest, VoxelsThatTheMaskDoesNotSelectAreZero) {
  for (Int3 size : {Int3{67, 37, 40}, Int3{64, 36, 21}}) {
    const Geometry image = ObliqueGeometry(size);
    const Geometry turned = Part(ObliqueGeometry(size, true), {0, 0, 0}, {1, 1, 1}, size);
    // A ball of all and of some values, which leaves whole tiles out.
    const std::vector<float> random = RandomFloats(image.voxels(), 10);
    std::vector<uint8_t> mask(image.voxels());
    ForEachVoxel(size, [&](int x, int y, int z) {
      const int64_t i = Place(size, x, y, z);
      const double r = std::hypot(x - 33.0, y - 15.0, z - 12.0);
      mask[i] = r < 7 || (r < 12 && random[i] < 0.5f) ? (random[i] < 0.7f ? 1 : 255) : 0;
    });
    for (const Geometry& on : {image, turned}) {
      const Grid grid = RandomGrid(GridFor(image, {5, 5, 5}), 11);
      for (const AffineMap& affine : {AffineMap::Identity(), TestAffine()}) {
        std::vector<float> expected = Evaluate(grid, affine, on, 0, on.voxels());
        for (int64_t i = 0; i < on.voxels(); ++i) {
          if (mask[i] == 0) std::fill(&expected[3 * i], &expected[3 * i] + 3, 0.0f);
        }
        EXPECT_EQ(Evaluate(grid, affine, on, 0, on.voxels(), mask), expected);
        const int64_t first = image.voxels() / 4 + 5, count = image.voxels() / 3;
        const std::vector<float> part = Evaluate(grid, affine, on, first, count, mask);
        EXPECT_TRUE(std::equal(part.begin(), part.end(), expected.begin() + 3 * first));
      }
    }
  }
}

TEST_P(ControlGridTest, EvaluationRefusesWhatIsNotPartOfTheImage) {
  const Geometry image = ObliqueGeometry({8, 6, 4});
  const Grid grid = RandomGrid(GridFor(image, {2, 2, 2}), 12);
  const float* c = Upload(grid.c);
  float* out = Poisoned<float>(3 * image.voxels());
  const auto evaluate = [&](const Geometry& g, int64_t first, int64_t count, ConstMaskView mask = {}) {
    return EvaluateControlGrid(ctx(), {c, g}, AffineMap::Identity(), image, first, count, out, mask);
  };
  EXPECT_OK(evaluate(grid.geometry, 192, 0));
  const std::pair<int64_t, int64_t> bad[] = {{-1, 1}, {0, 193}, {192, 1},
                                             {0, -1}, {193, 0}, {1, std::numeric_limits<int64_t>::max()}};
  for (const auto& [first, count] : bad) {
    EXPECT_EQ(evaluate(grid.geometry, first, count).code(), absl::StatusCode::kInvalidArgument)
        << first << ' ' << count;
  }
  Geometry three = grid.geometry;
  three.size.y = 3;
  EXPECT_THAT(std::string(evaluate(three, 0, 1).message()), HasSubstr("grid: 3 control points along y"));
  const uint8_t* mask = Upload(std::vector<uint8_t>(image.voxels(), 1));
  EXPECT_THAT(std::string(evaluate(grid.geometry, 0, 1, {mask, ObliqueGeometry({8, 6, 5})}).message()),
              HasSubstr("mask: "));
}

// --- Geometry of grids ---

TEST(ControlGridGeometryTest, CoversTheDomainOfTheImage) {
  for (bool left_handed : {false, true}) {
    for (Vec3d spacing_vox : {Vec3d{1, 1, 1}, Vec3d{5, 5, 5}, Vec3d{4.3, 2.9, 60}, Vec3d{37, 41, 10}}) {
      const Geometry image = ObliqueGeometry({37, 41, 20}, left_handed), grid = GridFor(image, spacing_vox);
      const AffineMap to_grid = Compose(PhysicalToIndex(grid), IndexToPhysical(image));
      const Vec3d low = to_grid({-0.5, -0.5, -0.5}), high = to_grid({36.5, 40.5, 19.5});
      for (int a = 0; a < 3; ++a) {
        EXPECT_NEAR(low[a], 1, 1e-9);
        EXPECT_LE(high[a], grid.size[a] - 2 + 1e-6);
        EXPECT_GT(high[a], grid.size[a] - 3);
        EXPECT_NEAR(grid.spacing[a], spacing_vox[a] * image.spacing[a], 1e-12);
      }
      const Geometry domain = ControlGridDomain(grid);
      const AffineMap domain_to_grid = Compose(PhysicalToIndex(grid), IndexToPhysical(domain));
      for (int a = 0; a < 3; ++a) {
        EXPECT_NEAR(domain_to_grid({-0.5, -0.5, -0.5})[a], 1, 1e-9);
        EXPECT_NEAR(domain_to_grid({domain.size.x - 0.5, domain.size.y - 0.5, domain.size.z - 0.5})[a],
                    grid.size[a] - 2, 1e-9);
      }
    }
  }
}

TEST(ControlGridGeometryTest, AnAxisOfOneVoxelHasOneControlPointOnIt) {
  const Geometry image = ObliqueGeometry({30, 20, 1}), grid = GridFor(image, {4, 5, 77});
  EXPECT_EQ(grid.size, (Int3{11, 7, 1}));
  EXPECT_NEAR(Compose(PhysicalToIndex(grid), IndexToPhysical(image))({3, 4, 0}).z, 0, 1e-12);
  EXPECT_EQ(grid.spacing.z, image.spacing.z);
  const Geometry domain = ControlGridDomain(grid);
  EXPECT_EQ(domain.size, (Int3{8, 4, 1}));
  EXPECT_NEAR(Compose(PhysicalToIndex(image), IndexToPhysical(domain))({0, 0, 0}).z, 0, 1e-12);
}

TEST(ControlGridGeometryTest, GridsOfAPyramidNest) {
  const Geometry fine_image = ObliqueGeometry({37, 41, 20});
  // Half the resolution on the same domain.
  Geometry coarse_image = fine_image;
  coarse_image.size = {19, 21, 10};
  for (int a = 0; a < 3; ++a) coarse_image.spacing[a] *= double(fine_image.size[a]) / coarse_image.size[a];
  coarse_image.origin =
      IndexToPhysical(fine_image)({-0.5 + 0.5 * 37.0 / 19, -0.5 + 0.5 * 41.0 / 21, -0.5 + 0.5 * 20.0 / 10});
  const Vec3d spacing{12, 8, 20};
  const Geometry coarse = *MakeControlGrid(coarse_image, spacing), fine = RefinedControlGrid(coarse, fine_image);
  const Geometry direct = *MakeControlGrid(fine_image, 0.5 * spacing);
  EXPECT_TRUE(SameGrid(fine, direct, 1e-9)) << SizeString(fine) << ' ' << SizeString(direct);
}

TEST(ControlGridGeometryTest, RefusesSpacingsThatMakeNoSense) {
  const Geometry image = ObliqueGeometry({30, 20, 10});
  const auto refuse = [&](Vec3d spacing) {
    const absl::StatusOr<Geometry> grid = MakeControlGrid(image, spacing);
    EXPECT_EQ(grid.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(grid.status().message()), testing::StartsWith("spacing_vox: "));
  };
  refuse({NAN, 5, 5});
  refuse({5, std::numeric_limits<double>::infinity(), 5});
  refuse({0, 5, 5});
  refuse({-5, 5, 5});
  refuse({1.2, 5, 5});
  refuse({5, 5, 2.4});
  refuse({38, 16, 26});
  refuse({1e300, 1e300, 1e300});
  EXPECT_TRUE(MakeControlGrid(image, {1.25, 0.75, 2.5}).ok());
  EXPECT_TRUE(MakeControlGrid(image, {37.5, 16, 26}).ok());
  EXPECT_FALSE(MakeControlGrid(ObliqueGeometry({1, 1, 1}), {2, 2, 3}).ok());
}

// --- Determinant ---

TEST_P(ControlGridTest, DeterminantEqualsReferenceAndFiniteDifferences) {
  uint32_t seed = 20;
  for (const Case& c : kCases) {
    const Geometry image = ObliqueGeometry(c.size, seed % 2 == 0);
    // Some of it folds.
    const Grid grid = RandomGrid(GridFor(image, c.spacing_vox), seed++, 3);
    const std::vector<float> determinants = Determinants(grid, image);
    ForEachVoxel(image.size, [&](int x, int y, int z) {
      const double expected = ReferenceDeterminant(grid, PointOf(image, x, y, z));
      ASSERT_NEAR(determinants[Place(image.size, x, y, z)], expected, 2e-4 + 1e-5 * std::abs(expected))
          << SizeString(image) << ": " << x << ' ' << y << ' ' << z;
    });
  }
  const Geometry image = ObliqueGeometry({40, 37, 30});
  const Grid grid = RandomGrid(GridFor(image, {5, 6, 4}), 50, 8);
  const std::vector<float> determinants = Determinants(grid, image);
  for (const Int3 v : {Int3{11, 7, 9}, Int3{20, 30, 3}, Int3{38, 2, 28}, Int3{5, 17, 21}}) {
    const Vec3d p = PointOf(image, v.x, v.y, v.z);
    AffineMap j;
    for (int a = 0; a < 3; ++a) {
      Vec3d h;
      h[a] = 1e-4;
      const Vec3d d = (p + h + ReferenceU(grid, p + h)) - (p - h + ReferenceU(grid, p - h));
      for (int r = 0; r < 3; ++r) j.m[r][a] = d[r] / 2e-4;
    }
    EXPECT_NEAR(determinants[Place(image.size, v.x, v.y, v.z)], Determinant(j), 3e-4);
  }
  EXPECT_GT(std::count_if(determinants.begin(), determinants.end(), [](float d) { return d <= 0; }), 0);
}

TEST_P(ControlGridTest, DeterminantOnOtherGrids) {
  const Geometry image = ObliqueGeometry({30, 24, 20}), other = ObliqueGeometry({19, 13, 9}, true);
  Geometry turned = other;
  turned.origin = other.origin + Center(image) - Center(other) + Vec3d{0.31, 0.17, 0.23};
  const Grid grid = RandomGrid(GridFor(image, {5, 4, 3}), 51, 2);
  for (const Geometry& g : {turned, Part(image, {-10.3, -5.1, 3.2}, {2.1, 1.7, 1.1}, {25, 22, 11})}) {
    const std::vector<float> determinants = Determinants(grid, g);
    ForEachVoxel(g.size, [&](int x, int y, int z) {
      const double expected = ReferenceDeterminant(grid, PointOf(g, x, y, z));
      ASSERT_NEAR(determinants[Place(g.size, x, y, z)], expected, 2e-4 + 1e-5 * std::abs(expected));
    });
  }
}

// --- Transpose ---

TEST_P(ControlGridTest, TransposeEqualsThePlainLoopAndIsTheTranspose) {
  uint32_t seed = 60;
  for (const Case& c : kCases) {
    const Geometry image = ObliqueGeometry(c.size, seed % 2 == 0);
    for (const Geometry& on : {image, Part(image, {-3.3, 1.2, 0.4}, {1.3, 0.9, 0.7}, c.size)}) {
      const Grid grid = RandomGrid(GridFor(image, c.spacing_vox), seed++);
      const std::vector<float> field = RandomFloats(3 * on.voxels(), seed++, -1, 1);
      std::vector<double> expected(grid.c.size()), magnitude(grid.c.size());
      ForEachVoxel(on.size, [&](int x, int y, int z) {
        const float* f = &field[3 * Place(on.size, x, y, z)];
        ForEachNeighbour(grid.geometry, PointOf(on, x, y, z), -1, [&](int64_t node, double w) {
          for (int k = 0; k < 3; ++k) {
            expected[3 * node + k] += w * f[k];
            magnitude[3 * node + k] += std::abs(w * f[k]);
          }
        });
      });
      const std::vector<float> transposed = Transpose(field, on, grid.geometry);
      double through_grid = 0, total = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(transposed[i], expected[i], 1e-9 + 1e-6 * magnitude[i]) << SizeString(on) << ' ' << i;
        through_grid += static_cast<double>(grid.c[i]) * transposed[i];
      }
      const std::vector<float> evaluated = Evaluate(grid, on);
      double through_image = 0;
      for (size_t i = 0; i < field.size(); ++i) {
        through_image += static_cast<double>(evaluated[i]) * field[i];
        total += std::abs(static_cast<double>(evaluated[i]) * field[i]);
      }
      EXPECT_NEAR(through_grid, through_image, 1e-9 + 1e-6 * total);
      EXPECT_EQ(Transpose(field, on, grid.geometry), transposed) << "not the same twice";
    }
  }
}

TEST_P(ControlGridTest, TransposeRefusesAFieldOfAnotherDirection) {
  const Geometry image = ObliqueGeometry({9, 9, 9});
  const Geometry grid = GridFor(image, {3, 3, 3});
  float* data = Poisoned<float>(3 * 9 * 9 * 9);
  float* out = Poisoned<float>(3 * grid.voxels());
  EXPECT_EQ(TransposeControlGrid(ctx(), {data, ObliqueGeometry({9, 9, 9}, true)}, {out, grid}).code(),
            absl::StatusCode::kInvalidArgument);
}

// --- Refinement and resampling ---

TEST_P(ControlGridTest, RefinementIsTheSameFunction) {
  uint32_t seed = 90;
  for (const Case& c : kCases) {
    const Geometry image = ObliqueGeometry(c.size, seed % 2 == 0);
    const Grid coarse = RandomGrid(GridFor(image, c.spacing_vox), seed++);
    Grid fine{RefinedControlGrid(coarse.geometry, image), {}};
    float* out = Poisoned<float>(3 * fine.geometry.voxels());
    ASSERT_OK(RefineControlGrid(ctx(), {Upload(coarse.c), coarse.geometry}, {out, fine.geometry}));
    fine.c = Download(out, 3 * fine.geometry.voxels());
    ForEachVoxel(image.size, [&](int x, int y, int z) {
      const Vec3d p = PointOf(image, x, y, z), a = ReferenceU(coarse, p), b = ReferenceU(fine, p);
      for (int k = 0; k < 3; ++k) ASSERT_NEAR(a[k], b[k], 3e-6) << SizeString(image) << x << ' ' << y << ' ' << z;
    });
  }
}

TEST_P(ControlGridTest, RefinementRefusesAnotherGrid) {
  const Geometry image = ObliqueGeometry({20, 18, 16});
  const Geometry coarse = GridFor(image, {5, 5, 5}), fine = RefinedControlGrid(coarse, image);
  float* data = Poisoned<float>(3 * 40 * 40 * 40);
  const auto code = [&](const Geometry& g) {
    return RefineControlGrid(ctx(), {data, coarse}, {data + 3 * 20 * 20 * 20, g}).code();
  };
  Geometry larger = fine, moved = fine, coarser = fine;
  larger.size.x = 2 * coarse.size.x - 2;
  moved.origin.x += 0.1;
  coarser.spacing.y *= 1.5;
  for (const Geometry& g : {larger, moved, coarser, coarse}) EXPECT_EQ(code(g), absl::StatusCode::kInvalidArgument);
  EXPECT_OK(RefineControlGrid(ctx(), {data, coarse}, {data + 3 * 20 * 20 * 20, fine}));
}

TEST_P(ControlGridTest, ResamplingInterpolatesAtTheNodes) {
  const Geometry image = ObliqueGeometry({37, 30, 20}), flat = ObliqueGeometry({37, 30, 1});
  const Geometry turned = ObliqueGeometry({31, 33, 22}, true);
  struct {
    Geometry from, to;
  } const cases[] = {{GridFor(image, {6, 6, 5}), GridFor(image, {4, 5, 3})},
                     {GridFor(image, {4, 4, 4}), GridFor(image, {9, 8, 30})},
                     {GridFor(image, {4, 4, 4}), GridFor(turned, {5, 5, 5})},
                     {GridFor(flat, {6, 5, 1}), GridFor(flat, {4, 7, 1})}};
  for (const auto& [from, to] : cases) {
    const Grid grid = RandomGrid(from, 101);
    float* out = Poisoned<float>(3 * to.voxels());
    OwnedContext exact = *OwnedContext::Create(device(), ResampleControlGridWorkspaceBytes(to));
    ASSERT_OK(ResampleControlGrid(exact.context(), {Upload(grid.c), from}, {out, to}));
    ASSERT_OK(device().Synchronize(exact.context().stream()));
    const Grid resampled{to, Download(out, 3 * to.voxels())};
    int compared = 0;
    ForEachVoxel(to.size, [&](int x, int y, int z) {
      const Vec3d p = PointOf(to, x, y, z);
      // The new spline is defined at its inner nodes.
      if (!InDomain(to.size, {double(x), double(y), double(z)})) return;
      Vec3d index = PhysicalToIndex(from)(p);
      for (int a = 0; a < 3; ++a) {
        index[a] = from.size[a] == 1 ? 0 : std::clamp(index[a], 1.0, from.size[a] - 2.0);
      }
      const Vec3d expected = ReferenceU(grid, IndexToPhysical(from)(index)), u = ReferenceU(resampled, p);
      for (int k = 0; k < 3; ++k) ASSERT_NEAR(u[k], expected[k], 1e-5) << x << ' ' << y << ' ' << z;
      ++compared;
    });
    EXPECT_GT(compared, 10);
  }
}

// --- NiftyReg's regression data: what its own programs wrote ---

struct NiftiFile {
  Geometry geometry;
  int components = 1;
  // One component after the other.
  std::vector<float> values;
};

// Single 2-D files of uint8 or float32 whose qform turns them by half a turn about an axis, as these do; false when
// there is no such file.
bool ReadNiftiFile(const std::string& path, NiftiFile* file) {
  gzFile f = gzopen(path.c_str(), "rb");
  if (f == nullptr) return false;
  uint8_t header[352];
  bool ok = gzread(f, header, sizeof(header)) == sizeof(header);
  int16_t dim[8], datatype = 0, qform_code = 0;
  float pixdim[8], offset = 0, quaternion[3], origin[3];
  std::memcpy(dim, header + 40, sizeof(dim));
  std::memcpy(&datatype, header + 70, 2);
  std::memcpy(pixdim, header + 76, sizeof(pixdim));
  std::memcpy(&offset, header + 108, 4);
  std::memcpy(&qform_code, header + 252, 2);
  std::memcpy(quaternion, header + 256, sizeof(quaternion));
  std::memcpy(origin, header + 268, sizeof(origin));
  const double b = quaternion[0], c = quaternion[1], d = quaternion[2];
  EXPECT_TRUE(ok && (datatype == 2 || datatype == 16) && qform_code > 0 && b * b + c * c + d * d == 1) << path;
  const double turn[3] = {2 * b * b - 1, 2 * c * c - 1, (2 * d * d - 1) * (pixdim[0] < 0 ? -1 : 1)};
  Geometry& g = file->geometry;
  g.size = {dim[1], dim[2], 1};
  for (int a = 0; a < 3; ++a) {
    g.spacing[a] = pixdim[1 + a];
    // From RAS to LPS.
    const double sign = a < 2 ? -1 : 1;
    g.direction[a][a] = sign * turn[a];
    g.origin[a] = sign * origin[a];
  }
  file->components = dim[0] == 5 ? dim[5] : 1;
  const int64_t count = g.voxels() * file->components;
  gzseek(f, static_cast<z_off_t>(offset), SEEK_SET);
  std::vector<uint8_t> bytes(count * (datatype == 2 ? 1 : 4));
  ok = gzread(f, bytes.data(), static_cast<unsigned>(bytes.size())) == static_cast<int>(bytes.size());
  gzclose(f);
  EXPECT_TRUE(ok) << path;
  file->values.resize(count);
  if (datatype == 2) {
    std::copy(bytes.begin(), bytes.end(), file->values.begin());
  } else {
    std::memcpy(file->values.data(), bytes.data(), bytes.size());
  }
  return true;
}

// Positions in RAS as displacements in LPS, x y z interleaved.
std::vector<float> Displacements(const NiftiFile& positions) {
  const Geometry& g = positions.geometry;
  std::vector<float> d(3 * g.voxels());
  ForEachVoxel(g.size, [&](int x, int y, int z) {
    const int64_t i = Place(g.size, x, y, z);
    const Vec3d p = PointOf(g, x, y, z);
    for (int c = 0; c < 2; ++c) d[3 * i + c] = static_cast<float>(-positions.values[c * g.voxels() + i] - p[c]);
  });
  return d;
}

TEST_P(ControlGridTest, ReproducesNiftyRegsFieldAndWarpedImages) {
  const char* data = std::getenv("INTRAWARP_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "INTRAWARP_TEST_DATA is not set";
  const std::string folder = std::string(data) + "/reg2d/niftyreg_regtest/";
  NiftiFile points, field, image, linear, nearest;
  ASSERT_TRUE(ReadNiftiFile(folder + "test_CPP_BW_2D.nii", &points));
  ASSERT_TRUE(ReadNiftiFile(folder + "test_DEF_BW_2D.nii.gz", &field));
  ASSERT_TRUE(ReadNiftiFile(folder + "brainweb_2D.nii.gz", &image));
  ASSERT_TRUE(ReadNiftiFile(folder + "test_warped_BW_2D_LIN.nii.gz", &linear));
  ASSERT_TRUE(ReadNiftiFile(folder + "test_warped_BW_2D_NN.nii.gz", &nearest));

  const Geometry& g = field.geometry;
  const std::vector<float> ours = Evaluate({points.geometry, Displacements(points)}, g);
  const std::vector<float> theirs = Displacements(field);
  double largest = 0;
  ForEachVoxel(g.size, [&](int x, int y, int z) {
    const int64_t i = 3 * Place(g.size, x, y, z);
    for (int c = 0; c < 3; ++c) {
      ASSERT_NEAR(ours[i + c], theirs[i + c], 5e-4) << x << ' ' << y;
      largest = std::max<double>(largest, std::abs(ours[i + c]));
    }
  });
  EXPECT_GT(largest, 1);

  const float* moving = Upload(image.values);
  const float* displacement = Upload(ours);
  for (const auto& [interpolation, expected] :
       {std::pair{Interpolation::kLinear, &linear}, std::pair{Interpolation::kNearest, &nearest}}) {
    float* out = Poisoned<float>(g.voxels());
    ASSERT_OK(WarpField(ctx(), {moving, image.geometry}, {displacement, g}, interpolation, 0, {out, g}));
    const std::vector<float> warped = Download(out, g.voxels());
    int different = 0, compared = 0;
    ForEachVoxel(g.size, [&](int x, int y, int z) {
      const int64_t i = Place(g.size, x, y, z);
      const Vec3d source =
          PhysicalToIndex(image.geometry)(PointOf(g, x, y, z) + Vec3d{ours[3 * i], ours[3 * i + 1], 0});
      // Beyond the outermost centres theirs fades to 0, ours keeps the edge's value for half a voxel.
      if (!(source.x >= 0 && source.x <= image.geometry.size.x - 1 && source.y >= 0 &&
            source.y <= image.geometry.size.y - 1)) {
        return;
      }
      ++compared;
      // Theirs is rounded to whole numbers; on the border between two voxels, rounding decides which is nearest.
      different += std::abs(warped[i] - expected->values[i]) > 0.51;
    });
    EXPECT_GT(compared, g.voxels() * 9 / 10);
    EXPECT_LE(different, interpolation == Interpolation::kLinear ? 0 : g.voxels() / 1000);
  }
}

}  // namespace
}  // namespace intrawarp
