// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "engine/metric/lncc.h"
#include "engine/metric/ngf.h"
#include "tests/engine/device_test.h"
#include "tests/engine/metric/lncc_window.h"

namespace intrawarp {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Where each size lies about the edges of tiles (64 x 64 x 16, 128 x 64 x 16, 30 x 14), and axes of 1, 2 and 3 voxels.
constexpr Int3 kSizes[] = {{1, 1, 1},    {2, 2, 2},   {3, 3, 3},    {1, 20, 30},  {20, 1, 30},
                           {40, 33, 1},  {300, 1, 1}, {1, 1, 50},   {3, 2, 17},   {31, 15, 16},
                           {33, 32, 17}, {64, 65, 5}, {29, 34, 47}, {150, 20, 9}, {129, 67, 18}};

struct Result {
  double value = 0, samples = 0;
  std::vector<double> voxel_gradient;

  double Largest() const {
    double largest = 0;
    for (double r : voxel_gradient) largest = std::max(largest, std::abs(r));
    return largest;
  }
};

struct Images {
  Int3 size;
  std::vector<float> fixed, warped;

  int64_t voxels() const { return int64_t{size.x} * size.y * size.z; }
  int64_t At(int x, int y, int z) const { return (int64_t{z} * size.y + y) * size.x + x; }
};

template <typename Visit>
void ForVoxels(Int3 n, const Visit& visit) {
  for (int z = 0; z < n.z; ++z)
    for (int y = 0; y < n.y; ++y)
      for (int x = 0; x < n.x; ++x) visit(Int3{x, y, z});
}

// Smooth structure with noise on it, alike in both; `holes`: the part of warped voxels that are not samples, single
// ones and a ball.
Images MakeImages(Int3 size, uint32_t seed, double holes = 0, double offset = 0, double contrast = 1) {
  Images images{size, {}, {}};
  const std::vector<float> a = RandomFloats(images.voxels(), seed), b = RandomFloats(images.voxels(), seed + 1);
  const std::vector<float> hole = RandomFloats(images.voxels(), seed + 2);
  images.fixed.resize(images.voxels());
  images.warped.resize(images.voxels());
  ForVoxels(size, [&](Int3 i) {
    const int64_t k = images.At(i.x, i.y, i.z);
    const double s = std::sin(0.3 * i.x + seed) + std::sin(0.25 * i.y + 0.1 * i.x) + std::cos(0.35 * i.z);
    images.fixed[k] = static_cast<float>(offset + contrast * (20 * s + 10 * a[k]));
    images.warped[k] = static_cast<float>(offset * 0.7 + contrast * (50 - 12 * s + 10 * b[k] + 2 * a[k]));
    const double dx = i.x - 0.6 * size.x, dy = i.y - 0.3 * size.y, dz = i.z - 0.5 * size.z;
    if (hole[k] < holes || (holes > 0 && dx * dx + dy * dy + dz * dz < 16)) images.warped[k] = kNan;
  });
  return images;
}

// ---------------------------------------------------------------------------------------------------------------- LNCC

struct Lncc {
  double sigma = 2.5, fixed_floor = 1e-3, moving_floor = 1e-3;
};

Result ReferenceLncc(const Int3 n, const std::vector<double>& f, const std::vector<double>& m, const Lncc& p) {
  const int64_t count = f.size();
  double mean[2] = {0, 0}, samples = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (std::isnan(m[i])) continue;
    mean[0] += f[i];
    mean[1] += m[i];
    ++samples;
  }
  for (double& v : mean) v /= std::max(samples, 1.0);
  const auto sums = [&](const std::function<double(double, double)>& q) {
    std::vector<double> values(count, 0.0);
    for (int64_t i = 0; i < count; ++i)
      if (!std::isnan(m[i])) values[i] = q(f[i] - mean[0], m[i] - mean[1]);
    return SumWindows(SumBoxes(values, n), n, p.sigma);
  };
  const std::vector<double> w = sums([](double, double) { return 1.0; }), sf = sums([](double a, double) { return a; }),
                            sm = sums([](double, double b) { return b; }),
                            sff = sums([](double a, double) { return a * a; }),
                            smm = sums([](double, double b) { return b * b; }),
                            sfm = sums([](double a, double b) { return a * b; });
  std::vector<double> of_box(count);
  for (int64_t i = 0; i < count; ++i) of_box[i] = std::isnan(m[i]) ? 0 : 1;
  of_box = SumBoxes(of_box, n);
  std::vector<double> a(of_box.size(), 0.0), b = a, c = a;
  double total = 0;
  for (size_t j = 0; j < of_box.size(); ++j) {
    if (of_box[j] == 0) continue;
    const double fj = sf[j] / w[j], mj = sm[j] / w[j];
    const double ff = sff[j] / w[j] - fj * fj, mm = smm[j] / w[j] - mj * mj, fm = sfm[j] / w[j] - fj * mj;
    if (ff <= p.fixed_floor || mm <= p.moving_floor) continue;
    total += of_box[j] * fm * fm / (ff * mm);
    a[j] = 2 * of_box[j] * fm / (ff * mm) / w[j];
    b[j] = -a[j] * fm / mm;
    c[j] = -a[j] * fj - b[j] * mj;
  }
  a = SumWindows(a, n, p.sigma);
  b = SumWindows(b, n, p.sigma);
  c = SumWindows(c, n, p.sigma);
  const std::vector<int64_t> box = BoxOfVoxels(n);
  Result result{samples > 0 ? 1 - total / samples : NAN, samples, std::vector<double>(count, 0.0)};
  for (int64_t i = 0; i < count; ++i) {
    if (std::isnan(m[i])) continue;
    const int64_t j = box[i];
    result.voxel_gradient[i] = -(a[j] * (f[i] - mean[0]) + b[j] * (m[i] - mean[1]) + c[j]) / samples;
  }
  return result;
}

// ----------------------------------------------------------------------------------------------------------------- NGF

struct Ngf {
  Vec3d spacing{1.25, 0.75, 2.5};
  double fixed_edge = 3, moving_edge = 2;
};

Result ReferenceNgf(const Int3 n, const std::vector<double>& f, const std::vector<double>& m, const Ngf& p) {
  const int64_t stride[3] = {1, n.x, int64_t{n.x} * n.y};
  std::vector<double> derivative(f.size(), 0.0);
  double value = 0, weight = 0, samples = 0;
  int64_t at = -1;
  ForVoxels(n, [&](Int3 i) {
    ++at;
    double all = m[at];
    for (int a = 0; a < 3; ++a) {
      if (n[a] == 1) continue;
      if (i[a] == 0 || i[a] == n[a] - 1) return;
      all += m[at + stride[a]] + m[at - stride[a]];
    }
    if (std::isnan(all)) return;
    ++samples;
    Vec3d g, h;
    for (int a = 0; a < 3; ++a) {
      if (n[a] == 1) continue;
      g[a] = (m[at + stride[a]] - m[at - stride[a]]) / (2 * p.spacing[a]);
      h[a] = (f[at + stride[a]] - f[at - stride[a]]) / (2 * p.spacing[a]);
    }
    const double length = std::sqrt(Dot(g, g) + p.moving_edge * p.moving_edge);
    const double norm = std::sqrt(Dot(h, h) + p.fixed_edge * p.fixed_edge);
    const Vec3d u = (1 / length) * g, v = norm > 0 ? (1 / norm) * h : Vec3d{};
    const double uv = Dot(u, v);
    weight += Dot(v, v);
    value += Dot(v, v) - uv * uv;
    for (int a = 0; a < 3; ++a) {
      if (n[a] == 1) continue;
      const double c = -2 * uv * (v[a] - uv * u[a]) / length / (2 * p.spacing[a]);
      derivative[at + stride[a]] += c;
      derivative[at - stride[a]] -= c;
    }
  });
  if (weight > 0)
    for (double& d : derivative) d /= weight;
  return {weight > 0 ? value / weight : NAN, samples, derivative};
}

std::vector<double> Doubles(const std::vector<float>& v) { return {v.begin(), v.end()}; }

// Checks a reference's voxel gradient against differences of its value, at some voxels.
template <typename Evaluate>
void CheckDifferences(const Images& images, double step, const Evaluate& evaluate) {
  const std::vector<double> f = Doubles(images.fixed);
  std::vector<double> m = Doubles(images.warped);
  const Result at = evaluate(f, m);
  for (int64_t i = 1; i < images.voxels(); i += 37) {
    const double here = m[i];
    if (std::isnan(here)) continue;
    m[i] = here + step;
    const double high = evaluate(f, m).value;
    m[i] = here - step;
    const double low = evaluate(f, m).value;
    m[i] = here;
    EXPECT_NEAR((high - low) / (2 * step), at.voxel_gradient[i], 1e-6 * at.Largest()) << i;
  }
}

TEST(VoxelGradientReferenceTest, LnccIsTheDerivative) {
  for (Int3 size : {Int3{9, 11, 7}, Int3{14, 9, 1}}) {
    const Images images = MakeImages(size, 11, 0.1);
    CheckDifferences(images, 1e-4, [&](const auto& f, const auto& m) { return ReferenceLncc(size, f, m, {1.2}); });
  }
}

TEST(VoxelGradientReferenceTest, NgfIsTheDerivative) {
  for (Int3 size : {Int3{9, 11, 7}, Int3{14, 9, 1}}) {
    const Images images = MakeImages(size, 11, 0.02);
    CheckDifferences(images, 1e-4, [&](const auto& f, const auto& m) { return ReferenceNgf(size, f, m, Ngf()); });
  }
}

class VoxelGradientTest : public DeviceTest {
 protected:
  // What an operator gives from arrays that end where their images end.
  template <typename Task, typename Operator>
  Result Run(Task task, const Images& images, int64_t workspace, const Operator& run, bool with_gradient = true,
             int skip = 0) {
    task.fixed = Upload(images.fixed);
    task.warped = Upload(images.warped);
    task.size = images.size;
    OwnedContext owned = *OwnedContext::Create(device(), workspace);
    const ExecContext ctx = owned.context();
    EXPECT_OK(device().Fill(ctx.arena().AllocateBytes(0).value(), 0xff, workspace, ctx.stream()));
    float* voxel_gradient = with_gradient ? Poisoned<float>(images.voxels()) : nullptr;
    MetricValue* value = Poisoned<MetricValue>(1);
    const absl::Status status = run(ctx, task, Upload(std::vector<int>{skip}), voxel_gradient, value);
    EXPECT_OK(status) << status;
    EXPECT_OK(device().Synchronize(ctx.stream()));
    const MetricValue got = Download(value, 1)[0];
    return {got.metric, got.samples,
            with_gradient ? Doubles(Download(voxel_gradient, images.voxels())) : std::vector<double>()};
  }

  Result RunLncc(const Lncc& p, const Images& images, bool with_gradient = true, int skip = 0) {
    LnccTask task;
    task.sigma = p.sigma;
    task.fixed_floor = p.fixed_floor;
    task.moving_floor = p.moving_floor;
    return Run(task, images, LnccWorkspaceBytes(images.size), EvaluateLncc, with_gradient, skip);
  }
  Result RunNgf(const Ngf& p, const Images& images, bool with_gradient = true, int skip = 0) {
    NgfTask task;
    task.spacing = p.spacing;
    task.fixed_edge = p.fixed_edge;
    task.moving_edge = p.moving_edge;
    return Run(task, images, NgfWorkspaceBytes(images.size), EvaluateNgf, with_gradient, skip);
  }

  static void ExpectNear(const Result& got, const Result& want, double value_tolerance, double gradient_tolerance) {
    EXPECT_EQ(got.samples, want.samples);
    if (std::isnan(want.value)) {
      EXPECT_TRUE(std::isnan(got.value));
    } else {
      EXPECT_NEAR(got.value, want.value, value_tolerance);
    }
    const double largest = want.Largest();
    double error = 0;
    int64_t worst = 0;
    for (size_t i = 0; i < got.voxel_gradient.size(); ++i) {
      const double e = std::abs(got.voxel_gradient[i] - want.voxel_gradient[i]);
      if (!(e <= error)) {
        error = e;
        worst = i;
      }
    }
    if (!got.voxel_gradient.empty()) {
      EXPECT_LE(error, gradient_tolerance * largest)
          << "at " << worst << ": " << got.voxel_gradient[worst] << " for " << want.voxel_gradient[worst];
    }
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(VoxelGradientTest);

// Where a small window holds few samples, in line, differences of float32 sums are all that there is.
TEST_P(VoxelGradientTest, LnccMatchesReference) {
  uint32_t seed = 1;
  for (Int3 size : kSizes) {
    for (double holes : {0.0, 0.1}) {
      for (double sigma : {0.8, 2.5, 4.1}) {
        SCOPED_TRACE(testing::Message() << size.x << " " << size.y << " " << size.z << ", " << holes << ", " << sigma);
        const Images images = MakeImages(size, ++seed, holes);
        const Lncc p{sigma};
        ExpectNear(RunLncc(p, images), ReferenceLncc(size, Doubles(images.fixed), Doubles(images.warped), p),
                   sigma < 1 ? 1e-4 : 1e-5, sigma < 1 ? 2e-3 : 1e-4);
      }
    }
  }
}

// Intensities of 10^4, structure of some 10.
TEST_P(VoxelGradientTest, LnccSurvivesAnOffset) {
  const Int3 size{70, 66, 40};
  const Images images = MakeImages(size, 5, 0.02, 1e4, 0.3);
  const Lncc p{2.5};
  ExpectNear(RunLncc(p, images), ReferenceLncc(size, Doubles(images.fixed), Doubles(images.warped), p), 2e-5, 1e-3);
}

// Two halves that differ by far more than either has structure, as bone and background do.
TEST_P(VoxelGradientTest, LnccSurvivesRegionsFarApart) {
  const Int3 size{70, 66, 70};
  Images images = MakeImages(size, 6);
  ForVoxels(size, [&](Int3 i) {
    if (i.z < 35) return;
    images.fixed[images.At(i.x, i.y, i.z)] += 2000;
    images.warped[images.At(i.x, i.y, i.z)] -= 3000;
  });
  const Lncc p{2.5};
  ExpectNear(RunLncc(p, images), ReferenceLncc(size, Doubles(images.fixed), Doubles(images.warped), p), 2e-5, 1e-3);
}

// Half of the images is flat, and far from their mean: it counts as 0, with voxel gradient 0, where no window has
// structure.
TEST_P(VoxelGradientTest, LnccFlatWindowsCountAsZero) {
  const Int3 size{50, 20, 70};
  Images images = MakeImages(size, 7);
  ForVoxels(size, [&](Int3 i) {
    if (i.z >= 30) images.fixed[images.At(i.x, i.y, i.z)] = -1234.567f;
    if (i.z >= 30) images.warped[images.At(i.x, i.y, i.z)] = 987.654f;
  });
  const Lncc p{2.5, 0.05, 0.05};
  const Result got = RunLncc(p, images);
  ExpectNear(got, ReferenceLncc(size, Doubles(images.fixed), Doubles(images.warped), p), 1e-4, 1e-2);
  for (int z = 30 + 16; z < size.z; ++z) ASSERT_EQ(got.voxel_gradient[images.At(25, 10, z)], 0);
}

TEST_P(VoxelGradientTest, ConstantImages) {
  for (Int3 size : {Int3{1, 1, 1}, Int3{33, 20, 18}}) {
    for (int constant : {0, 1, 2}) {
      Images images = MakeImages(size, 8);
      if (constant != 1) images.fixed.assign(images.voxels(), 1234.567f);
      if (constant != 0) images.warped.assign(images.voxels(), -0.1f);
      const Result lncc = RunLncc({2.5, 0, 0}, images);
      EXPECT_EQ(lncc.value, 1);
      EXPECT_EQ(lncc.samples, images.voxels());
      EXPECT_EQ(lncc.Largest(), 0);
      const Result ngf = RunNgf({{1, 1, 1}, 0, 0}, images);
      if (constant == 1 && size.x > 1) {
        EXPECT_EQ(ngf.value, 1);
      } else {
        EXPECT_TRUE(std::isnan(ngf.value));
      }
      EXPECT_EQ(ngf.Largest(), 0);
    }
  }
}

TEST_P(VoxelGradientTest, NoSamples) {
  Images images = MakeImages({40, 20, 18}, 9);
  images.warped.assign(images.voxels(), kNan);
  for (const Result& got : {RunLncc({}, images), RunNgf({}, images)}) {
    EXPECT_TRUE(std::isnan(got.value));
    EXPECT_EQ(got.samples, 0);
    EXPECT_EQ(got.Largest(), 0);
    for (double r : got.voxel_gradient) ASSERT_EQ(r, 0);
  }
}

TEST_P(VoxelGradientTest, NgfMatchesReference) {
  uint32_t seed = 100;
  for (Int3 size : kSizes) {
    for (double holes : {0.0, 0.02}) {
      SCOPED_TRACE(testing::Message() << size.x << " " << size.y << " " << size.z << ", " << holes);
      const Images images = MakeImages(size, ++seed, holes);
      ExpectNear(RunNgf({}, images), ReferenceNgf(size, Doubles(images.fixed), Doubles(images.warped), Ngf()), 1e-5,
                 1e-5);
    }
  }
}

TEST_P(VoxelGradientTest, NgfSurvivesAnOffset) {
  const Int3 size{70, 33, 20};
  const Images images = MakeImages(size, 5, 0.02, 1e4, 0.3);
  const Ngf p{{1, 1, 2}, 0.5, 0.5};
  ExpectNear(RunNgf(p, images), ReferenceNgf(size, Doubles(images.fixed), Doubles(images.warped), p), 1e-5, 1e-5);
}

// The value is 0 up to rounding (and eta).
TEST_P(VoxelGradientTest, EqualImages) {
  Images images = MakeImages({50, 40, 30}, 21);
  images.warped = images.fixed;
  const Result lncc = RunLncc({}, images), ngf = RunNgf({{1, 1, 1}, 1e-3, 1e-3}, images);
  EXPECT_NEAR(lncc.value, 0, 1e-6);
  EXPECT_NEAR(ngf.value, 0, 1e-6);
}

TEST_P(VoxelGradientTest, IsBitIdentical) {
  const Images images = MakeImages({91, 70, 50}, 31, 0.05);
  for (bool lncc : {true, false}) {
    const auto run = [&] { return lncc ? RunLncc({}, images) : RunNgf({}, images); };
    const Result a = run(), b = run();
    EXPECT_EQ(a.value, b.value);
    EXPECT_EQ(a.voxel_gradient, b.voxel_gradient);
  }
}

TEST_P(VoxelGradientTest, ValueAlone) {
  const Images images = MakeImages({91, 70, 50}, 32, 0.05);
  const Result lncc = RunLncc({}, images), ngf = RunNgf({}, images);
  EXPECT_EQ(RunLncc({}, images, false).value, lncc.value);
  EXPECT_EQ(RunLncc({}, images, false).samples, lncc.samples);
  EXPECT_NEAR(RunNgf({}, images, false).value, ngf.value, 1e-12);
  EXPECT_EQ(RunNgf({}, images, false).samples, ngf.samples);
}

TEST_P(VoxelGradientTest, SkipWritesNothing) {
  const Images images = MakeImages({40, 35, 20}, 33);
  for (const Result& got : {RunLncc({}, images, true, 3), RunNgf({}, images, true, 3)}) {
    EXPECT_TRUE(std::isnan(got.value));
    EXPECT_TRUE(std::isnan(got.samples));
    for (double r : got.voxel_gradient) ASSERT_TRUE(std::isnan(r));
  }
}

TEST_P(VoxelGradientTest, RefusesWhatIsOutOfRange) {
  const auto message = [&](const LnccTask& task) {
    return std::string(EvaluateLncc(ctx(), task, nullptr, nullptr, nullptr).message());
  };
  EXPECT_THAT(message({nullptr, nullptr, {0, 1, 1}, 2.5, 0, 0}), testing::StartsWith("size:"));
  EXPECT_THAT(message({nullptr, nullptr, {1, 1, 1 << 20}, 2.5, 0, 0}), testing::StartsWith("size:"));
  for (double sigma : {0.0, -1.0, 0.59, 5.4, double{NAN}, double{INFINITY}}) {
    EXPECT_THAT(message({nullptr, nullptr, {1, 1, 1}, sigma, 0, 0}), testing::StartsWith("sigma:"));
  }
  EXPECT_THAT(message({nullptr, nullptr, {1, 1, 1}, 2.5, -1, 0}), testing::StartsWith("fixed_floor:"));
  EXPECT_THAT(message({nullptr, nullptr, {1, 1, 1}, 2.5, 0, NAN}), testing::StartsWith("moving_floor:"));
  const auto ngf = [&](Vec3d spacing, double fixed_edge, double moving_edge) {
    const NgfTask task{nullptr, nullptr, {1, 1, 1}, spacing, fixed_edge, moving_edge};
    return std::string(EvaluateNgf(ctx(), task, nullptr, nullptr, nullptr).message());
  };
  EXPECT_THAT(ngf({1, 0, 1}, 1, 1), testing::StartsWith("spacing:"));
  EXPECT_THAT(ngf({1, 1, 1}, -1, 1), testing::StartsWith("fixed_edge:"));
  EXPECT_THAT(ngf({1, 1, 1}, 1, INFINITY), testing::StartsWith("moving_edge:"));
}

}  // namespace
}  // namespace intrawarp
