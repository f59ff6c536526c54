// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/server_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/server_names.h"

namespace intrawarp::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

constexpr int kKeys = 5000;

std::vector<std::string> Addresses(int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::string> addresses;
  for (int i = 0; i < count; ++i) addresses.push_back(absl::StrCat("10.0.", i, ".", random() % 256, ":50051"));
  return addresses;
}

std::vector<std::string> Keys() {
  std::mt19937_64 random(std::random_device{}());
  std::vector<std::string> keys;
  for (int i = 0; i < kKeys; ++i) keys.push_back(absl::StrCat(absl::Hex(random()), absl::Hex(random())));
  return keys;
}

// Each count is binomial: five standard deviations.
void ExpectEvenlySpread(const std::map<std::string, int>& counts, size_t servers, int keys) {
  const double share = 1.0 / static_cast<double>(servers);
  const double deviation = std::sqrt(keys * share * (1 - share));
  EXPECT_EQ(counts.size(), servers);
  for (const auto& [address, count] : counts) EXPECT_NEAR(count, keys * share, 5 * deviation + 1) << address;
}

TEST(ServerSetTest, EveryServerOwnsItsShareOfTheKeys) {
  for (const int servers : {1, 2, 3, 7}) {
    const ServerSet set(Addresses(servers, 1));
    std::map<std::string, int> owned;
    for (const std::string& key : Keys()) ++owned[set.Order(key).front()];
    ExpectEvenlySpread(owned, static_cast<size_t>(servers), kKeys);
  }
}

TEST(ServerSetTest, TheOrderHasAllServersAndDoesNotDependOnTheirs) {
  std::vector<std::string> addresses = Addresses(5, 2);
  const ServerSet set(addresses);
  std::shuffle(addresses.begin(), addresses.end(), std::mt19937(std::random_device{}()));
  addresses.push_back(addresses.front());
  const ServerSet shuffled(addresses);
  EXPECT_EQ(set.addresses(), shuffled.addresses());
  for (int i = 0; i < 100; ++i) {
    const std::string key = absl::StrCat("key ", i);
    EXPECT_THAT(set.Order(key), UnorderedElementsAreArray(set.addresses()));
    EXPECT_EQ(set.Order(key), shuffled.Order(key));
  }
}

TEST(ServerSetTest, AServerThatGoesMovesItsKeysAlone) {
  std::vector<std::string> addresses = Addresses(5, 3);
  const ServerSet before(addresses);
  const std::string gone = addresses[2];
  addresses.erase(addresses.begin() + 2);
  const ServerSet after(addresses);
  std::map<std::string, int> moved_to;
  int moved = 0;
  for (const std::string& key : Keys()) {
    std::vector<std::string> expected = before.Order(key);
    const bool was_owned = expected.front() == gone;
    expected.erase(std::find(expected.begin(), expected.end(), gone));
    ASSERT_EQ(after.Order(key), expected);
    if (!was_owned) continue;
    ++moved;
    ++moved_to[expected.front()];
  }
  // What it owned is spread over all that stay.
  ExpectEvenlySpread(moved_to, 4, moved);
}

TEST(ServerSetTest, AServerThatComesTakesItsShareAndNothingElseMoves) {
  std::vector<std::string> addresses = Addresses(4, 4);
  const ServerSet before(addresses);
  addresses.push_back("10.9.9.9:50051");
  const ServerSet after(addresses);
  int taken = 0;
  for (const std::string& key : Keys()) {
    const std::string owner = after.Order(key).front();
    taken += owner == "10.9.9.9:50051";
    ASSERT_TRUE(owner == "10.9.9.9:50051" || owner == before.Order(key).front());
  }
  EXPECT_NEAR(taken, kKeys / 5, 5 * std::sqrt(kKeys * 0.2 * 0.8));
}

// Other clients compute the same: printf 'a:1\nk' | sha256sum and so on.
TEST(ServerSetTest, TheWeightIsTheBeginningOfASha256) {
  const ServerSet set({"a:1", "b:2", "c:3"});
  EXPECT_THAT(set.Order("k"), ElementsAre("c:3", "b:2", "a:1"));
  EXPECT_THAT(set.Order(""), ElementsAre("c:3", "a:1", "b:2"));
}

TEST(ServerSetTest, NoServerIsNoOrder) { EXPECT_TRUE(ServerSet({}).Order("k").empty()); }

TEST(ServerNamesTest, ListsAndNames) {
  const auto targets = [](const std::string& target) { return ParseServerNames(target)->targets; };
  EXPECT_THAT(targets("localhost:1"), ElementsAre("localhost:1"));
  EXPECT_THAT(targets("unix:/run/intrawarp"), ElementsAre("unix:/run/intrawarp"));
  EXPECT_THAT(targets("ipv4:1.2.3.4:5"), ElementsAre("ipv4:1.2.3.4:5"));
  EXPECT_THAT(targets("dns://8.8.8.8/a:1"), ElementsAre("dns://8.8.8.8/a:1"));
  EXPECT_THAT(targets("a:1,b.c:65535"), ElementsAre("a:1", "b.c:65535"));
  EXPECT_THAT(targets("a:1,[::1]:2"), ElementsAre("a:1", "[::1]:2"));
  EXPECT_THAT(targets("ipv4:1.2.3.4:5,1.2.3.5:6"), ElementsAre("ipv4:1.2.3.4:5", "ipv4:1.2.3.5:6"));
  EXPECT_THAT(targets("ipv4:///1.2.3.4:5,1.2.3.5:6"), ElementsAre("ipv4:1.2.3.4:5", "ipv4:1.2.3.5:6"));
  EXPECT_THAT(targets("ipv6:[::1]:5,[::2]:6"), ElementsAre("ipv6:[::1]:5", "ipv6:[::2]:6"));
  for (const char* name : {"dns:///a.b:50051", "dns:a.b:50051"}) {
    const auto names = ParseServerNames(name);
    ASSERT_TRUE(names.ok()) << names.status();
    EXPECT_EQ(names->dns_name, "a.b:50051");
    EXPECT_TRUE(names->targets.empty());
  }
}

TEST(ServerNamesTest, WrongListsAreRefused) {
  for (const char* target : {",",         "a:1,",        ",a:1",    "a:1,,b:2",  "a,b",        "a:1,b",     "a:1,b:",
                             "a:1,b:0",   "a:1,b:65536", "a:1,:2",  "a:1,::1:2", "a:1,[::1:2", "a:1,b:2x",  "::1",
                             "::1:50051", "fe80::1:2",   "dns:///", "dns:///a",  "dns:///:1",  "dns:///a:b"}) {
    const auto names = ParseServerNames(target);
    EXPECT_EQ(names.status().code(), absl::StatusCode::kInvalidArgument) << target;
    EXPECT_THAT(std::string(names.status().message()), HasSubstr("target: ")) << target;
  }
  std::string many = "a:1";
  for (int i = 0; i < 256; ++i) absl::StrAppend(&many, ",b:", i + 1);
  EXPECT_EQ(ParseServerNames(many).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ServerNamesTest, ANameHasOneAddressAServer) {
  const auto found = Resolve("localhost:77", std::chrono::seconds(30));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(*found, ElementsAre("ipv4:127.0.0.1:77"));
  const auto literal = Resolve("[::1]:78", std::chrono::seconds(30));
  ASSERT_TRUE(literal.ok()) << literal.status();
  EXPECT_THAT(*literal, ElementsAre("ipv6:[::1]:78"));
  EXPECT_EQ(Resolve("no-such-name.invalid:1", std::chrono::seconds(30)).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace intrawarp::client
