// SPDX-License-Identifier: Apache-2.0
#include "engine/device/parallel.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>

namespace intrawarp {
namespace {

TEST(ThreadScratchTest, HoldsTheLargestRequest) {
  float* const large = ThreadScratch<float>(1000);
  large[999] = 7;
  float* const small = ThreadScratch<float>(10);
  EXPECT_EQ(small, large);
  EXPECT_EQ(small[999], 7);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(ThreadScratch<float>(5000)) % 64, 0u);
}

TEST(ThreadScratchTest, IsOfOneThreadAndOneType) {
  const void* const floats = ThreadScratch<float>(100);
  const void* const doubles = ThreadScratch<double>(100);
  EXPECT_NE(floats, doubles);
  const void* other = nullptr;
  std::thread([&] { other = ThreadScratch<float>(100); }).join();
  EXPECT_NE(floats, other);
}

}  // namespace
}  // namespace intrawarp
