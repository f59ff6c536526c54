// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/encode.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "engine/transform/control_grid.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

class EncodeTest : public DeviceTest {
 protected:
  // What is read back: the numbers in mm.
  std::vector<double> Encoded(const std::vector<float>& values, const ComponentEncoding& encoding) {
    const float* from = Upload(values);
    int16_t* to = Poisoned<int16_t>(values.size());
    EXPECT_OK(EncodeComponents(ctx(), from, static_cast<int64_t>(values.size()), encoding, to));
    const std::vector<int16_t> stored = Download(to, values.size());
    std::vector<double> read;
    for (const int16_t number : stored) {
      _Float16 half;
      std::memcpy(&half, &number, sizeof(half));
      read.push_back(encoding.type == ComponentType::kInt16 ? number * encoding.scale : static_cast<double>(half));
    }
    return read;
  }

  Transform ControlGrid(const std::vector<float>& coefficients, const Geometry& grid, const AffineMap& affine,
                        const Geometry& domain) {
    const size_t bytes = coefficients.size() * sizeof(float);
    Buffer memory = *device().Allocate(bytes, ctx().stream());
    EXPECT_OK(device().Copy(memory.as<float>(), coefficients.data(), bytes, ctx().stream()));
    EXPECT_OK(device().Synchronize(ctx().stream()));
    return Transform(affine, std::move(memory), grid, domain);
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(EncodeTest);

TEST_P(EncodeTest, KeepsItsBoundAtEveryMagnitude) {
  for (const double bound : {1e-35, 1e-9, 1e-3, 0.7, 1.0, 31.4159, 4000.0, 65504.0}) {
    for (const size_t count : {size_t{1}, size_t{255}, size_t{256}, size_t{257}, size_t{70001}}) {
      const auto largest = static_cast<float>(bound);
      std::vector<float> values = RandomFloats(count, 5, -largest, largest);
      values.back() = -largest;
      values.front() = largest;
      for (const ComponentType type : {ComponentType::kFloat16, ComponentType::kInt16}) {
        const auto encoding = MakeComponentEncoding(type, largest);
        ASSERT_OK(encoding) << bound << " " << encoding.status();
        EXPECT_EQ(encoding->scale > 0, type == ComponentType::kInt16);
        const std::vector<double> read = Encoded(values, *encoding);
        for (size_t i = 0; i < count; ++i) {
          ASSERT_LE(std::abs(read[i] - values[i]), encoding->max_error) << bound << " component " << i;
        }
        // No finer than needed, and no coarser than the type.
        if (bound >= 1e-3) {
          EXPECT_LE(encoding->max_error, largest / (type == ComponentType::kInt16 ? 60000 : 2000));
        }
      }
    }
  }
}

TEST_P(EncodeTest, RoundsToNearest) {
  const ComponentEncoding quarters{ComponentType::kInt16, 0.25, 0.125};
  EXPECT_EQ(Encoded({0, 0.12f, 0.13f, -0.13f, 0.25f, 1.01f, -100.2f}, quarters),
            (std::vector<double>{0, 0, 0.25, -0.25, 0.25, 1, -100.25}));
  // What passes the bound after all stays at the end of the range.
  EXPECT_EQ(Encoded({1e9f, -1e9f}, quarters), (std::vector<double>{32767 * 0.25, -32767 * 0.25}));
}

// Every boundary between two halves, the floats beside it, and what is not a number, as the compiler has them.
TEST_P(EncodeTest, RoundsEveryHalfToNearestEven) {
  std::vector<float> values;
  for (uint32_t half = 0; half < 0x7c00; ++half) {
    _Float16 below, above;
    const auto bits = static_cast<uint16_t>(half), next = static_cast<uint16_t>(half + 1);
    std::memcpy(&below, &bits, sizeof(below));
    std::memcpy(&above, &next, sizeof(above));
    // Beyond the largest half lies 2^16.
    const float low = static_cast<float>(below), high = next == 0x7c00 ? 65536.0f : static_cast<float>(above);
    const float middle = low + (high - low) / 2;
    for (const float value : {low, std::nextafter(middle, low), middle, std::nextafter(middle, high)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float value : {1e-45f, 1e-38f, 65535.9f, 65536.0f, 1e38f, std::numeric_limits<float>::max(), kInfinity}) {
    values.push_back(value);
    values.push_back(-value);
  }
  const std::vector<double> read = Encoded(values, {ComponentType::kFloat16, 0, 0});
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(read[i], static_cast<double>(static_cast<_Float16>(values[i]))) << values[i];
  }
  const std::vector<double> nan = Encoded({std::numeric_limits<float>::quiet_NaN()}, {ComponentType::kFloat16, 0, 0});
  EXPECT_TRUE(std::isnan(nan[0]));
}

TEST_P(EncodeTest, RefusesWhatDoesNotFit) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const auto code = [](ComponentType type, double bound) { return MakeComponentEncoding(type, bound).status().code(); };
  EXPECT_EQ(code(ComponentType::kFloat16, 65505), absl::StatusCode::kFailedPrecondition);
  for (const ComponentType type : {ComponentType::kFloat16, ComponentType::kInt16}) {
    for (const double bound : {kNan, HUGE_VAL, 1e300}) {
      EXPECT_EQ(code(type, bound), absl::StatusCode::kFailedPrecondition) << bound;
    }
    EXPECT_EQ(code(type, 0), absl::StatusCode::kOk);
  }
  const float* values = Upload(std::vector<float>{1});
  EXPECT_EQ(EncodeComponents(ctx(), values, 1, ComponentEncoding{}, Poisoned<float>(1)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(EncodeTest, NoComponentOfAFieldPassesItsBound) {
  const Geometry image = ObliqueGeometry({19, 14, 11}, /*left_handed=*/true);
  const Geometry nodes = *MakeControlGrid(image, 3 * image.spacing);
  AffineMap affine = AffineMap::Identity();
  affine.m[0][1] = 0.3;
  affine.m[1][1] = 1.2;
  affine.m[2][3] = -7;
  for (const float amplitude : {0.0f, 0.1f, 20.0f}) {
    const std::vector<float> coefficients = RandomFloats(3 * nodes.voxels(), 8, -amplitude, amplitude);
    for (const Transform& transform : {Transform(affine, image), ControlGrid(coefficients, nodes, affine, image)}) {
      absl::StatusOr<OwnedContext> exact = OwnedContext::Create(device(), DisplacementBoundWorkspaceBytes());
      ASSERT_OK(exact);
      const auto bound = DisplacementBound(exact->context(), transform, image);
      ASSERT_OK(bound) << bound.status();
      float* field = Poisoned<float>(3 * image.voxels());
      ASSERT_OK(EvaluateField(ctx(), transform, image, 0, image.voxels(), field));
      double largest = 0;
      for (const float component : Download(field, 3 * image.voxels())) {
        largest = std::max(largest, std::abs(double{component}));
      }
      EXPECT_LE(largest, *bound);
      EXPECT_GT(largest, 0.1 * *bound);
    }
  }
}

}  // namespace
}  // namespace intrawarp
