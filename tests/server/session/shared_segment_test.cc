// SPDX-License-Identifier: Apache-2.0
// The segment itself: its layout, its copies, its check by the client, those that linger for the next session.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "io/file/crc32c.h"
#include "server/session/session_store.h"
#include "server/session/shared_memory.h"
#include "tests/client/process.h"
#include "tests/server/session/shared_memory_fixture.h"

namespace intrawarp::server {
namespace {

// Streams that end well, one after the other, whose clients read nothing: 64 segments stay, and an earlier one goes.
TEST(SharedSegmentTest, LingeringOnesAreBounded) {
  constexpr size_t kMostLingering = 64;
  const client::TemporaryFolder folder;
  Registry registry;
  const auto memory = SharedMemory::Start({folder / "socket", {}}, registry);
  ASSERT_OK(memory.status());
  const SharedMemory::Time now{};
  const wire::SegmentLayout layout = *wire::RoundLayout({0, 1, 0, 100});
  std::vector<std::weak_ptr<SharedSegment>> lingering;
  for (size_t i = 0; i < kMostLingering + 3; ++i) {
    auto segment =
        SharedSegment::Create(layout, std::string(wire::kSharedNonceBytes, 'n'), Grant(), (*memory)->metrics());
    ASSERT_OK(segment.status());
    const auto field = (*segment)->TakeField(100);
    ASSERT_NE(field, nullptr);
    (*segment)->Publish(*field, 100);
    lingering.push_back(*segment);
    (*memory)->KeepWhileRead(*std::move(segment), now);
  }
  for (size_t i = 0; i < lingering.size(); ++i) EXPECT_EQ(lingering[i].expired(), i < 3) << i;
  (*memory)->Expire(now + SharedMemoryOptions().reading_time);
  for (const auto& each : lingering) EXPECT_TRUE(each.expired());
}

TEST(SharedSegmentTest, Layouts) {
  EXPECT_EQ(wire::RoundLayout({2, 1, 1, 4097})->total_bytes(), 4096 + 2 * 4096 + 8192);
  EXPECT_EQ(wire::RoundLayout({0, 1, -1, 4096})->frame_slot_bytes, 0);
  for (const wire::SegmentLayout& wrong :
       {wire::SegmentLayout{17, 0, 1, 1}, wire::SegmentLayout{-1, 0, 1, 1}, wire::SegmentLayout{1, 1, 0, 1},
        wire::SegmentLayout{1, 1, 1, std::numeric_limits<int64_t>::max()}}) {
    EXPECT_FALSE(wire::RoundLayout(wrong).ok());
  }
}

// A frame is copied in pieces of 1 MiB.
TEST(SharedSegmentTest, FramesOfAnySizeAreCopiedWhole) {
  constexpr int64_t kPiece = 1 << 20, kMost = 3 * kPiece + 7;
  Registry registry;
  const SessionMetrics metrics(registry);
  const wire::SegmentLayout layout = *wire::RoundLayout({1, 0, kMost, 0});
  const auto segment = SharedSegment::Create(layout, std::string(wire::kSharedNonceBytes, 'n'), Grant(), metrics);
  ASSERT_OK(segment);
  const wire::Mapping client = *wire::Mapping::Map((*segment)->fd(), 0, layout.total_bytes(), /*writable=*/true);
  char* const frame = client.data() + layout.frame_offset(0);
  std::mt19937 random(7);
  std::generate(frame, frame + kMost, [&] { return static_cast<char>(random()); });
  for (const int64_t bytes : {int64_t{1}, kPiece - 1, kPiece, kPiece + 1, 2 * kPiece, kMost}) {
    std::string copy(bytes + 1, 'x');
    v1::SharedSlot slot;
    slot.set_generation(1);
    slot.set_crc32c(io::Crc32c(frame, bytes));
    const absl::StatusOr<uint32_t> checksum = (*segment)->CopyFrame(slot, bytes, copy.data());
    ASSERT_TRUE(checksum.ok()) << bytes << " bytes: " << checksum.status();
    EXPECT_EQ(*checksum, slot.crc32c());
    EXPECT_TRUE(std::equal(frame, frame + bytes, copy.begin())) << bytes;
    EXPECT_EQ(copy.back(), 'x') << bytes;
  }
}

// A client believes its server no more: a descriptor that could be cut short is not mapped.
TEST(SharedSegmentTest, TheClientChecksTheDescriptor) {
  const wire::SegmentLayout layout = *wire::RoundLayout({1, 1, 100, 100});
  const Fd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), layout.total_bytes()), 0);
  EXPECT_FALSE(wire::CheckSegment(unsealed.get(), layout).ok());
  ASSERT_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_OK(wire::CheckSegment(unsealed.get(), layout));
  EXPECT_FALSE(wire::CheckSegment(unsealed.get(), *wire::RoundLayout({2, 1, 100, 100})).ok());
  const Fd file(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(wire::CheckSegment(file.get(), layout).ok());
}

}  // namespace
}  // namespace intrawarp::server
