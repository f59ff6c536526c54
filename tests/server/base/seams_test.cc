// SPDX-License-Identifier: Apache-2.0
#include "server/base/seams.h"

#include <gtest/gtest.h>

#include "server/base/names.h"

namespace intrawarp::server {
namespace {

TEST(RandomId, ComesFromTheSeam) {
  Seams seams = SystemSeams();
  EXPECT_TRUE(IsValidId(RandomId(seams)));
  EXPECT_NE(RandomId(seams), RandomId(seams));
  uint32_t next = 0xab;
  seams.random = [&next] { return next++; };
  EXPECT_EQ(RandomId(seams), "000000ab000000ac");
}

}  // namespace
}  // namespace intrawarp::server
