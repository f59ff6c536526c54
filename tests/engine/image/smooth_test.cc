// SPDX-License-Identifier: Apache-2.0
#include "engine/image/smooth.h"

#include <cmath>
#include <limits>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

// One axis after the other, in float64, straight from the definition.
std::vector<double> Reference(Int3 n, const std::vector<float>& values, Vec3d sigma) {
  std::vector<double> v(values.begin(), values.end());
  const size_t stride[3] = {1, size_t(n.x), size_t(n.x) * n.y};
  for (int a = 0; a < 3; ++a) {
    if (sigma[a] == 0) continue;
    const int r = std::ceil(3 * sigma[a]);
    std::vector<double> out(v.size());
    for (size_t i = 0; i < v.size(); ++i) {
      const int at = i / stride[a] % n[a];
      double sum = 0, weights = 0;
      for (int k = std::max(-r, -at); k <= std::min(r, n[a] - 1 - at); ++k) {
        const double w = std::exp(-0.5 * k * k / (sigma[a] * sigma[a]));
        sum += w * v[i + k * static_cast<int64_t>(stride[a])];
        weights += w;
      }
      out[i] = sum / weights;
    }
    v = out;
  }
  return v;
}

class SmoothTest : public DeviceTest {
 protected:
  void ExpectReference(Int3 size, Vec3d sigma, bool in_place) {
    const Geometry g = ObliqueGeometry(size, in_place);
    SCOPED_TRACE(SizeString(g) + " " + std::to_string(sigma.x) + " " + std::to_string(sigma.y) + " " +
                 std::to_string(sigma.z) + (in_place ? " in place" : ""));
    const std::vector<float> values = RandomFloats(g.voxels(), size.x, -1, 1);
    float* in = Upload(values);
    const VolumeView out{in_place ? in : Poisoned<float>(g.voxels()), g};
    ASSERT_OK(device().Synchronize(ctx().stream()));  // the smoothing runs in a stream of its own
    OwnedContext owned = *OwnedContext::Create(device(), SmoothGaussianWorkspaceBytes(g));
    const absl::Status status = SmoothGaussian(owned.context(), {in, g}, sigma, out);
    ASSERT_OK(status) << status;
    ASSERT_OK(device().Synchronize(owned.context().stream()));
    const std::vector<float> got = Download(out.data, g.voxels());
    const std::vector<double> want = Reference(size, values, sigma);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-6) << i;
    if (!in_place) {
      EXPECT_EQ(Download(in, g.voxels()), values);
    }
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(SmoothTest);

TEST_P(SmoothTest, MatchesTheDefinition) {
  const Int3 sizes[] = {{1, 1, 1},    {5, 4, 3},   {64, 32, 33}, {65, 31, 9},  {63, 70, 2},
                        {200, 90, 1}, {3, 1, 130}, {1, 100, 40}, {1100, 3, 3}, {33, 65, 66}};
  for (Int3 size : sizes)
    for (bool in_place : {false, true}) ExpectReference(size, {1.0, 1.7, 0.6}, in_place);
}

TEST_P(SmoothTest, AnySetOfAxes) {
  for (int set = 0; set < 8; ++set) {
    for (bool in_place : {false, true}) {
      ExpectReference({37, 21, 19}, {set & 1 ? 1.2 : 0, set & 2 ? 2.0 : 0, set & 4 ? 0.8 : 0}, in_place);
    }
  }
}

TEST_P(SmoothTest, WideAndNarrowKernels) {
  ExpectReference({70, 50, 12}, {64, 64, 64}, false);
  ExpectReference({500, 3, 2}, {64, 1e-3, 1e-100}, false);
  ExpectReference({40, 230, 7}, {0.3, 33, 10}, true);
}

TEST_P(SmoothTest, KeepsAConstant) {
  const Geometry g = ObliqueGeometry({40, 30, 20});
  const VolumeView v{Upload(std::vector<float>(g.voxels(), 1000.0f)), g};
  ASSERT_OK(SmoothGaussian(ctx(), v, {2, 3, 9}, v));
  for (float value : Download(v.data, g.voxels())) ASSERT_NEAR(value, 1000.0f, 2e-3);
}

TEST_P(SmoothTest, RefusesBadSigmasAndGrids) {
  const Geometry g = ObliqueGeometry({4, 4, 4});
  const double bad[] = {-1, 64.5, std::nan(""), std::numeric_limits<double>::infinity()};
  for (double sigma : bad) {
    const absl::Status status = SmoothGaussian(ctx(), {nullptr, g}, {1, sigma, 1}, {nullptr, g});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()).find("sigma: "), 0u);
  }
  EXPECT_EQ(SmoothGaussian(ctx(), {nullptr, g}, {1, 1, 1}, {nullptr, ObliqueGeometry({4, 4, 5})}).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace intrawarp
