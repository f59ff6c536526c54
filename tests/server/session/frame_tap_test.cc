// SPDX-License-Identifier: Apache-2.0
// Who looks on takes what frames leave behind, and costs them nothing.
#include "server/session/frame_tap.h"

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/server/session/session_fixture.h"

namespace intrawarp::server {
namespace {

class Keeper final : public FrameTap {
 public:
  void Take(TappedFrame frame) override {
    std::lock_guard<std::mutex> lock(mutex_);
    frames_.push_back(std::move(frame));
  }
  std::vector<TappedFrame>& frames() { return frames_; }

 private:
  std::mutex mutex_;
  std::vector<TappedFrame> frames_;
};

class FrameTapTest : public SessionTest {
 protected:
  FrameTapTest() { context().sessions.set_has_taps(true); }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(FrameTapTest);

TEST_P(FrameTapTest, TakesWhatAFrameLeavesBehind) {
  auto carrier = Open(RigidConfig());
  const auto tap = std::make_shared<Keeper>();
  carrier->session().set_tap(tap);
  ASSERT_OK(carrier->Send(GoodFrame(1)));
  const v1::FrameResult& answer = Answers(*carrier, 1)[0];
  ASSERT_EQ(tap->frames().size(), 1u);
  const TappedFrame& frame = tap->frames()[0];
  EXPECT_EQ(frame.number, 1);
  EXPECT_EQ(frame.report.verdict(), answer.report().verdict());
  EXPECT_TRUE(SameGrid(frame.geometry, Grid()));
  const std::vector<float> sent = MovingFrame(Grid(), 1);
  EXPECT_EQ(std::vector<float>(frame.pixels->as<float>(), frame.pixels->as<float>() + sent.size()), sent);
  EXPECT_LT(Distance(frame.transform.affine(), MapOfFrame(1)), 0.25);
  // The client did not ask for the map that the tap has.
  EXPECT_FALSE(answer.report().has_error_map());
  tap->frames().clear();
}

TEST_P(FrameTapTest, LendsNoMoreBuffersThanItHasBeside) {
  auto carrier = Open(RigidConfig());
  const auto tap = std::make_shared<Keeper>();
  carrier->session().set_tap(tap);
  for (int n = 1; n <= 6; ++n) {
    ASSERT_OK(carrier->Send(GoodFrame(n)));
    EXPECT_EQ(Answers(*carrier, n).back().status().code(), 0);
  }
  EXPECT_EQ(tap->frames().size(), static_cast<size_t>(kLentBuffers));
  tap->frames().clear();
  ASSERT_OK(carrier->Send(GoodFrame(7)));
  Answers(*carrier, 7);
  EXPECT_EQ(tap->frames().size(), 1u);
  tap->frames().clear();
}

TEST_P(FrameTapTest, TellsHowTheLastFramesEnded) {
  auto carrier = Open(RigidConfig());
  for (int n = 1; n <= 3; ++n) ASSERT_OK(carrier->Send(GoodFrame(n)));
  Answers(*carrier, 3);
  const std::vector<AnsweredFrame> all = carrier->session().AnsweredSince(0);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[2].number, 3);
  EXPECT_EQ(all[2].fate, FrameFate::kOk);
  EXPECT_EQ(carrier->session().AnsweredSince(all[1].sequence).size(), 1u);
}

TEST_P(FrameTapTest, AClosedSessionLetsGoOfItsTap) {
  auto carrier = Open(RigidConfig());
  const auto tap = std::make_shared<Keeper>();
  carrier->session().set_tap(tap);
  carrier->Finish();
  EXPECT_EQ(tap.use_count(), 1);
}

}  // namespace
}  // namespace intrawarp::server
