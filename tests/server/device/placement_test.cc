// SPDX-License-Identifier: Apache-2.0
#include "server/device/placement.h"

#include <gtest/gtest.h>

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kMB = 1000000;

TEST(PlacementTest, WithoutADifferenceTheFirstIsTaken) {
  EXPECT_EQ(PlaceWork({{}, {}, {}}), 0);
  EXPECT_EQ(PlaceSession({{}, {}, {}}), 0);
}

TEST(PlacementTest, WorkGoesWhereItsInputsAre) {
  EXPECT_EQ(PlaceWork({{.missing_bytes = 1}, {}}), 1);
  EXPECT_EQ(PlaceWork({{.missing_bytes = 20 * kMB}, {.missing_bytes = 10 * kMB}}), 1);
}

TEST(PlacementTest, WorkGoesElsewhereWhenCopyingIsCheaperThanWaiting) {
  // 100 MB take some 10 ms.
  EXPECT_EQ(PlaceWork({{.wait = milliseconds(5)}, {.missing_bytes = 100 * kMB}}), 0);
  EXPECT_EQ(PlaceWork({{.wait = milliseconds(50)}, {.missing_bytes = 100 * kMB}}), 1);
  EXPECT_EQ(PlaceWork({{.wait = milliseconds(50)}, {.missing_bytes = 100 * kMB, .wait = milliseconds(45)}}), 0);
}

TEST(PlacementTest, AFailedDeviceGetsNothing) {
  EXPECT_EQ(PlaceWork({{.usable = false}, {.missing_bytes = 100 * kMB, .wait = seconds(9)}}), 1);
  EXPECT_EQ(PlaceSession({{.usable = false}, {.load = 3}}), 1);
  EXPECT_EQ(PlaceWork({{.usable = false}, {.usable = false}}), std::nullopt);
  EXPECT_EQ(PlaceSession({{.usable = false}, {.usable = false}}), std::nullopt);
}

TEST(PlacementTest, RoomGoesBeforeSpeed) {
  EXPECT_EQ(PlaceWork({{.fits = false}, {.wait = seconds(1)}}), 1);
  EXPECT_EQ(PlaceSession({{.fits = false}, {.load = 2}}), 1);
  // Admission says what is missing.
  EXPECT_EQ(PlaceWork({{.fits = false, .wait = seconds(1)}, {.fits = false}}), 1);
  EXPECT_EQ(PlaceSession({{.fits = false, .load = 0.5}, {.fits = false}}), 1);
}

TEST(PlacementTest, ASessionGoesToTheLeastLoadedDevice) {
  EXPECT_EQ(PlaceSession({{.load = 0.4}, {.missing_bytes = 100 * kMB, .load = 0.3}}), 1);
  EXPECT_EQ(PlaceSession({{.load = 0.4}, {.load = 0.8}}), 0);
}

TEST(PlacementTest, AmongEquallyLoadedDevicesASessionGoesWhereItsVolumeIs) {
  EXPECT_EQ(PlaceSession({{.missing_bytes = kMB, .load = 0.30}, {.load = 0.31}}), 1);
  EXPECT_EQ(PlaceSession({{.usable = false, .load = 0}, {.missing_bytes = kMB, .load = 0.30}, {.load = 0.31}}), 2);
}

}  // namespace
}  // namespace intrawarp::server
