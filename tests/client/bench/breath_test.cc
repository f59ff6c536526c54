// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/breath.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

namespace intrawarp::cli::bench {
namespace {

std::vector<int16_t> Pixels(const io::HostVolume& volume) {
  std::vector<int16_t> pixels(volume.pixels.size() / 2);
  std::memcpy(pixels.data(), volume.pixels.data(), volume.pixels.size());
  return pixels;
}

int64_t Difference(const io::HostVolume& a, const io::HostVolume& b) {
  const std::vector<int16_t> left = Pixels(a), right = Pixels(b);
  int64_t sum = 0;
  for (size_t i = 0; i < left.size(); ++i) sum += std::abs(left[i] - right[i]);
  return sum;
}

TEST(Breath, GoesOutAsItWentIn) {
  const auto breath = Breath::Make(24, 5);
  ASSERT_TRUE(breath.ok()) << breath.status();
  EXPECT_EQ(breath->rest().geometry.size, (Int3{24, 24, 24}));
  EXPECT_EQ(BytesOf(breath->rest()).size(), 2u * 24 * 24 * 24);
  for (int64_t n = 1; n < 6; ++n) EXPECT_EQ(&breath->Frame(n), &breath->Frame(12 - n));
  EXPECT_EQ(&breath->Frame(6), &breath->deepest());
  EXPECT_EQ(&breath->Frame(12), &breath->Frame(0));
  // The wall moves on from frame to frame; at rest noise alone differs.
  for (int64_t n = 0; n < 6; ++n) {
    EXPECT_GT(Difference(breath->rest(), breath->Frame(n + 1)), Difference(breath->rest(), breath->Frame(n))) << n;
  }
  EXPECT_GT(Difference(breath->rest(), breath->Frame(0)), 0);
}

TEST(Breath, SeedsTellPatientsApart) {
  const auto one = Breath::Make(20, 1), again = Breath::Make(20, 1), other = Breath::Make(20, 2);
  ASSERT_TRUE(one.ok() && again.ok() && other.ok());
  EXPECT_EQ(one->rest().pixels, again->rest().pixels);
  EXPECT_EQ(one->Frame(3).pixels, again->Frame(3).pixels);
  EXPECT_NE(one->rest().pixels, other->rest().pixels);
}

TEST(Breath, TakesTheBytesThatItSays) {
  const auto breath = Breath::Make(17, 1);
  ASSERT_TRUE(breath.ok());
  int64_t bytes = static_cast<int64_t>(breath->rest().pixels.size());
  for (int64_t n = 0; n <= 6; ++n) bytes += static_cast<int64_t>(breath->Frame(n).pixels.size());
  EXPECT_EQ(bytes, Breath::Bytes(17));
}

TEST(Breath, RefusesASizeThatIsTooSmall) {
  EXPECT_EQ(Breath::Make(15, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace intrawarp::cli::bench
