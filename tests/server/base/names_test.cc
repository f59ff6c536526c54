// SPDX-License-Identifier: Apache-2.0
#include "server/base/names.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/field_error.h"

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

}  // namespace
}  // namespace intrawarp::server
