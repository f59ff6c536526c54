// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/staging_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <utility>

namespace intrawarp::server {
namespace {

TEST(StagingMemory, IsEmptyByDefault) { EXPECT_EQ(StagingMemory().data(), nullptr); }

TEST(StagingMemory, EveryByteIsThereAndPagesBeginIt) {
  const int64_t bytes = 3 * sysconf(_SC_PAGESIZE) + 17;
  absl::StatusOr<StagingMemory> memory = StagingMemory::Reserve(bytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  char* const data = memory->data();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), 0);
  EXPECT_EQ(data[0], 0);
  data[0] = 'a';
  data[bytes - 1] = 'z';
  EXPECT_EQ(data[0], 'a');
  EXPECT_EQ(data[bytes - 1], 'z');
}

TEST(StagingMemory, MovesWithItsBytes) {
  absl::StatusOr<StagingMemory> memory = StagingMemory::Reserve(8);
  ASSERT_TRUE(memory.ok());
  char* const data = memory->data();
  data[7] = 'x';
  StagingMemory moved = *std::move(memory);
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(memory->data(), nullptr);  // NOLINT(bugprone-use-after-move): it is empty then
  StagingMemory assigned;
  assigned = std::move(moved);
  EXPECT_EQ(assigned.data(), data);
  EXPECT_EQ(assigned.data()[7], 'x');
}

TEST(StagingMemory, MoreThanThereAreAddressesIsAnError) {
  const absl::Status status = StagingMemory::Reserve(std::numeric_limits<int64_t>::max()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace intrawarp::server
