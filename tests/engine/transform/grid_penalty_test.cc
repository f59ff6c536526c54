// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/grid_penalty.h"

#include <cmath>
#include <functional>
#include <limits>

#include "hwy/targets.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

// The centred cubic B-spline and its derivatives, from the pieces of its definition.
double Spline(double x, int order) {
  const double s = x < 0 ? -1 : 1, a = std::abs(x);
  if (a >= 2) return 0;
  if (order == 0) return a < 1 ? 2.0 / 3 - a * a + a * a * a / 2 : (2 - a) * (2 - a) * (2 - a) / 6;
  if (order == 1) return s * (a < 1 ? -2 * a + 1.5 * a * a : -(2 - a) * (2 - a) / 2);
  return a < 1 ? -2 + 3 * a : 2 - a;
}

struct Quadrature {
  std::vector<double> points, weights;  // on [0, 1]
};
const Quadrature& TwoPoints() {
  static const Quadrature q{{0.5 - 0.5 / std::sqrt(3.0), 0.5 + 0.5 / std::sqrt(3.0)}, {0.5, 0.5}};
  return q;
}
const Quadrature& FivePoints() {
  static const Quadrature q = [] {
    const double a = std::sqrt(5 - 2 * std::sqrt(10.0 / 7)) / 3, b = std::sqrt(5 + 2 * std::sqrt(10.0 / 7)) / 3;
    const double wa = (322 + 13 * std::sqrt(70.0)) / 900, wb = (322 - 13 * std::sqrt(70.0)) / 900;
    Quadrature r{{-b, -a, 0, a, b}, {wb, wa, 128.0 / 225, wa, wb}};
    for (double& p : r.points) p = 0.5 + 0.5 * p;
    for (double& w : r.weights) w /= 2;
    return r;
  }();
  return q;
}

// First and second derivatives in LPS mm of u at a point: [component][direction].
struct Derivatives {
  double first[3][3] = {};
  double second[3][3][3] = {};
};

// The integrand at a point and its derivative by each derivative of u.
using Integrand = std::function<double(const Derivatives&, Derivatives*)>;

// Means over the domain by quadrature in float64, straight from the definitions.
struct Reference {
  Geometry geometry;
  std::vector<double> c;

  int Tiles(int a) const { return geometry.size[a] == 1 ? 1 : geometry.size[a] - 3; }

  // `gradient`, when given, is added to. Only tiles from `low` to `high`.
  double Sum(const Integrand& integrand, const Quadrature& q, std::vector<double>* gradient, Int3 low,
             Int3 high) const {
    const Int3 n = geometry.size;
    const AffineMap to_index = PhysicalToIndex(geometry);
    const int points = static_cast<int>(q.points.size());
    double sum = 0;
    for (int tz = low.z; tz < high.z; ++tz)
      for (int ty = low.y; ty < high.y; ++ty)
        for (int tx = low.x; tx < high.x; ++tx)
          for (int p = 0; p < points * points * points; ++p) {
            const int at[3] = {p % points, p / points % points, p / points / points}, tile[3] = {tx, ty, tz};
            double weight = 1.0 / Tiles(0) / Tiles(1) / Tiles(2), b[3][4][3];
            for (int a = 0; a < 3; ++a) {
              weight *= q.weights[at[a]];
              for (int k = 0; k < 4; ++k)
                for (int order = 0; order < 3; ++order) {
                  b[a][k][order] = n[a] > 1 ? Spline(1 + q.points[at[a]] - k, order) : k == 0 && order == 0;
                }
            }
            Derivatives d, by;
            ForSupport(tile, b, to_index, [&](int64_t node, const double(&first)[3], const double(&second)[3][3]) {
              for (int i = 0; i < 3; ++i)
                for (int r = 0; r < 3; ++r) {
                  d.first[i][r] += c[3 * node + i] * first[r];
                  for (int s = 0; s < 3; ++s) d.second[i][r][s] += c[3 * node + i] * second[r][s];
                }
            });
            sum += weight * integrand(d, &by);
            if (gradient == nullptr) continue;
            ForSupport(tile, b, to_index, [&](int64_t node, const double(&first)[3], const double(&second)[3][3]) {
              for (int i = 0; i < 3; ++i)
                for (int r = 0; r < 3; ++r) {
                  (*gradient)[3 * node + i] += weight * by.first[i][r] * first[r];
                  for (int s = 0; s < 3; ++s) (*gradient)[3 * node + i] += weight * by.second[i][r][s] * second[r][s];
                }
            });
          }
    return sum;
  }
  double Sum(const Integrand& integrand, const Quadrature& q, std::vector<double>* gradient = nullptr) const {
    return Sum(integrand, q, gradient, {0, 0, 0}, {Tiles(0), Tiles(1), Tiles(2)});
  }

  // body(node, its spline's first derivatives, its second derivatives), in LPS mm.
  template <typename Body>
  void ForSupport(const int (&tile)[3], const double (&b)[3][4][3], const AffineMap& to_index, const Body& body) const {
    const Int3 n = geometry.size;
    for (int k = 0; k < std::min(4, n.z); ++k)
      for (int j = 0; j < std::min(4, n.y); ++j)
        for (int i = 0; i < std::min(4, n.x); ++i) {
          const int o[3] = {i, j, k};
          double index1[3], index2[3][3], first[3] = {}, second[3][3] = {};
          for (int r = 0; r < 3; ++r) {
            index1[r] = 1;
            for (int a = 0; a < 3; ++a) index1[r] *= b[a][o[a]][a == r];
            for (int s = 0; s < 3; ++s) {
              index2[r][s] = 1;
              for (int a = 0; a < 3; ++a) index2[r][s] *= b[a][o[a]][(a == r) + (a == s)];
            }
          }
          for (int r = 0; r < 3; ++r)
            for (int e = 0; e < 3; ++e) {
              first[r] += to_index.m[e][r] * index1[e];
              for (int s = 0; s < 3; ++s)
                for (int f = 0; f < 3; ++f) second[r][s] += to_index.m[e][r] * to_index.m[f][s] * index2[e][f];
            }
          body((int64_t{tile[2] + k} * n.y + tile[1] + j) * n.x + tile[0] + i, first, second);
        }
  }
};

double Bending(const Derivatives& d, Derivatives* by) {
  double sum = 0;
  for (int i = 0; i < 3; ++i)
    for (int r = 0; r < 3; ++r)
      for (int s = 0; s < 3; ++s) {
        sum += d.second[i][r][s] * d.second[i][r][s];
        by->second[i][r][s] = 2 * d.second[i][r][s];
      }
  return sum;
}

double Elasticity(const Derivatives& d, Derivatives* by) {
  const double divergence = d.first[0][0] + d.first[1][1] + d.first[2][2];
  double sum = 0.5 * divergence * divergence;
  for (int r = 0; r < 3; ++r)
    for (int s = 0; s < 3; ++s) {
      const double e = 0.5 * (d.first[r][s] + d.first[s][r]);
      sum += e * e;
      by->first[r][s] = 2 * e + (r == s ? divergence : 0);
    }
  return sum;
}

double Folding(const Derivatives& d, Derivatives* by) {
  AffineMap m;
  for (int r = 0; r < 3; ++r)
    for (int s = 0; s < 3; ++s) m.m[r][s] = d.first[r][s] + (r == s);
  const double j = Determinant(m);
  if (j >= 0.5) return 0;
  const double at = std::max(j, 0.05), l = std::log(at / 0.5), slope = 2 * l / at;
  for (int r = 0; r < 3; ++r)
    for (int s = 0; s < 3; ++s) {
      const int r1 = (r + 1) % 3, r2 = (r + 2) % 3, s1 = (s + 1) % 3, s2 = (s + 2) % 3;
      by->first[r][s] = slope * (m.m[r1][s1] * m.m[r2][s2] - m.m[r1][s2] * m.m[r2][s1]);
    }
  return l * l + slope * (j - at);
}

enum class Penalty { kBending, kElasticity, kJacobian };
constexpr Penalty kPenalties[] = {Penalty::kBending, Penalty::kElasticity, Penalty::kJacobian};

constexpr double kUnit = 1.5;

struct Result {
  double value = 0;
  std::vector<double> gradient;
};

Integrand IntegrandOf(Penalty penalty) {
  return penalty == Penalty::kBending ? Bending : penalty == Penalty::kElasticity ? Elasticity : Folding;
}
double UnitFactor(Penalty penalty) { return penalty == Penalty::kBending ? kUnit * kUnit : 1; }
const Quadrature& QuadratureOf(Penalty penalty) { return penalty == Penalty::kJacobian ? TwoPoints() : FivePoints(); }

PenaltyWeights WeightOf(Penalty penalty, double weight) {
  PenaltyWeights w;
  (penalty == Penalty::kBending ? w.bending : penalty == Penalty::kElasticity ? w.elasticity : w.jacobian) = weight;
  return w;
}

Result Expected(const Geometry& g, const std::vector<float>& points, Penalty penalty, double weight) {
  Reference reference{g, {points.begin(), points.end()}};
  Result r;
  r.gradient.resize(points.size());
  r.value = weight * UnitFactor(penalty) * reference.Sum(IntegrandOf(penalty), QuadratureOf(penalty), &r.gradient);
  for (double& v : r.gradient) v *= weight * UnitFactor(penalty);
  return r;
}

double Largest(const std::vector<double>& values) {
  double m = 0;
  for (double v : values) m = std::max(m, std::abs(v));
  return m;
}

Geometry ControlGrid(Int3 size, bool left_handed = false) {
  Geometry g = ObliqueGeometry(size, left_handed);
  g.spacing = {6.5, 5.25, 4};
  return g;
}

// A displacement that is a function of the index of its control point.
template <typename Fn>
std::vector<float> Points(const Geometry& g, const Fn& fn) {
  std::vector<float> points;
  for (int z = 0; z < g.size.z; ++z)
    for (int y = 0; y < g.size.y; ++y)
      for (int x = 0; x < g.size.x; ++x) {
        const Vec3d u = fn(Vec3d{double(x), double(y), double(z)});
        for (int c = 0; c < 3; ++c) points.push_back(static_cast<float>(u[c]));
      }
  return points;
}

class GridPenaltyTest : public DeviceTest {
 protected:
  struct Output {
    double value;
    std::vector<float> gradient;
  };
  Output Run(const PenaltyWeights& weights, const Geometry& g, const std::vector<float>& points,
             const std::vector<float>& before, const int* skip = nullptr) {
    float* gradient = Upload(before);
    double* value = Poisoned<double>(1);
    EXPECT_OK(AddGridPenalties(ctx(), weights, kUnit, {Upload(points), g}, skip, gradient, value));
    return {Download(value, 1)[0], Download(gradient, before.size())};
  }

  // `weight` is such that gradients are neither tiny nor huge.
  void ExpectMatches(const Geometry& g, const std::vector<float>& points, Penalty penalty, double weight,
                     double tolerance) {
    const Result want = Expected(g, points, penalty, weight);
    ASSERT_GT(want.value, 0);
    const double largest = Largest(want.gradient);
    const std::vector<float> before = RandomFloats(points.size(), 99, -largest, largest);
    const Output got = Run(WeightOf(penalty, weight), g, points, before);
    EXPECT_NEAR(got.value, want.value, tolerance * std::abs(want.value));
    for (size_t i = 0; i < before.size(); ++i) {
      ASSERT_NEAR(got.gradient[i] - before[i], want.gradient[i], (tolerance + 1e-6) * largest) << i;
    }
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(GridPenaltyTest);

TEST(GridPenaltyReference, GradientIsThatOfTheValue) {
  const Geometry g = ControlGrid({6, 5, 7}, true);
  const std::vector<float> points = RandomFloats(3 * g.voxels(), 5, -15, 15);
  for (Penalty penalty : kPenalties) {
    const Result r = Expected(g, points, penalty, 1);
    Reference reference{g, {points.begin(), points.end()}};
    for (size_t i = 0; i < points.size(); i += 13) {
      const double step = 1e-4;
      double sides[2];
      for (int s = 0; s < 2; ++s) {
        reference.c[i] = points[i] + (s == 0 ? -step : step);
        sides[s] = UnitFactor(penalty) * reference.Sum(IntegrandOf(penalty), QuadratureOf(penalty));
      }
      reference.c[i] = points[i];
      EXPECT_NEAR((sides[1] - sides[0]) / (2 * step), r.gradient[i], 1e-5 * Largest(r.gradient)) << i;
    }
    EXPECT_GT(r.value, 0);
  }
}

TEST_P(GridPenaltyTest, MatchesQuadratureOfRandomGrids) {
  const Int3 sizes[] = {{4, 4, 4}, {5, 4, 6},   {7, 8, 9}, {16, 8, 4}, {17, 9, 5}, {23, 6, 13},
                        {4, 4, 1}, {15, 19, 1}, {1, 6, 5}, {6, 1, 5},  {1, 1, 9},  {33, 5, 4}};
  uint32_t seed = 0;
  for (Int3 size : sizes) {
    const Geometry g = ControlGrid(size, ++seed % 2 == 0);
    SCOPED_TRACE(SizeString(g));
    for (Penalty penalty : kPenalties) {
      SCOPED_TRACE(static_cast<int>(penalty));
      ExpectMatches(g, RandomFloats(3 * g.voxels(), seed, -15, 15), penalty, static_cast<double>(g.voxels()), 1e-5);
    }
  }
}

TEST_P(GridPenaltyTest, MatchesOnEveryInstructionSet) {
  if (ctx().is_cuda()) GTEST_SKIP() << "only for the CPU";
  const Geometry g = ControlGrid({23, 6, 13}, true);
  for (int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(hwy::TargetName(rest & -rest));
    for (Penalty penalty : kPenalties) {
      ExpectMatches(g, RandomFloats(3 * g.voxels(), 8, -15, 15), penalty, static_cast<double>(g.voxels()), 1e-5);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST_P(GridPenaltyTest, LongRunsMatchToo) {
  // More control points than one kernel takes in short runs; a field that is 0 but for some places, so that the
  // reference is needed there alone.
  const Geometry g = ControlGrid({83, 61, 35});
  const Int3 places[] = {{0, 0, 0}, {40, 30, 12}, {82, 60, 34}, {47, 8, 23}};
  std::vector<float> points(3 * g.voxels());
  std::vector<double> want_gradient(points.size());
  for (Penalty penalty : {Penalty::kBending, Penalty::kElasticity}) {
    std::fill(points.begin(), points.end(), 0.0f);
    std::fill(want_gradient.begin(), want_gradient.end(), 0.0);
    for (Int3 p : places) points[3 * ((int64_t{p.z} * g.size.y + p.y) * g.size.x + p.x) + 1] = 3;
    const Reference reference{g, {points.begin(), points.end()}};
    double want = 0;
    for (Int3 p : places) {
      const auto low = [&](int a) { return std::max(0, p[a] - 3); };
      const auto high = [&](int a) { return std::min(reference.Tiles(a), p[a] + 1); };
      want += reference.Sum(IntegrandOf(penalty), FivePoints(), &want_gradient, {low(0), low(1), low(2)},
                            {high(0), high(1), high(2)});
    }
    const double factor = static_cast<double>(g.voxels()) * UnitFactor(penalty);
    const Output got =
        Run(WeightOf(penalty, static_cast<double>(g.voxels())), g, points, std::vector<float>(points.size()));
    EXPECT_NEAR(got.value, factor * want, 1e-5 * factor * want);
    const double largest = factor * Largest(want_gradient);
    for (size_t i = 0; i < points.size(); ++i) {
      ASSERT_NEAR(got.gradient[i], factor * want_gradient[i], 1e-5 * largest) << i;
    }
  }
}

// A large smooth displacement on top of a larger shift: what cancels must not leave its rounding.
TEST_P(GridPenaltyTest, SmoothFieldsStayPrecise) {
  const Geometry g = ControlGrid({27, 15, 11});
  const std::vector<float> points = Points(g, [](Vec3d i) {
    return Vec3d{70 + 12 * std::sin(0.1 * i.x + 0.05 * i.y), -40 + 9 * std::cos(0.08 * i.y - 0.1 * i.z),
                 30 + 10 * std::sin(0.07 * i.x - 0.09 * i.z)};
  });
  ExpectMatches(g, points, Penalty::kBending, 1e4, 1e-3);
  ExpectMatches(g, points, Penalty::kElasticity, 1e4, 1e-4);
}

TEST_P(GridPenaltyTest, AffineFieldsDoNotBendAndRotationsDoNotStrain) {
  const Geometry g = ControlGrid({19, 11, 8}, true);
  const AffineMap to_point = IndexToPhysical(g);
  const std::vector<float> zero(3 * g.voxels());
  const auto check = [&](const AffineMap& affine, Penalty penalty) {
    const Output got =
        Run(WeightOf(penalty, 1), g, Points(g, [&](Vec3d i) { return affine.Linear(to_point(i)); }), zero);
    EXPECT_NEAR(got.value, 0, 1e-6);
    for (float v : got.gradient) ASSERT_NEAR(v, 0, 1e-7);
  };
  AffineMap affine;
  const double m[3][3] = {{0.1, -0.05, 0.02}, {0.07, -0.1, 0.04}, {0.03, 0.02, 0.09}};
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 3; ++c) affine.m[r][c] = m[r][c];
  check(affine, Penalty::kBending);
  AffineMap rotation;
  const double w[3][3] = {{0, -0.1, 0.05}, {0.1, 0, 0.03}, {-0.05, -0.03, 0}};
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 3; ++c) rotation.m[r][c] = w[r][c];
  check(rotation, Penalty::kElasticity);
  // The strain of what is not a rotation is known: e = sym(m), everywhere.
  const Output got =
      Run(WeightOf(Penalty::kElasticity, 1), g, Points(g, [&](Vec3d i) { return affine.Linear(to_point(i)); }), zero);
  double want = 0.5 * (0.1 - 0.1 + 0.09) * (0.1 - 0.1 + 0.09);
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 3; ++c) want += 0.25 * (m[r][c] + m[c][r]) * (m[r][c] + m[c][r]);
  EXPECT_NEAR(got.value, want, 1e-5 * want);
}

// Folds at single control points of a field that is harmless elsewhere, wherever they lie in the pieces of the work.
TEST_P(GridPenaltyTest, FindsEveryFold) {
  const Geometry g = ControlGrid({29, 18, 13}, true);
  const std::vector<float> smooth = Points(g, [](Vec3d i) {
    return Vec3d{8 * std::sin(0.25 * i.x), 6 * std::cos(0.2 * i.y + 1), 0.4 * i.z};
  });
  const Int3 places[] = {{0, 0, 0}, {28, 17, 12}, {3, 4, 4},   {7, 7, 3},
                         {8, 8, 4}, {18, 10, 8},  {15, 16, 7}, {27, 2, 11}};
  for (Int3 p : places) {
    SCOPED_TRACE(testing::Message() << p.x << " " << p.y << " " << p.z);
    std::vector<float> points = smooth;
    float* c = &points[3 * ((int64_t{p.z} * g.size.y + p.y) * g.size.x + p.x)];
    // Towards the middle; the outermost control points weigh little inside the domain.
    const double size = p.x == 0 || p.x == g.size.x - 1 ? 150 : 10;
    const auto inward = [&](int a) { return 2 * p[a] < g.size[a] ? size : -size; };
    const Vec3d shift = IndexToPhysical(g).Linear({inward(0), inward(1), inward(2)});
    for (int i = 0; i < 3; ++i) c[i] += static_cast<float>(shift[i]);
    ExpectMatches(g, points, Penalty::kJacobian, static_cast<double>(g.voxels()), 2e-5);
  }
}

TEST_P(GridPenaltyTest, JacobianCostsNothingWhileVolumeShrinksByLessThanHalf) {
  const Geometry g = ControlGrid({19, 18, 17});
  const AffineMap to_point = IndexToPhysical(g);
  const std::vector<float> before = RandomFloats(3 * g.voxels(), 8, -1, 1);
  const auto run = [&](double scale) {
    return Run(WeightOf(Penalty::kJacobian, 1e3), g, Points(g, [&](Vec3d i) { return (scale - 1) * to_point(i); }),
               before);
  };
  for (double scale : {3.0, 1.0, 0.8}) {
    const Output got = run(scale);
    EXPECT_EQ(got.value, 0);
    EXPECT_EQ(got.gradient, before);
  }
  const double j = 0.75 * 0.75 * 0.75, l = std::log(j / 0.5);
  EXPECT_NEAR(run(0.75).value, 1e3 * l * l, 1e-4 * 1e3 * l * l);
  EXPECT_NE(run(0.75).gradient, before);
}

TEST_P(GridPenaltyTest, FoldedSpaceStillHasASlope) {
  // det(I + grad u) = -1 everywhere: on the tangent at 0.05.
  const Geometry g = ControlGrid({9, 9, 9});
  const AffineMap to_point = IndexToPhysical(g);
  const std::vector<float> points = Points(g, [&](Vec3d i) { return Vec3d{-2 * to_point(i).x, 0, 0}; });
  const Output got = Run(WeightOf(Penalty::kJacobian, 1), g, points, std::vector<float>(points.size()));
  const double l = std::log(0.1);
  EXPECT_NEAR(got.value, l * l + 2 * l / 0.05 * (-1 - 0.05), 1e-3);
  EXPECT_GT(Largest({got.gradient.begin(), got.gradient.end()}), 1e-3);
}

TEST_P(GridPenaltyTest, SumsWhatIsAsked) {
  const Geometry g = ControlGrid({12, 10, 9});
  const std::vector<float> points = RandomFloats(3 * g.voxels(), 3, -15, 15), zero(points.size());
  Output sum{0, zero};
  for (Penalty penalty : kPenalties) {
    const Output one = Run(WeightOf(penalty, 2.5), g, points, zero);
    sum.value += one.value;
    for (size_t i = 0; i < zero.size(); ++i) sum.gradient[i] += one.gradient[i];
  }
  const Output all = Run({2.5, 2.5, 2.5}, g, points, zero);
  EXPECT_NEAR(all.value, sum.value, 1e-9 * sum.value);
  const double largest = Largest({sum.gradient.begin(), sum.gradient.end()});
  for (size_t i = 0; i < zero.size(); ++i) ASSERT_NEAR(all.gradient[i], sum.gradient[i], 1e-6 * largest);
}

TEST_P(GridPenaltyTest, WeightsOfZeroCostNothing) {
  const Geometry g = ControlGrid({6, 5, 4});
  const std::vector<float> points = RandomFloats(3 * g.voxels(), 3, -50, 50),
                           before = RandomFloats(3 * g.voxels(), 4, -1, 1);
  const Output got = Run({}, g, points, before);
  EXPECT_EQ(got.value, 0);
  EXPECT_EQ(got.gradient, before);
}

TEST_P(GridPenaltyTest, SkipLeavesEverythingAsItWas) {
  const Geometry g = ControlGrid({9, 8, 7});
  const std::vector<float> points = RandomFloats(3 * g.voxels(), 3, -50, 50),
                           before = RandomFloats(3 * g.voxels(), 4, -1, 1);
  const Output skipped = Run({1, 1, 1}, g, points, before, Upload(std::vector<int>{3}));
  EXPECT_TRUE(std::isnan(skipped.value));  // still poisoned
  EXPECT_EQ(skipped.gradient, before);
  const Output done = Run({1, 1, 1}, g, points, before, Upload(std::vector<int>{0}));
  EXPECT_GT(done.value, 0);
  EXPECT_NE(done.gradient, before);
}

TEST_P(GridPenaltyTest, RunsAreBitIdentical) {
  const Geometry g = ControlGrid({41, 29, 23});
  const std::vector<float> points = RandomFloats(3 * g.voxels(), 3, -15, 15), zero(points.size());
  const Output first = Run({1, 2, 3}, g, points, zero), second = Run({1, 2, 3}, g, points, zero);
  EXPECT_EQ(first.value, second.value);
  EXPECT_EQ(first.gradient, second.gradient);
}

TEST_P(GridPenaltyTest, WhatIsNotANumberShows) {
  const Geometry g = ControlGrid({12, 10, 9});
  for (float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    std::vector<float> points(3 * g.voxels());
    points[3 * ((4 * 10 + 5) * 12 + 6) + 1] = bad;
    for (Penalty penalty : kPenalties) {
      EXPECT_FALSE(std::isfinite(Run(WeightOf(penalty, 1), g, points, std::vector<float>(points.size())).value));
    }
  }
}

TEST_P(GridPenaltyTest, RefusesWhatHasNoMeaning) {
  const double nan = std::nan("");
  const auto status = [&](Int3 size, PenaltyWeights weights, double unit) {
    return AddGridPenalties(ctx(), weights, unit, {nullptr, ControlGrid(size)}, nullptr, nullptr, nullptr);
  };
  const auto expect = [](const absl::Status& s, const char* begin) {
    EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(s.message()), testing::StartsWith(begin));
  };
  expect(status({6, 3, 6}, {1, 0, 0}, 1), "grid: ");
  expect(status({2, 5, 6}, {1, 0, 0}, 1), "grid: ");
  expect(status({6, 6, 6}, {nan, 0, 0}, 1), "bending_weight: ");
  expect(status({6, 6, 6}, {0, -1, 0}, 1), "elasticity_weight: ");
  expect(status({6, 6, 6}, {0, 0, 1 / 0.0}, 1), "jacobian_weight: ");
  expect(status({6, 6, 6}, {1, 0, 0}, 0), "unit: ");
  expect(status({6, 6, 6}, {1, 0, 0}, nan), "unit: ");
}

}  // namespace
}  // namespace intrawarp
