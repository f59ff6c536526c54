// SPDX-License-Identifier: Apache-2.0
#include "server/page/page_stream.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/page/viewer_hub.h"
#include "tests/server/page/page_parts.h"

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Pieces of the test's own.
class Pieces final : public PageStream {
 public:
  explicit Pieces(const Seams& seams) : PageStream(seams) {}
  // The next piece; the stream has one when it is set.
  std::optional<std::string> next;
  // Whether the look for the next piece ends the stream.
  bool ends = false;
  int looks = 0;

 private:
  bool Begin() override {
    ++looks;
    if (ends) End();
    if (!next) return false;
    piece_ = *std::exchange(next, std::nullopt);
    return true;
  }
  size_t piece_bytes() const override { return piece_.size(); }
  size_t ReadPiece(size_t offset, char* to, size_t most) const override { return piece_.copy(to, most, offset); }

  std::string piece_;
};

// What a read gives: the bytes, or "end".
std::string ReadFrom(PageStream& stream, size_t most = 1 << 20) {
  std::string bytes(most, '?');
  const std::optional<size_t> count = stream.Read(bytes.data(), most);
  if (!count) return "end";
  bytes.resize(*count);
  return bytes;
}

// The packet that a stream has now; the test fails without one.
Json PacketFrom(PageStream& stream) {
  const std::string bytes = ReadFrom(stream);
  EXPECT_GT(bytes.size(), 16);
  if (bytes.size() <= 16) return {};
  uint32_t rest = 0, head = 0;
  std::memcpy(&rest, bytes.data(), sizeof(rest));
  std::memcpy(&head, bytes.data() + 4, sizeof(head));
  EXPECT_EQ(rest + sizeof(rest), bytes.size()) << "one packet at a time";
  return Json::parse(bytes.substr(16, head), nullptr, /*allow_exceptions=*/false);
}

class PageStreamTest : public testing::Test {
 protected:
  PageParts parts_;
};

TEST_F(PageStreamTest, NothingIsSentBeforeItsRecord) {
  Pieces stream(parts_.seams());
  stream.next = "piece";
  EXPECT_EQ(ReadFrom(stream), "");
  EXPECT_EQ(stream.looks, 0);
  stream.SetRecorded();
  EXPECT_EQ(ReadFrom(stream), "piece");
  EXPECT_EQ(ReadFrom(stream), "") << "nothing for now";
}

TEST_F(PageStreamTest, APieceIsSentWholeBeforeTheNext) {
  Pieces stream(parts_.seams());
  stream.SetRecorded();
  stream.next = "0123456789";
  EXPECT_EQ(ReadFrom(stream, 4), "0123");
  stream.next = "newer";
  EXPECT_EQ(ReadFrom(stream, 4), "4567");
  EXPECT_EQ(stream.looks, 1);
  EXPECT_EQ(ReadFrom(stream, 4), "89");
  EXPECT_EQ(ReadFrom(stream, 4), "newe");
  stream.End();
  EXPECT_EQ(ReadFrom(stream, 4), "r") << "a piece that was begun ends";
  EXPECT_EQ(ReadFrom(stream, 4), "end");
}

TEST_F(PageStreamTest, AStreamThatEndsHasNoMorePieces) {
  Pieces stream(parts_.seams());
  stream.next = "piece";
  stream.End();
  EXPECT_EQ(ReadFrom(stream), "end") << "recorded or not";
  Pieces other(parts_.seams());
  other.SetRecorded();
  other.ends = true;
  EXPECT_EQ(ReadFrom(other), "end") << "not 0, which is asked again";
}

TEST_F(PageStreamTest, AViewerWhoIsTooSlowLosesTheStream) {
  Pieces stream(parts_.seams());
  stream.SetRecorded();
  stream.next = "0123456789";
  EXPECT_EQ(ReadFrom(stream, 4), "0123");
  parts_.Advance(seconds(60));
  EXPECT_EQ(ReadFrom(stream, 4), "4567");
  parts_.Advance(milliseconds(1));
  EXPECT_EQ(ReadFrom(stream, 4), "end");
  // The time between pieces does not count.
  Pieces other(parts_.seams());
  other.SetRecorded();
  other.next = "one";
  EXPECT_EQ(ReadFrom(other), "one");
  parts_.Advance(seconds(600));
  other.next = "two";
  EXPECT_EQ(ReadFrom(other), "two");
}

class PacketStreamTest : public PageStreamTest {
 protected:
  std::unique_ptr<PacketStream> Stream(PacketKind kind) {
    auto stream = std::make_unique<PacketStream>(parts_.seams(), session_, view_, kind, [this] {
      ++asked_;
      return may_see_;
    });
    stream->SetRecorded();
    return stream;
  }
  void Show(int64_t number) {
    view_->Take(parts_.Frame(number));
    EXPECT_TRUE(view_->Work());
  }

  std::shared_ptr<NavigateSession> session_ = parts_.Open("s");
  std::shared_ptr<SessionView> view_ = std::make_shared<SessionView>(session_, [] {});
  bool may_see_ = true;
  int asked_ = 0;
};

TEST_F(PacketStreamTest, ItsViewerSkipsToTheNewestPicture) {
  const auto stream = Stream(PacketKind::kPictures);
  Show(1);
  Show(2);
  const Json packet = PacketFrom(*stream);
  EXPECT_EQ(packet["frame"], 2);
  EXPECT_EQ(packet["parts"].size(), 2);
  EXPECT_EQ(ReadFrom(*stream), "") << "it was shown";
  Show(3);
  EXPECT_EQ(PacketFrom(*stream)["frame"], 3);
}

TEST_F(PacketStreamTest, HeadsAreWithoutVoxels) {
  Show(1);
  const auto stream = Stream(PacketKind::kHeads);
  const Json packet = PacketFrom(*stream);
  EXPECT_EQ(packet["frame"], 1);
  EXPECT_EQ(packet["parts"].size(), 0);
}

TEST_F(PacketStreamTest, AStreamWithoutNewsSaysSoEachSecond) {
  const auto stream = Stream(PacketKind::kPictures);
  Json packet = PacketFrom(*stream);
  EXPECT_EQ(packet, Json::parse(R"({"parts":[]})")) << "at once: its viewer knows that it is there";
  EXPECT_EQ(ReadFrom(*stream), "");
  parts_.Advance(milliseconds(999));
  EXPECT_EQ(ReadFrom(*stream), "");
  parts_.Advance(milliseconds(1));
  EXPECT_EQ(PacketFrom(*stream)["parts"].size(), 0);
  parts_.Advance(milliseconds(600));
  Show(1);
  EXPECT_EQ(PacketFrom(*stream)["frame"], 1);
  parts_.Advance(milliseconds(600));
  EXPECT_EQ(ReadFrom(*stream), "") << "a picture counts, too";
}

TEST_F(PacketStreamTest, EachPacketHasTheTimeOfItsBegin) {
  Show(1);
  const auto stream = Stream(PacketKind::kHeads);
  parts_.Advance(milliseconds(250));
  const double now = SecondsOf(parts_.now());
  std::string bytes = ReadFrom(*stream, 10);
  parts_.Advance(seconds(1));
  bytes += ReadFrom(*stream);
  double time = 0;
  std::memcpy(&time, bytes.data() + 8, sizeof(time));
  EXPECT_EQ(time, now);
}

TEST_F(PacketStreamTest, TheResidentImageComesOnceAndEndsIt) {
  const auto stream = Stream(PacketKind::kReference);
  EXPECT_EQ(ReadFrom(*stream), "") << "it is being made";
  EXPECT_TRUE(view_->Work());
  EXPECT_EQ(PacketFrom(*stream)["image"]["role"], "fixed");
  EXPECT_EQ(ReadFrom(*stream), "end");
}

TEST_F(PacketStreamTest, WhoMayNotSeeItAnyMoreIsNoticedWithinASecond) {
  const auto stream = Stream(PacketKind::kPictures);
  (void)PacketFrom(*stream);
  EXPECT_EQ(asked_, 1);
  may_see_ = false;
  parts_.Advance(milliseconds(999));
  Show(1);
  EXPECT_EQ(PacketFrom(*stream)["frame"], 1);
  EXPECT_EQ(asked_, 1) << "tokens are not checked for each frame";
  parts_.Advance(milliseconds(1));
  Show(2);
  EXPECT_EQ(ReadFrom(*stream), "end");
  EXPECT_EQ(asked_, 2);
}

TEST_F(PacketStreamTest, EndsWithItsSession) {
  const auto stream = Stream(PacketKind::kPictures);
  Show(1);
  session_->Close(absl::OkStatus());
  EXPECT_EQ(ReadFrom(*stream), "end");
}

class StateStreamTest : public PageStreamTest {
 protected:
  std::unique_ptr<StateStream> Stream() {
    auto stream = std::make_unique<StateStream>(
        parts_.seams(), parts_.context(), hub_, [this] { return who_; }, Identity{"ann", Role::kFrame});
    stream->SetRecorded();
    return stream;
  }

  ViewerHub hub_{parts_.seams(), [] {}};
  absl::StatusOr<Identity> who_ = Identity{"ann", Role::kFrame};
};

TEST_F(StateStreamTest, HasALineEachHalfSecond) {
  const auto stream = Stream();
  std::string line = ReadFrom(*stream);
  EXPECT_EQ(line.back(), '\n');
  EXPECT_EQ(Json::parse(line)["caller"], "ann");
  EXPECT_EQ(Json::parse(line)["now"], SecondsOf(parts_.now()));
  EXPECT_EQ(ReadFrom(*stream), "");
  parts_.Advance(milliseconds(499));
  EXPECT_EQ(ReadFrom(*stream), "");
  parts_.Advance(milliseconds(1));
  line = ReadFrom(*stream, 5);
  line += ReadFrom(*stream);
  EXPECT_EQ(Json::parse(line)["now"], SecondsOf(parts_.now()));
}

TEST_F(StateStreamTest, EndsWhenItsCallerIsAnotherOneOrNone) {
  auto stream = Stream();
  (void)ReadFrom(*stream);
  who_ = Identity{"bob", Role::kFrame};
  parts_.Advance(seconds(1));
  EXPECT_EQ(ReadFrom(*stream), "end");
  stream = Stream();
  who_ = absl::UnauthenticatedError("the token is gone");
  EXPECT_EQ(ReadFrom(*stream), "end");
}

// Roles are those that the caller has now: an admin's line tells more.
TEST_F(StateStreamTest, TellsWhatItsCallerMaySeeNow) {
  const auto theirs = parts_.Open("theirs", "bob");
  const auto stream = Stream();
  EXPECT_EQ(Json::parse(ReadFrom(*stream))["sessions"].size(), 0);
  who_ = Identity{"ann", Role::kAdmin};
  parts_.Advance(seconds(1));
  EXPECT_EQ(Json::parse(ReadFrom(*stream))["sessions"].size(), 1);
}

}  // namespace
}  // namespace intrawarp::server
