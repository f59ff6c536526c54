// SPDX-License-Identifier: Apache-2.0
#include "server/base/paging.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/base/field_error.h"

namespace intrawarp::server {
namespace {

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
