// SPDX-License-Identifier: Apache-2.0
// For tests that run on every device present: a fixture parameterised by the device, host vectors to device memory and
// back, poisoned outputs, random numbers from a seed.
//
//   class WarpTest : public DeviceTest {};
//   INTRAWARP_INSTANTIATE_DEVICE_TEST(WarpTest);
//   TEST_P(WarpTest, ...) { auto x = Upload(...); ... }
#ifndef INTRAWARP_TESTS_ENGINE_DEVICE_TEST_H_
#define INTRAWARP_TESTS_ENGINE_DEVICE_TEST_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/geometry.h"

namespace intrawarp {

// The devices of this machine, opened once for the whole program; by name, so that test names are stable.
inline Device& TestDevice(const std::string& name) {
  static auto* const devices = new std::vector<std::unique_ptr<Device>>(AllDevices());
  for (auto& d : *devices)
    if (d->name() == name) return *d;
  ADD_FAILURE() << "no device " << name;
  return *devices->front();
}

inline std::vector<std::string> TestDeviceNames() {
  std::vector<std::string> names;
  for (auto& d : AllDevices()) names.push_back(d->name());
  return names;
}

class DeviceTest : public testing::TestWithParam<std::string> {
 protected:
  static constexpr size_t kWorkspaceBytes = size_t{256} << 20;

  DeviceTest() : owned_(*OwnedContext::Create(TestDevice(GetParam()), kWorkspaceBytes)) {}

  Device& device() { return TestDevice(GetParam()); }
  ExecContext ctx(CheckpointFn checkpoint = nullptr) { return owned_.context(std::move(checkpoint)); }

  // A device copy of `values`; lives until the end of the test.
  template <typename T>
  T* Upload(const std::vector<T>& values) {
    T* p = Poisoned<T>(values.size());
    EXPECT_TRUE(device().Copy(p, values.data(), values.size() * sizeof(T), ctx().stream()).ok());
    EXPECT_TRUE(device().Synchronize(ctx().stream()).ok());
    return p;
  }
  // Device memory whose every byte is 0xff (a NaN in float32): what an operator forgets to write shows. Any stream may
  // use it.
  template <typename T>
  T* Poisoned(size_t count) {
    buffers_.push_back(*device().Allocate(count * sizeof(T), ctx().stream()));
    EXPECT_TRUE(device().Fill(buffers_.back().as<T>(), 0xff, count * sizeof(T), ctx().stream()).ok());
    EXPECT_TRUE(device().Synchronize(ctx().stream()).ok());
    return buffers_.back().as<T>();
  }
  template <typename T>
  std::vector<T> Download(const T* p, size_t count) {
    std::vector<T> values(count);
    EXPECT_TRUE(device().Copy(values.data(), p, count * sizeof(T), ctx().stream()).ok());
    EXPECT_TRUE(device().Synchronize(ctx().stream()).ok());
    return values;
  }

  OwnedContext owned_;
  std::vector<Buffer> buffers_;
};

#define INTRAWARP_INSTANTIATE_DEVICE_TEST(Fixture)                                   \
  INSTANTIATE_TEST_SUITE_P(Devices, Fixture, testing::ValuesIn(TestDeviceNames()),   \
                           [](const testing::TestParamInfo<std::string>& info) {     \
                             std::string name = info.param;                          \
                             for (char& c : name)                                    \
                               if (!isalnum(static_cast<unsigned char>(c))) c = '_'; \
                             return name;                                            \
                           })

inline std::vector<float> RandomFloats(size_t count, uint32_t seed, float low = 0, float high = 1) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> distribution(low, high);
  std::vector<float> values(count);
  for (float& v : values) v = distribution(engine);
  return values;
}

// A grid of the given size with uneven spacing, an origin and an oblique direction (left-handed when asked).
inline Geometry ObliqueGeometry(Int3 size, bool left_handed = false) {
  Geometry g;
  g.size = size;
  g.spacing = {1.25, 0.75, 2.5};
  g.origin = {-31.0, 12.5, 140.0};
  const double c = 0.8, s = 0.6;
  const double d[3][3] = {{c, -s, 0}, {s * c, c * c, -s}, {s * s, s * c, c}};
  for (int r = 0; r < 3; ++r)
    for (int k = 0; k < 3; ++k) g.direction[r][k] = d[r][k] * (left_handed && k == 0 ? -1 : 1);
  return g;
}

#define ASSERT_OK(expr) ASSERT_TRUE((expr).ok())
#define EXPECT_OK(expr) EXPECT_TRUE((expr).ok())

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_ENGINE_DEVICE_TEST_H_
