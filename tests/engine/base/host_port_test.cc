// SPDX-License-Identifier: Apache-2.0
#include "engine/base/host_port.h"

#include <gtest/gtest.h>

namespace intrawarp {
namespace {

TEST(HostPort, ReadsNamesAndAddresses) {
  for (const char* text : {"127.0.0.1:0", "localhost:50051", "or-3.hospital.example:65535", "my_host:1", "[::1]:0",
                           "[2001:db8::7]:443", "[fe80::1%eth0]:1", "[::ffff:10.0.0.1]:80", "0.0.0.0:1"}) {
    const absl::StatusOr<HostPort> address = ParseHostPort(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(FormatHostPort(*address), text);
  }
  EXPECT_EQ(ParseHostPort("[::1]:50051")->host, "::1");
  EXPECT_EQ(ParseHostPort("[::1]:50051")->port, 50051);
}

TEST(HostPort, RefusesWhatCouldBeMisread) {
  for (
      const char* text :
      {"",      ":",      ":1",     "host",   "host:", "::1",           "::1:0",         "::",          "fe80::1:50051",
       "[::1]", "[::1:0", "::1]:0", "[::1]0", "[]:0",  "[localhost]:1", "[127.0.0.1]:1", "[[::1]]:0",   "h:65536",
       "h:-1",  "h:+1",   "h: 1",   "h:1 ",   " h:1",  "h:1x",          "h:000001",      "http://h:80", "a b:1",
       "a/b:1"}) {
    const absl::StatusOr<HostPort> address = ParseHostPort(text);
    ASSERT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(address.status().message().find("[::1]:50051"), absl::string_view::npos);
  }
}

}  // namespace
}  // namespace intrawarp
