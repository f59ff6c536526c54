// SPDX-License-Identifier: Apache-2.0
#include "server/page/session_view.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/server/page/page_parts.h"

namespace intrawarp::server {
namespace {

class SessionViewTest : public testing::Test {
 protected:
  void Open(bool resident_is_fixed = true) {
    session_ = parts_.Open("s", "ann", resident_is_fixed);
    view_ = std::make_shared<SessionView>(session_, [this] { ++changes_; });
  }
  // The picture of this frame.
  std::shared_ptr<const FramePicture> Shown(TappedFrame frame) {
    view_->Take(std::move(frame));
    EXPECT_TRUE(view_->Work());
    return view_->picture();
  }

  PageParts parts_;
  std::shared_ptr<NavigateSession> session_;
  int changes_ = 0;
  std::shared_ptr<SessionView> view_;
};

TEST_F(SessionViewTest, TheResidentImageIsMadeOnceForAll) {
  Open();
  EXPECT_TRUE(view_->resident_is_fixed());
  EXPECT_EQ(view_->reference(), nullptr);
  EXPECT_TRUE(view_->Work());
  EXPECT_EQ(changes_, 1);
  ASSERT_NE(view_->reference(), nullptr);
  const Json head = HeadIn(*view_->reference());
  EXPECT_EQ(head["image"]["role"], "fixed");
  EXPECT_EQ(head["image"]["grid"], GridJson(PageParts::Grid()));
  EXPECT_EQ(head["image"]["type"], "i16");
  EXPECT_EQ(head["parts"][0][0], "image");
  EXPECT_EQ(head["parts"][0][1], 2 * PageParts::Grid().voxels());
  const auto reference = view_->reference();
  EXPECT_FALSE(view_->Work()) << "nothing is missing";
  EXPECT_EQ(view_->reference(), reference);
  EXPECT_EQ(changes_, 1);
  EXPECT_EQ(view_->picture(), nullptr);
}

TEST_F(SessionViewTest, AFrameBecomesAPicture) {
  Open();
  TappedFrame frame = parts_.Frame(7);
  frame.report.set_verdict(v1::VERDICT_OK);
  frame.limit = std::chrono::milliseconds(50);
  frame.report.mutable_error()->set_expected_mm(1.5);
  const auto picture = Shown(std::move(frame));
  ASSERT_NE(picture, nullptr);
  EXPECT_EQ(picture->number, 7);
  const Json head = HeadIn(*picture->packet);
  EXPECT_EQ(head["frame"], 7);
  EXPECT_EQ(head["latency_ms"], 30);
  EXPECT_EQ(head["limit_ms"], 50);
  EXPECT_EQ(head["fate"], "ok");
  EXPECT_EQ(head["verdict"], "ok");
  EXPECT_EQ(head["reasons"].size(), 0);
  EXPECT_EQ(head["expected_error_mm"], 1.5);
  EXPECT_EQ(head["image"]["role"], "moving") << "the resident image is the fixed one";
  EXPECT_EQ(head["fixed"], GridJson(PageParts::Grid()));
  EXPECT_EQ(head["field"]["grid"], GridJson(CoarseGrid(PageParts::Grid())));
  EXPECT_FALSE(head.contains("error"));
  ASSERT_EQ(head["parts"].size(), 2);
  EXPECT_EQ(head["parts"][1][0], "field");
  ASSERT_TRUE(picture->field.has_value());
  EXPECT_NEAR(picture->field->Map({0, 0, 0}).x, 4, 0.01);
  // Viewers who take the server's planes get the same head and no voxels.
  Json bare = HeadIn(*picture->head);
  EXPECT_EQ(bare["parts"].size(), 0);
  bare["parts"] = head["parts"];
  EXPECT_EQ(bare, head);
}

TEST_F(SessionViewTest, ALateFrameAndOneForReviewSaySo) {
  Open(/*resident_is_fixed=*/false);
  EXPECT_FALSE(view_->resident_is_fixed());
  TappedFrame frame = parts_.Frame(8);
  frame.fate = FrameFate::kLate;
  frame.report.set_verdict(v1::VERDICT_REVIEW);
  v1::VerdictReason& reason = *frame.report.add_reasons();
  reason.set_message("the overlap is small");
  reason.set_value(0.25);
  reason.set_limit(0.5);
  frame.report.add_reasons()->set_message("bare");
  ErrorMap error;
  error.blocks = PageParts::Grid();
  error.expected_mm.assign(static_cast<size_t>(PageParts::Grid().voxels()), 0.5f);
  frame.error_map = error;
  const Json head = HeadIn(*Shown(std::move(frame))->packet);
  EXPECT_EQ(head["fate"], "late");
  EXPECT_EQ(head["verdict"], "review");
  EXPECT_FALSE(head.contains("limit_ms"));
  EXPECT_EQ(head["reasons"][0], Json::parse(R"({"cause":"the overlap is small","value":0.25,"limit":0.5})"));
  EXPECT_EQ(head["reasons"][1], Json::parse(R"({"cause":"bare"})"));
  EXPECT_EQ(head["image"]["role"], "fixed");
  EXPECT_EQ(head["error"]["grid"], GridJson(PageParts::Grid()));
  EXPECT_EQ(head["parts"][2], Json::array({"error", 4 * PageParts::Grid().voxels()}));
}

TEST_F(SessionViewTest, ANewerFrameTakesThePlaceOfOneThatWaits) {
  Open();
  TappedFrame first = parts_.Frame(1);
  const std::weak_ptr<const PinnedBuffer> lent = first.pixels;
  view_->Take(std::move(first));
  view_->Take(parts_.Frame(2));
  EXPECT_TRUE(lent.expired()) << "the session's buffers are few";
  EXPECT_EQ(changes_, 2);
  EXPECT_TRUE(view_->Work());
  EXPECT_EQ(view_->picture()->number, 2);
  EXPECT_FALSE(view_->Work());
}

TEST_F(SessionViewTest, AFramesBufferGoesBackWithItsPicture) {
  Open();
  TappedFrame frame = parts_.Frame(1);
  const std::weak_ptr<const PinnedBuffer> lent = frame.pixels;
  const auto picture = Shown(std::move(frame));
  EXPECT_TRUE(lent.expired());
  EXPECT_NE(picture, nullptr);
}

TEST_F(SessionViewTest, NoPictureIsBrighterThanTheFirst) {
  Open();
  const Json first = HeadIn(*Shown(parts_.Frame(1, 4, 1))->packet);
  const Json second = HeadIn(*Shown(parts_.Frame(2, 4, 3))->packet);
  EXPECT_EQ(second["image"]["window"], first["image"]["window"]);
}

TEST_F(SessionViewTest, WithoutRoomForItsFieldAPictureHasNone) {
  Open();
  EXPECT_TRUE(view_->Work());
  Claim claim{{.workspace_bytes = PageParts::kMemory}};
  claim.job_class = JobClass::kBatch;
  const auto others = parts_.ledger().Admit(claim);
  ASSERT_TRUE(others.ok());
  const auto picture = Shown(parts_.Frame(3));
  ASSERT_NE(picture, nullptr);
  EXPECT_FALSE(picture->field);
  const Json head = HeadIn(*picture->packet);
  EXPECT_FALSE(head.contains("field"));
  EXPECT_EQ(head["parts"].size(), 1);
  EXPECT_TRUE(view_->DrawPlane(Plane::kAxial, PlaneMode::kFixed, {0, 0, 0}, 8).ok());
}

TEST_F(SessionViewTest, AResidentImageThatCannotBeReadIsTriedAgainWithTheNextFrame) {
  Open();
  {
    const auto others = parts_.ledger().Admit(Claim{{.pinned_bytes = PageParts::kMemory}});
    ASSERT_TRUE(others.ok());
    EXPECT_TRUE(view_->Work());
    EXPECT_EQ(view_->reference(), nullptr);
    EXPECT_FALSE(view_->Work()) << "not again and again";
  }
  EXPECT_FALSE(view_->Work());
  (void)Shown(parts_.Frame(1));
  EXPECT_TRUE(view_->Work());
  EXPECT_NE(view_->reference(), nullptr);
}

TEST_F(SessionViewTest, PlanesAreOfTheNewestPicture) {
  Open();
  const auto draw = [&](PlaneMode mode) {
    return view_->DrawPlane(Plane::kCoronal, mode, Center(PageParts::Grid()), 16);
  };
  EXPECT_TRUE(absl::IsUnavailable(draw(PlaneMode::kFixed).status()));
  EXPECT_TRUE(view_->Work());
  EXPECT_TRUE(absl::IsUnavailable(draw(PlaneMode::kFixed).status())) << "without a frame";
  (void)Shown(parts_.Frame(1, 0, 1));
  const auto fixed = draw(PlaneMode::kFixed), warped = draw(PlaneMode::kWarped);
  ASSERT_TRUE(fixed.ok() && warped.ok()) << fixed.status() << warped.status();
  EXPECT_EQ(fixed->substr(1, 3), "PNG");
  (void)Shown(parts_.Frame(2, 9, 1));
  EXPECT_EQ(*draw(PlaneMode::kFixed), *fixed);
  EXPECT_NE(*draw(PlaneMode::kWarped), *warped) << "the images were moved against each other";
}

// The session's image is the moving one: the fixed plane is the frame's.
TEST_F(SessionViewTest, TheImagesChangeTheirPartsWithTheSession) {
  Open(/*resident_is_fixed=*/false);
  const auto other = parts_.Open("other");
  const auto other_view = std::make_shared<SessionView>(other, [] {});
  for (SessionView* const view : {view_.get(), other_view.get()}) {
    view->Take(parts_.Frame(1, 0, /*scale=*/0));
    EXPECT_TRUE(view->Work());
  }
  const auto draw = [](const SessionView& view, PlaneMode mode) {
    return *view.DrawPlane(Plane::kAxial, mode, Center(PageParts::Grid()), 16);
  };
  EXPECT_NE(draw(*view_, PlaneMode::kFixed), draw(*other_view, PlaneMode::kFixed));
  EXPECT_NE(draw(*view_, PlaneMode::kWarped), draw(*other_view, PlaneMode::kWarped));
}

TEST_F(SessionViewTest, ASessionThatIsGoneHasNoWork) {
  Open();
  view_->Take(parts_.Frame(1));
  parts_.sessions().CloseAll(absl::OkStatus());
  session_.reset();
  EXPECT_FALSE(view_->Work());
  EXPECT_EQ(view_->picture(), nullptr);
}

}  // namespace
}  // namespace intrawarp::server
