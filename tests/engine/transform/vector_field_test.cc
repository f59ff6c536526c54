// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/vector_field.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "hwy/highway.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

size_t Floats(Int3 size) { return size_t{3} * size.x * size.y * size.z; }

// A field in float64 with the plain definitions of the operators.
class Reference {
 public:
  Reference(Int3 size, const std::vector<float>& values) : size_(size), values_(values.begin(), values.end()) {}
  explicit Reference(Int3 size) : size_(size), values_(Floats(size)) {}

  double& At(Int3 i, int c) { return values_[3 * ((size_t(i.z) * size_.y + i.y) * size_.x + i.x) + c]; }
  double At(Int3 i, int c) const { return const_cast<Reference*>(this)->At(i, c); }
  const std::vector<double>& values() const { return values_; }

  Vec3d Sample(Vec3d p) const {
    Vec3d sum;
    int low[3];
    double w[3];
    for (int a = 0; a < 3; ++a) {
      p[a] = std::clamp(p[a], 0.0, size_[a] - 1.0);
      low[a] = std::min(static_cast<int>(p[a]), std::max(size_[a] - 2, 0));
      w[a] = p[a] - low[a];
    }
    for (int k = 0; k < 8; ++k) {
      const int b[3] = {k & 1, k >> 1 & 1, k >> 2};
      double weight = 1;
      Int3 at;
      for (int a = 0; a < 3; ++a) {
        weight *= b[a] ? w[a] : 1 - w[a];
        at[a] = std::min(low[a] + b[a], size_[a] - 1);
      }
      for (int c = 0; c < 3; ++c) sum[c] += weight * At(at, c);
    }
    return sum;
  }

  template <typename Body>
  void ForEach(const Body& body) const {
    for (int z = 0; z < size_.z; ++z)
      for (int y = 0; y < size_.y; ++y)
        for (int x = 0; x < size_.x; ++x) body(Int3{x, y, z});
  }

  Reference Smooth(int axis, double sigma) const {
    Reference out(size_);
    const int r = static_cast<int>(std::ceil(3 * sigma));
    ForEach([&](Int3 i) {
      double weights = 0, sums[3] = {};
      for (int k = -r; k <= r; ++k) {
        Int3 j = i;
        j[axis] += k;
        if (j[axis] < 0 || j[axis] >= size_[axis]) continue;
        const double w = std::exp(-0.5 * k * k / (sigma * sigma));
        weights += w;
        for (int c = 0; c < 3; ++c) sums[c] += w * At(j, c);
      }
      for (int c = 0; c < 3; ++c) out.At(i, c) = sums[c] / weights;
    });
    return out;
  }

  // d/d axis of component c.
  double Difference(Int3 i, int axis, int c) const {
    Int3 low = i, high = i;
    low[axis] = std::max(i[axis] - 1, 0);
    high[axis] = std::min(i[axis] + 1, size_[axis] - 1);
    return high[axis] == low[axis] ? 0 : (At(high, c) - At(low, c)) / (high[axis] - low[axis]);
  }

  Vec3d Vector(Int3 i) const { return {At(i, 0), At(i, 1), At(i, 2)}; }
  void Set(Int3 i, Vec3d v) {
    for (int c = 0; c < 3; ++c) At(i, c) = v[c];
  }

 private:
  Int3 size_;
  std::vector<double> values_;
};

Vec3d ToVec3d(Int3 i) { return {double(i.x), double(i.y), double(i.z)}; }

double LargestDifference(const std::vector<float>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (!(d <= largest)) largest = d;  // NaN stays
  }
  return largest;
}

// Smooth and periodic enough to be far from folding: amplitude in voxels.
std::vector<float> SmoothField(Int3 size, double amplitude, double wavelength) {
  std::vector<float> f;
  const double k = 2 * M_PI / wavelength;
  for (int z = 0; z < size.z; ++z)
    for (int y = 0; y < size.y; ++y)
      for (int x = 0; x < size.x; ++x) {
        f.push_back(amplitude * std::sin(k * y + 0.3) * std::cos(k * z));
        f.push_back(amplitude * std::cos(k * x - 0.2));
        f.push_back(size.z == 1 ? 0 : amplitude * std::sin(k * x + k * y));
      }
  return f;
}

const Int3 kSizes[] = {{1, 1, 1},  {1, 5, 1},  {7, 1, 1},   {1, 1, 9},   {5, 4, 3},    {33, 17, 1},
                       {31, 9, 8}, {32, 8, 9}, {129, 5, 3}, {65, 66, 7}, {20, 21, 70}, {17, 40, 19}};

class VectorFieldTest : public DeviceTest {
 protected:
  void CheckComposition() {
    for (const Int3 size : kSizes) {
      // Far enough to leave the grid.
      const std::vector<float> inner = RandomFloats(Floats(size), 4, -6, 6),
                               outer = RandomFloats(Floats(size), 5, -2, 2);
      const Reference a(size, inner), b(size, outer);
      Reference expected(size);
      a.ForEach([&](Int3 i) { expected.Set(i, a.Vector(i) + b.Sample(ToVec3d(i) + a.Vector(i))); });
      float* out = Poisoned<float>(Floats(size));
      ASSERT_OK(ComposeVectorFields(ctx(), Upload(inner), Upload(outer), size, out));
      EXPECT_LT(LargestDifference(Download(out, Floats(size)), expected.values()), 6e-5)
          << size.x << "x" << size.y << "x" << size.z;
    }
  }

  void CheckSmoothing() {
    for (const Int3 size : kSizes) {
      for (const Vec3d sigma : {Vec3d{2, 2, 2}, Vec3d{1, 1, 0}, Vec3d{1.5, 0, 0}, Vec3d{0, 0, 0}}) {
        const std::vector<float> in = RandomFloats(Floats(size), 2, -2, 2), add = RandomFloats(Floats(size), 3, -5, 5);
        Reference expected(size, in);
        for (int a = 0; a < 3; ++a)
          if (sigma[a] > 0) expected = expected.Smooth(a, sigma[a]);
        std::vector<double> sum = expected.values();
        double largest = 0;
        for (size_t i = 0; i < sum.size(); ++i) largest = std::max(largest, std::abs(sum[i] += add[i]));
        float* io = Upload(in);
        float* found = Poisoned<float>(1);
        ASSERT_OK(SmoothVectorField(ctx(), io, size, sigma, io, Upload(add), found));
        EXPECT_LT(LargestDifference(Download(io, sum.size()), sum), 3e-6);
        EXPECT_NEAR(Download(found, 1)[0], largest, 3e-6);
      }
    }
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(VectorFieldTest);

TEST_P(VectorFieldTest, SmoothingIsTheGaussianNormalisedAtTheFaces) {
  for (const Int3 size : kSizes) {
    // Unrolled radii up to 12, and beyond.
    for (const Vec3d sigma : {Vec3d{1, 2, 3}, Vec3d{3, 0.5, 2}, Vec3d{2, 4, 1}, Vec3d{4.5, 3, 6}, Vec3d{0, 1.2, 0}}) {
      const std::vector<float> in = RandomFloats(Floats(size), 1, -2, 2);
      Reference expected(size, in);
      for (int a = 0; a < 3; ++a)
        if (sigma[a] > 0) expected = expected.Smooth(a, sigma[a]);
      float* out = Poisoned<float>(Floats(size));
      ASSERT_OK(SmoothVectorField(ctx(), Upload(in), size, sigma, out));
      EXPECT_LT(LargestDifference(Download(out, Floats(size)), expected.values()), 2e-6)
          << size.x << "x" << size.y << "x" << size.z << " sigma " << sigma.x << " " << sigma.y << " " << sigma.z;
    }
  }
}

TEST_P(VectorFieldTest, SmoothingInPlaceAddsAndFindsTheLargest) { CheckSmoothing(); }

TEST_P(VectorFieldTest, CompositionSamplesTheOuterFieldLinearly) { CheckComposition(); }

// Every instruction set that this processor has.
TEST_P(VectorFieldTest, MatchesTheReferenceOnEveryVectorTarget) {
  if (ctx().is_cuda()) GTEST_SKIP() << "only for the CPU";
  const int64_t supported = hwy::SupportedTargets();
  for (int64_t rest = supported; rest != 0; rest &= rest - 1) {
    SCOPED_TRACE(hwy::TargetName(rest & -rest));
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    CheckComposition();
    CheckSmoothing();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST_P(VectorFieldTest, ExponentialIsScalingAndSquaring) {
  for (const Int3 size : kSizes) {
    for (const double amplitude : {0.2, 0.7, 3.0, 6.0}) {
      for (const float factor : {1.0f, -1.0f}) {
        const std::vector<float> velocity = SmoothField(size, amplitude, 30);
        float* v = Upload(velocity);
        float* largest = Poisoned<float>(1);
        ASSERT_OK(LargestComponent(ctx(), v, size, largest));
        float peak = 0;
        for (float x : velocity) peak = std::max(peak, std::abs(x));
        ASSERT_EQ(Download(largest, 1)[0], peak);
        int n = 0;
        while (n < 6 && std::ldexp(peak, -n) > kExponentialStep) ++n;
        const double h = std::ldexp(factor, -n);
        const Reference w(size, velocity);
        Reference s(size);
        w.ForEach([&](Int3 i) { s.Set(i, h * w.Sample(ToVec3d(i) + 0.5 * h * w.Vector(i))); });
        for (int k = 0; k < n; ++k) {
          const Reference from = s;
          s.ForEach([&](Int3 i) { s.Set(i, from.Vector(i) + from.Sample(ToVec3d(i) + from.Vector(i))); });
        }
        float* out = Poisoned<float>(Floats(size));
        ASSERT_OK(ExponentiateVectorField(ctx(), v, size, factor, largest, 6, out));
        EXPECT_LT(LargestDifference(Download(out, Floats(size)), s.values()), 2e-4) << amplitude;
      }
    }
  }
}

// The flow of a constant velocity is a shift by it, and its exponential of any length is exact.
TEST_P(VectorFieldTest, ExponentialOfAConstantIsItself) {
  const Int3 size{19, 18, 17};
  std::vector<float> velocity;
  for (size_t i = 0; i < Floats(size) / 3; ++i) velocity.insert(velocity.end(), {3.25f, -7.5f, 0.125f});
  float* v = Upload(velocity);
  float* largest = Poisoned<float>(1);
  ASSERT_OK(LargestComponent(ctx(), v, size, largest));
  float* out = Poisoned<float>(Floats(size));
  ASSERT_OK(ExponentiateVectorField(ctx(), v, size, -1, largest, kMaxSquarings, out));
  const std::vector<float> got = Download(out, Floats(size));
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], -velocity[i], 1e-5);
}

// What it is for: exp(-v) after exp(v) is the identity to 0.05 voxel in the mean, for motion of many voxels.
TEST_P(VectorFieldTest, ForwardAndInverseExponentialsCancel) {
  const Int3 size{64, 60, 56};
  for (const double amplitude : {1.0, 4.0, 10.0}) {
    const std::vector<float> velocity = SmoothField(size, amplitude, 50);
    float* v = Upload(velocity);
    float* largest = Poisoned<float>(1);
    ASSERT_OK(LargestComponent(ctx(), v, size, largest));
    float *forward = Poisoned<float>(Floats(size)), *inverse = Poisoned<float>(Floats(size)),
          *round = Poisoned<float>(Floats(size));
    ASSERT_OK(ExponentiateVectorField(ctx(), v, size, 1, largest, kMaxSquarings, forward));
    ASSERT_OK(ExponentiateVectorField(ctx(), v, size, -1, largest, kMaxSquarings, inverse));
    ASSERT_OK(ComposeVectorFields(ctx(), forward, inverse, size, round));
    const std::vector<float> got = Download(round, Floats(size));
    double sum = 0, worst = 0;
    int count = 0;
    const int margin = 16;
    for (int z = margin; z < size.z - margin; ++z)
      for (int y = margin; y < size.y - margin; ++y)
        for (int x = margin; x < size.x - margin; ++x, ++count) {
          const float* r = &got[3 * ((size_t(z) * size.y + y) * size.x + x)];
          const double d = std::sqrt(r[0] * r[0] + r[1] * r[1] + r[2] * r[2]);
          sum += d;
          worst = std::max(worst, d);
        }
    EXPECT_LT(sum / count, 0.05) << amplitude;
    EXPECT_LT(worst, 0.3) << amplitude;
    RecordProperty("mean_" + std::to_string(int(amplitude)), std::to_string(sum / count));
    RecordProperty("max_" + std::to_string(int(amplitude)), std::to_string(worst));
  }
}

TEST_P(VectorFieldTest, BchUpdateAddsHalfTheBracket) {
  for (const Int3 size : kSizes) {
    const std::vector<float> first = RandomFloats(Floats(size), 6, -1, 1),
                             second = RandomFloats(Floats(size), 7, -1, 1);
    const Reference v(size, first), u(size, second);
    Reference expected(size);
    v.ForEach([&](Int3 i) {
      for (int c = 0; c < 3; ++c) {
        double bracket = 0;
        for (int a = 0; a < 3; ++a) {
          bracket += v.Difference(i, a, c) * u.At(i, a) - u.Difference(i, a, c) * v.At(i, a);
        }
        expected.At(i, c) = v.At(i, c) + u.At(i, c) + 0.5 * bracket;
      }
    });
    float* out = Poisoned<float>(Floats(size));
    ASSERT_OK(BchUpdate(ctx(), Upload(first), Upload(second), size, out));
    EXPECT_LT(LargestDifference(Download(out, Floats(size)), expected.values()), 1e-5);
  }
}

// exp(BCH(v, u)) is closer to exp(v) after exp(u) than exp(v + u) is: the bracket has the right sign.
TEST_P(VectorFieldTest, BchUpdateIsTheLogarithmOfTheComposition) {
  const Int3 size{48, 48, 40};
  const std::vector<float> first = SmoothField(size, 2, 40);
  std::vector<float> second = SmoothField(size, 1.5, 60);
  for (size_t i = 0; i < second.size(); i += 3) std::swap(second[i], second[i + 1]);
  float *v = Upload(first), *u = Upload(second), *w = Poisoned<float>(Floats(size));
  float* largest = Upload(std::vector<float>{4});
  const auto exponential = [&](const float* field) {
    float* out = Poisoned<float>(Floats(size));
    EXPECT_OK(ExponentiateVectorField(ctx(), field, size, 1, largest, kMaxSquarings, out));
    return out;
  };
  float* composed = Poisoned<float>(Floats(size));
  ASSERT_OK(ComposeVectorFields(ctx(), exponential(u), exponential(v), size, composed));
  ASSERT_OK(BchUpdate(ctx(), v, u, size, w));
  std::vector<float> sum = first;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += second[i];
  const std::vector<float> truth = Download(composed, Floats(size)), bch = Download(exponential(w), Floats(size)),
                           plain = Download(exponential(Upload(sum)), Floats(size));
  double bch_error = 0, plain_error = 0;
  for (int z = 8; z < 32; ++z)
    for (int y = 8; y < 40; ++y)
      for (int i = 3 * (48 * (48 * z + y) + 8); i < 3 * (48 * (48 * z + y) + 40); ++i) {
        bch_error += std::abs(bch[i] - truth[i]);
        plain_error += std::abs(plain[i] - truth[i]);
      }
  EXPECT_LT(bch_error, 0.5 * plain_error);
}

TEST_P(VectorFieldTest, HarmonicEnergyIsTheMeanSquaredGradient) {
  for (const Int3 size : kSizes) {
    const std::vector<float> field = RandomFloats(Floats(size), 8, -1, 1);
    const Reference f(size, field);
    double sum = 0;
    f.ForEach([&](Int3 i) {
      for (int a = 0; a < 3; ++a)
        for (int c = 0; c < 3; ++c) sum += f.Difference(i, a, c) * f.Difference(i, a, c);
    });
    const double expected = sum / (Floats(size) / 3);
    double* energy = Poisoned<double>(1);
    ASSERT_OK(HarmonicEnergy(ctx(), Upload(field), size, energy));
    EXPECT_NEAR(Download(energy, 1)[0], expected, 1e-6 * (1 + expected));
  }
}

TEST_P(VectorFieldTest, ResamplingKeepsTheDomain) {
  const std::pair<Int3, Int3> pairs[] = {
      {{8, 9, 10}, {16, 19, 20}}, {{16, 19, 20}, {8, 9, 10}}, {{5, 6, 1}, {11, 12, 1}}, {{1, 1, 1}, {3, 4, 5}}};
  for (const auto& [from, to] : pairs) {
    const std::vector<float> field = RandomFloats(Floats(from), 9, -1, 1);
    const Reference in(from, field);
    Reference expected(to);
    expected.ForEach([&](Int3 i) {
      Vec3d p;
      for (int a = 0; a < 3; ++a) p[a] = (i[a] + 0.5) * from[a] / to[a] - 0.5;
      Vec3d v = in.Sample(p);
      for (int a = 0; a < 3; ++a) v[a] *= double(to[a]) / from[a];
      expected.Set(i, v);
    });
    float* out = Poisoned<float>(Floats(to));
    ASSERT_OK(ResampleVectorField(ctx(), Upload(field), from, out, to));
    EXPECT_LT(LargestDifference(Download(out, Floats(to)), expected.values()), 1e-5);
  }
}

TEST_P(VectorFieldTest, VectorsAreMappedLinearly) {
  const Int3 size{13, 7, 5};
  const std::vector<float> field = RandomFloats(Floats(size), 12, -1, 1);
  const AffineMap map = IndexToPhysical(ObliqueGeometry(size, true));
  float* io = Upload(field);
  ASSERT_OK(MapVectors(ctx(), map.Cast<float>(), size, io));
  const std::vector<float> got = Download(io, Floats(size));
  for (size_t i = 0; i < got.size(); i += 3) {
    const Vec3d expected = map.Linear({field[i], field[i + 1], field[i + 2]});
    for (int c = 0; c < 3; ++c) ASSERT_NEAR(got[i + c], expected[c], 1e-5);
  }
}

TEST_P(VectorFieldTest, NothingIsWrittenOnceSkipped) {
  const Int3 size{9, 8, 7};
  const size_t n = Floats(size);
  const int* skip = Upload(std::vector<int>{1});
  const std::vector<float> before = RandomFloats(n, 10);
  float *in = Upload(RandomFloats(n, 11)), *out = Upload(before), *one = Upload(std::vector<float>{5});
  double* energy = Upload(std::vector<double>{6});
  ASSERT_OK(SmoothVectorField(ctx(), in, size, {1, 1, 1}, out, nullptr, one, skip));
  ASSERT_OK(ComposeVectorFields(ctx(), in, in, size, out, skip));
  ASSERT_OK(ExponentiateVectorField(ctx(), in, size, 1, one, 3, out, skip));
  ASSERT_OK(BchUpdate(ctx(), in, in, size, out, skip));
  ASSERT_OK(LargestComponent(ctx(), in, size, one, skip));
  ASSERT_OK(HarmonicEnergy(ctx(), in, size, energy, skip));
  EXPECT_EQ(Download(out, n), before);
  EXPECT_EQ(Download(one, 1)[0], 5);
  EXPECT_EQ(Download(energy, 1)[0], 6);
}

TEST_P(VectorFieldTest, RefusesWhatIsOutOfRange) {
  float* p = Poisoned<float>(12);
  EXPECT_EQ(SmoothVectorField(ctx(), p, {2, 2, 1}, {65, 0, 0}, p).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SmoothVectorField(ctx(), p, {2, 2, 1}, {-1, 0, 0}, p).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ComposeVectorFields(ctx(), p, p, {0, 1, 1}, p).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ComposeVectorFields(ctx(), p, p, {16384, 16384, 16384}, p).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ExponentiateVectorField(ctx(), p, {1, 1, 1}, 1, p, kMaxSquarings + 1, p).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace intrawarp
