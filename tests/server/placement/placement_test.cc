// SPDX-License-Identifier: Apache-2.0
#include "server/placement/placement.h"

#include <gtest/gtest.h>

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(PlacementTest, WithoutADifferenceTheFirstIsTaken) {
  EXPECT_EQ(PlaceWork({{}, {}, {}}), 0);
  EXPECT_EQ(PlaceSession({{}, {}, {}}), 0);
}

TEST(PlacementTest, WorkGoesWhereItsInputsAre) {
  EXPECT_EQ(PlaceWork({{.copy = milliseconds(1)}, {}}), 1);
  EXPECT_EQ(PlaceWork({{.copy = milliseconds(3)}, {.copy = milliseconds(2)}}), 1);
}

TEST(PlacementTest, WorkGoesElsewhereWhenCopyingIsCheaperThanWaiting) {
  EXPECT_EQ(PlaceWork({{.wait = milliseconds(5)}, {.copy = milliseconds(11)}}), 0);
  EXPECT_EQ(PlaceWork({{.wait = milliseconds(50)}, {.copy = milliseconds(11)}}), 1);
  EXPECT_EQ(PlaceWork({{.wait = milliseconds(50)}, {.copy = milliseconds(11), .wait = milliseconds(45)}}), 0);
}

TEST(PlacementTest, AFailedDeviceGetsNothing) {
  EXPECT_EQ(PlaceWork({{.usable = false}, {.copy = milliseconds(11), .wait = seconds(9)}}), 1);
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
  EXPECT_EQ(PlaceSession({{.load = 0.4}, {.copy = milliseconds(11), .load = 0.3}}), 1);
  EXPECT_EQ(PlaceSession({{.load = 0.4}, {.load = 0.8}}), 0);
}

TEST(PlacementTest, AmongEquallyLoadedDevicesASessionGoesWhereItsVolumeIs) {
  EXPECT_EQ(PlaceSession({{.copy = milliseconds(1), .load = 0.30}, {.load = 0.31}}), 1);
  EXPECT_EQ(PlaceSession({{.usable = false, .load = 0}, {.copy = milliseconds(1), .load = 0.30}, {.load = 0.31}}), 2);
}

}  // namespace
}  // namespace intrawarp::server
