// SPDX-License-Identifier: Apache-2.0
#include "server/base/peer_address.h"

#include <gtest/gtest.h>

namespace intrawarp::server {
namespace {

PeerAddress At(const char* host, int port) { return {host, port}; }

TEST(PeerAddress, ReadsGrpcsWords) {
  EXPECT_EQ(ParsePeer("ipv4:10.0.0.7:50051"), At("10.0.0.7", 50051));
  EXPECT_EQ(ParsePeer("ipv6:%5B::1%5D:50051"), At("::1", 50051));
  EXPECT_EQ(ParsePeer("ipv6:[2001:db8:0:0::7]:1"), At("2001:db8::7", 1));
  EXPECT_EQ(ParsePeer("ipv6:%5Bfe80::1%25eth0%5D:1"), At("fe80::1", 1));
  EXPECT_EQ(ParsePeer("ipv6:[::ffff:10.0.0.7]:1"), At("10.0.0.7", 1));
  for (const char* text : {"", "unix:", "unix:/a/b", "ipv4:", "ipv4:10.0.0.7", "ipv4:host:1", "ipv6:[::1]:x"}) {
    EXPECT_EQ(ParsePeer(text), std::nullopt) << text;
  }
}

TEST(PeerAddress, OnePartyHasManyAddressesOfOneIpv6Network) {
  EXPECT_EQ(NetworkOf(At("10.0.0.7", 1)), "10.0.0.7");
  EXPECT_EQ(NetworkOf(At("2001:db8:1:2:3::4", 1)), NetworkOf(At("2001:db8:1:2:ffff::", 2)));
  EXPECT_NE(NetworkOf(At("2001:db8:1:2::1", 1)), NetworkOf(At("2001:db8:1:3::1", 1)));
}

}  // namespace
}  // namespace intrawarp::server
