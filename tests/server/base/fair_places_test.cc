// SPDX-License-Identifier: Apache-2.0
#include "server/base/fair_places.h"

#include <gtest/gtest.h>

namespace intrawarp::server {
namespace {

TEST(FairPlaces, TheOldestOfTheFullestNetworkGivesWay) {
  FairPlaces places;
  EXPECT_EQ(places.GivesWayFor("a"), std::nullopt);
  places.Enter("a", 1);
  for (FairPlaces::Id id = 2; id <= 4; ++id) places.Enter("b", id);
  EXPECT_EQ(places.size(), 4u);
  EXPECT_EQ(places.GivesWayFor("a"), 2u);
  EXPECT_EQ(places.GivesWayFor("b"), 2u);
  EXPECT_EQ(places.GivesWayFor("c"), 2u);
  places.Leave("b", 2);
  EXPECT_EQ(places.GivesWayFor("c"), 3u);
}

TEST(FairPlaces, AmongEquallyFullOnesTheNewcomersOwn) {
  FairPlaces places;
  places.Enter("a", 1);
  places.Enter("b", 2);
  EXPECT_EQ(places.GivesWayFor("a"), 1u);
  EXPECT_EQ(places.GivesWayFor("b"), 2u);
}

// A flood of which each connection has an address of its own.
TEST(FairPlaces, AmongEquallyFullOthersTheOldest) {
  FairPlaces places;
  places.Enter("b", 1);
  places.Enter("a", 2);
  places.Enter("c", 3);
  EXPECT_EQ(places.GivesWayFor("d"), 1u);
  places.Leave("b", 1);
  places.Enter("d", 4);
  EXPECT_EQ(places.GivesWayFor("e"), 2u);
  // Whatever the older ones have said.
  places.Leave("a", 2);
  places.Enter("a", 2, 1);
  EXPECT_EQ(places.GivesWayFor("e"), 2u);
}

TEST(FairPlaces, ALowerRankGivesWayFirst) {
  FairPlaces places;
  places.Enter("a", 1, 1);
  places.Enter("a", 2, 0);
  places.Enter("a", 3, 1);
  EXPECT_EQ(places.GivesWayFor("b"), 2u);
  places.Leave("a", 2, 1);  // not with this rank
  EXPECT_EQ(places.GivesWayFor("b"), 2u);
  EXPECT_EQ(places.GivesWayFor("b", 1), 1u);
  EXPECT_EQ(places.GivesWayFor("b", 2), 2u);
  places.Leave("a", 2, 0);
  EXPECT_EQ(places.GivesWayFor("b"), 1u);
  places.Leave("a", 1, 1);
  places.Leave("a", 3, 1);
  EXPECT_EQ(places.size(), 0u);
  EXPECT_EQ(places.GivesWayFor("b"), std::nullopt);
}

}  // namespace
}  // namespace intrawarp::server
