// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/baselines/convolution_schemes.h"

#include "tests/engine/device_test.h"

namespace intrawarp::baselines {
namespace {

class ConvolutionSchemesTest : public DeviceTest {
 protected:
  // Planes as the device's version wants them.
  float* UploadField(const std::vector<float>& planes) {
    if (!ctx().is_cuda()) return Upload(planes);
    const int64_t voxels = planes.size() / 3;
    std::vector<float> interleaved(4 * voxels);
    for (int64_t i = 0; i < 3 * voxels; ++i) interleaved[i % voxels * 4 + i / voxels] = planes[i];
    return Upload(interleaved);
  }
  FieldLayout Layout(Int3 size) { return ctx().is_cuda() ? InterleavedLayout(4) : PlanarLayout(size); }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(ConvolutionSchemesTest);

std::vector<WindowLoop> Loops() {
  std::vector<WindowLoop> loops;
  for (bool branch : {false, true})
    for (int unroll : {1, 5, 20}) loops.push_back({branch, unroll});
  return loops;
}

// An uneven window, longer than some axes.
TEST_P(ConvolutionSchemesTest, EqualFloat64) {
  const ExecContext context = ctx();
  for (const Int3 size : {Int3{1, 1, 1}, Int3{37, 19, 5}, Int3{16, 70, 3}}) {
    const int64_t voxels = int64_t{size.x} * size.y * size.z;
    const std::vector<float> planes = RandomFloats(3 * voxels, size.x, -10, 10);
    const float* in = UploadField(planes);
    for (int radius : {0, 3, 20}) {
      const std::vector<float> window = RandomFloats(2 * radius + 1, radius, 0, 1);
      const std::vector<double> exact(window.begin(), window.end());
      double sum = 0;
      for (double w : exact) sum += w;
      for (int axis = 0; axis < 3; ++axis) {
        const std::vector<double> reference = ReferenceConvolution(planes, size, axis, exact, false, 1);
        for (Summation summation : kSummations) {
          for (const WindowLoop loop : Loops()) {
            float* out = Poisoned<float>(4 * voxels);
            const auto work = MakeConvolution(context, summation, loop, {size, axis, window}, in, out);
            ASSERT_OK(work.status());
            ASSERT_OK((*work)());
            const double tolerance = SummationTolerance(summation, 2 * radius + 1) * 10 * sum;
            EXPECT_LE(CompareRows(context, out, Layout(size), size, 1, reference)->max, tolerance)
                << SummationName(summation) << " axis " << axis << " radius " << radius << " unroll " << loop.unroll
                << " of " << size.x << "x" << size.y << "x" << size.z;
          }
        }
      }
    }
  }
}

// Many small terms beside a large one: only a compensated sum keeps them.
TEST_P(ConvolutionSchemesTest, CompensatedSumsKeepSmallTerms) {
  const ExecContext context = ctx();
  const Int3 size{201, 2, 2};
  std::vector<float> planes(3 * 201 * 4, 3e-8f);
  for (size_t i = 0; i < planes.size(); i += 201) planes[i] = 1.0f;
  const std::vector<float> window(401, 1.0f);
  const std::vector<double> reference = ReferenceConvolution(planes, size, 0, std::vector<double>(401, 1.0), false, 1);
  const float* in = UploadField(planes);
  for (Summation summation : {Summation::kPlain, Summation::kKahan, Summation::kPichat, Summation::kPichatFma}) {
    float* out = Poisoned<float>(4 * 201 * 4);
    const auto work = MakeConvolution(context, summation, {}, {size, 0, window}, in, out);
    ASSERT_OK(work.status());
    ASSERT_OK((*work)());
    const double error = CompareRows(context, out, Layout(size), size, 1, reference)->max;
    if (summation == Summation::kPlain) {
      EXPECT_GT(error, 5e-6);
    } else {
      EXPECT_LT(error, 2e-7) << SummationName(summation);
    }
  }
}

// By hand: 1 2 3 with the window 1 10 100 about the middle one.
TEST(ReferenceConvolutionTest, LeavesOutWhatIsOutside) {
  const std::vector<float> planes = {1, 2, 3, 0, 0, 0, 0, 0, 0};
  const std::vector<double> plain = ReferenceConvolution(planes, {3, 1, 1}, 0, {1, 10, 100}, false, 1);
  EXPECT_EQ(plain[0], 10 * 1 + 100 * 2);
  EXPECT_EQ(plain[3], 1 * 1 + 10 * 2 + 100 * 3);
  EXPECT_EQ(plain[6], 1 * 2 + 10 * 3);
  const std::vector<double> normalised = ReferenceConvolution(planes, {3, 1, 1}, 0, {1, 10, 100}, true, 1);
  EXPECT_DOUBLE_EQ(normalised[6], 32 * 111.0 / 11);
}

}  // namespace
}  // namespace intrawarp::baselines
