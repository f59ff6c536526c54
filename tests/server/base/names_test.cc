// SPDX-License-Identifier: Apache-2.0
#include "server/base/names.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"

namespace intrawarp::server {
namespace {

TEST(Names, RoundTripAndRefusal) {
  EXPECT_EQ(*ParseVolumeName(VolumeName("a.B_c-9"), "name"), "a.B_c-9");
  EXPECT_EQ(*ParseTransformName(TransformName("0"), "name"), "0");
  const std::string longest(63, 'x');
  EXPECT_EQ(*ParseVolumeName("volumes/" + longest, "name"), longest);
  const std::vector<std::string> bad = {"",
                                        "liver",
                                        "volumes/",
                                        "volumes/-a",
                                        "volumes/.a",
                                        "volumes/a/b",
                                        "volumes/a b",
                                        "volumes/" + longest + "x",
                                        "transforms/a",
                                        "volumes/a\n",
                                        "/volumes/a"};
  for (const std::string& name : bad) {
    const auto id = ParseVolumeName(name, "fixed");
    EXPECT_EQ(id.status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(FieldOf(id.status()), "fixed") << name;
  }
  EXPECT_EQ(ParseTransformName("volumes/a", "name").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RandomId, ComesFromTheSeam) {
  Seams seams = SystemSeams();
  EXPECT_TRUE(IsValidId(RandomId(seams)));
  EXPECT_NE(RandomId(seams), RandomId(seams));
  uint32_t next = 0xab;
  seams.random = [&next] { return next++; };
  EXPECT_EQ(RandomId(seams), "000000ab000000ac");
}

TEST(Pages, SizesAndTokens) {
  EXPECT_EQ(*PageSize(0), 100);
  EXPECT_EQ(*PageSize(7), 7);
  EXPECT_EQ(*PageSize(5000), 1000);
  EXPECT_EQ(FieldOf(PageSize(-1).status()), "page_size");
  EXPECT_EQ(*ParsePageToken("volumes", ""), "");
  const std::string token = PageToken("volumes", "liver.1");
  EXPECT_EQ(token.find("liver"), std::string::npos);
  EXPECT_EQ(*ParsePageToken("volumes", token), "liver.1");
  for (const std::string& bad : {std::string("liver.1"), token.substr(1), token + "A", PageToken("transforms", "a")}) {
    EXPECT_EQ(FieldOf(ParsePageToken("volumes", bad).status()), "page_token") << bad;
  }
}

}  // namespace
}  // namespace intrawarp::server
