// SPDX-License-Identifier: Apache-2.0
// The variants of Leong et al. (2021) make the right field, and the product's operators solve the same problem.
#include "tests/bench/baselines/demons_variants.h"

#include <string>

#include "engine/transform/vector_field.h"
#include "tests/engine/device_test.h"

namespace intrawarp::baselines {
namespace {

// One voxel, one plane, rows that begin at every remainder of 16 bytes, more than 32 lines.
const Int3 kSizes[] = {{1, 1, 1}, {7, 5, 1}, {2, 9, 5}, {33, 17, 40}, {66, 35, 3}, {5, 64, 130}};

std::string Text(Int3 size) {
  return std::to_string(size.x) + "x" + std::to_string(size.y) + "x" + std::to_string(size.z);
}

int64_t Floats(Int3 size) { return int64_t{3} * size.x * size.y * size.z; }

std::vector<float> Interleave(const std::vector<float>& planes) {
  const size_t voxels = planes.size() / 3;
  std::vector<float> interleaved(planes.size());
  for (size_t i = 0; i < planes.size(); ++i) interleaved[i % voxels * 3 + i / voxels] = planes[i];
  return interleaved;
}

class DemonsVariantsTest : public DeviceTest {
 protected:
  double LargestError(const float* field, FieldLayout layout, Int3 size, const std::vector<double>& reference) {
    return CompareRows(ctx(), field, layout, size, 1, reference)->max;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(DemonsVariantsTest);

TEST_P(DemonsVariantsTest, SmoothingEqualsFloat64AndStaysInside) {
  const ExecContext context = ctx();
  if (SmoothingVariants(context).empty()) GTEST_SKIP() << "the published variants are for CUDA";
  constexpr int kGuard = 64;
  for (const Smoothing variant : SmoothingVariants(context)) {
    for (const Int3 size : kSizes) {
      for (const double sigma : {0.0, 0.7, 1.7320508, 3.0, 7.0}) {
        const std::vector<float> window = sigma > 0 ? GaussianWindow(sigma) : std::vector<float>{1};
        const std::vector<float> planes = RandomFloats(Floats(size), 5 + size.x, -10, 10);
        float* const in = Upload(planes);
        float* const guarded = Upload(std::vector<float>(planes.size() + 2 * kGuard, 77.0f));
        float* const smooth_x = Poisoned<float>(planes.size());
        float* const smooth_xy = Poisoned<float>(planes.size());
        const float* from[] = {in, smooth_x, smooth_xy};
        float* to[] = {smooth_x, smooth_xy, guarded + kGuard};
        for (int axis = 0; axis < 3; ++axis) {
          const auto pass = MakeSmoothingPass(context, variant, size, axis, window, from[axis], to[axis]);
          ASSERT_OK(pass.status());
          ASSERT_OK((*pass)());
        }
        const std::string what = std::string(Name(variant)) + " sigma " + std::to_string(sigma) + " " + Text(size);
        EXPECT_LE(LargestError(to[2], PlanarLayout(size), size, ReferenceSmoothing(planes, size, window)), 2e-5)
            << what;
        const std::vector<float> all = Download(guarded, planes.size() + 2 * kGuard);
        for (int i = 0; i < kGuard; ++i) {
          ASSERT_EQ(all[i], 77.0f) << what << " before " << i;
          ASSERT_EQ(all[kGuard + planes.size() + i], 77.0f) << what << " after " << i;
        }
      }
    }
  }
}

TEST_P(DemonsVariantsTest, CompositionIsWithinItsError) {
  const ExecContext context = ctx();
  if (CompositionVariants(context).empty()) GTEST_SKIP() << "the published variants are for CUDA";
  for (const Composition variant : CompositionVariants(context)) {
    for (const Int3 size : kSizes) {
      // Random motion leaves the image on every side.
      const std::vector<float> inner = RandomFloats(Floats(size), 1, -6, 6),
                               outer = RandomFloats(Floats(size), 2, -3, 3);
      float* const out = Poisoned<float>(inner.size());
      const float* const outer_on_device = Upload(outer);
      const auto work = MakeComposition(context, variant, size, Upload(inner), outer_on_device, out);
      ASSERT_OK(work.status());
      if (work->fill) {
        ASSERT_OK(work->fill());
      }
      ASSERT_OK(work->compose());
      EXPECT_LE(LargestError(out, PlanarLayout(size), size, ReferenceComposition(inner, outer, size, 1)),
                CompositionTolerance(variant, outer, size))
          << Name(variant) << " " << Text(size);
    }
  }
}

// The product, as the bench measures it beside the variants.
TEST_P(DemonsVariantsTest, ProductionComposesTheSame) {
  const ExecContext context = ctx();
  for (const Int3 size : kSizes) {
    const std::vector<float> inner = RandomFloats(Floats(size), 1, -6, 6), outer = RandomFloats(Floats(size), 2, -3, 3);
    float* const out = Poisoned<float>(inner.size());
    ASSERT_OK(ComposeVectorFields(context, Upload(Interleave(inner)), Upload(Interleave(outer)), size, out));
    EXPECT_LE(LargestError(out, InterleavedLayout(3), size, ReferenceComposition(inner, outer, size, 1)),
              CompositionTolerance(Composition::kB1, outer, size))
        << Text(size);
  }
}

// Away from the faces, where the product weighs the part of the window that lies inside.
TEST_P(DemonsVariantsTest, ProductionSmoothsTheSameInside) {
  const ExecContext context = ctx();
  const Int3 size{41, 37, 33};
  constexpr int kMargin = 9;
  const std::vector<float> planes = RandomFloats(Floats(size), 3, -10, 10);
  float* const out = Poisoned<float>(planes.size());
  ASSERT_OK(SmoothVectorField(context, Upload(Interleave(planes)), size, {3, 3, 3}, out));
  const std::vector<float> smooth = Download(out, planes.size());
  const std::vector<double> reference = ReferenceSmoothing(planes, size, GaussianWindow(3));
  for (int z = kMargin; z < size.z - kMargin; ++z)
    for (int y = kMargin; y < size.y - kMargin; ++y)
      for (int x = kMargin; x < size.x - kMargin; ++x)
        for (int c = 0; c < 3; ++c) {
          const int64_t i = ((int64_t{z} * size.y + y) * size.x + x) * 3 + c;
          ASSERT_NEAR(smooth[i], reference[i], 1e-5) << x << " " << y << " " << z << " " << c;
        }
}

TEST(DemonsReferenceTest, AConstantStaysInsideAndAWindowSumsToOne) {
  const Int3 size{21, 20, 19};
  const std::vector<float> window = GaussianWindow(3);
  ASSERT_EQ(window.size(), 10u);
  double sum = window[0];
  for (size_t n = 1; n < window.size(); ++n) sum += 2.0 * window[n];
  EXPECT_NEAR(sum, 1, 1e-6);
  const std::vector<double> smooth = ReferenceSmoothing(std::vector<float>(Floats(size), 4.0f), size, window);
  EXPECT_NEAR(smooth[((9 * 20 + 10) * 21 + 10) * 3 + 1], 4, 1e-5);
  // At a corner half of the window is inside along each axis.
  EXPECT_NEAR(smooth[0], 4 * std::pow((1 + window[0]) / 2, 3), 1e-5);
}

TEST(DemonsReferenceTest, ComposesTranslationsAndClamps) {
  const Int3 size{5, 4, 3};
  const int64_t voxels = 60;
  std::vector<float> inner(3 * voxels, 0.25f), outer(3 * voxels, 0.0f);
  for (int64_t v = 0; v < voxels; ++v) outer[v] = static_cast<float>(v % 5);
  const std::vector<double> composed = ReferenceComposition(inner, outer, size, 1);
  EXPECT_DOUBLE_EQ(composed[0], 0.5);       // 0.25 + u(0.25)
  EXPECT_DOUBLE_EQ(composed[3 * 4], 4.25);  // the last voxel of the row
  EXPECT_DOUBLE_EQ(composed[3 * 4 + 1], 0.25);
}

}  // namespace
}  // namespace intrawarp::baselines
