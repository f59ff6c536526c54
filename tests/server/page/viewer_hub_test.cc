// SPDX-License-Identifier: Apache-2.0
#include "server/page/viewer_hub.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tests/server/page/page_parts.h"
#include "tests/support/eventually.h"

namespace intrawarp::server {
namespace {

using std::chrono::seconds;

class ViewerHubTest : public testing::Test {
 protected:
  std::shared_ptr<NavigateSession> Open(const char* id, const char* owner = "ann") { return parts_.Open(id, owner); }

  PageParts parts_;
  std::atomic<int> changes_ = 0;
  std::optional<ViewerHub> hub_{std::in_place, parts_.seams(), [this] { ++changes_; }};
};

TEST_F(ViewerHubTest, AllViewersOfASessionHaveOneView) {
  const auto a = Open("a"), b = Open("b");
  EXPECT_EQ(hub_->Find(a), nullptr);
  EXPECT_EQ(a->tap(), nullptr) << "frames that nobody looks at cost nothing";
  const auto first = hub_->Join(a), second = hub_->Join(a), other = hub_->Join(b);
  EXPECT_EQ(first.get(), second.get());
  EXPECT_NE(first.get(), other.get());
  EXPECT_EQ(a->tap().get(), first.get());
  EXPECT_EQ(b->tap().get(), other.get());
  EXPECT_EQ(hub_->Find(a).get(), first.get());
}

TEST_F(ViewerHubTest, ItsThreadMakesTheImagesAndPicturesOfAllSessions) {
  const auto a = Open("a"), b = Open("b");
  const auto first = hub_->Join(a), second = hub_->Join(b);
  EXPECT_TRUE(Eventually([&] { return first->reference() != nullptr && second->reference() != nullptr; }));
  a->tap()->Take(parts_.Frame(3));
  b->tap()->Take(parts_.Frame(4));
  EXPECT_TRUE(Eventually([&] { return first->picture() != nullptr && second->picture() != nullptr; }));
  EXPECT_EQ(first->picture()->number, 3);
  EXPECT_EQ(second->picture()->number, 4);
  EXPECT_GE(changes_, 4);
}

TEST_F(ViewerHubTest, ASessionIsForgottenAWhileAfterItsLastViewerLeft) {
  const auto a = Open("a"), other = Open("other");
  auto first = hub_->Join(a), second = hub_->Join(a);
  first.reset();
  parts_.Advance(seconds(60));
  (void)hub_->Join(other);  // which wakes the thread
  EXPECT_TRUE(Eventually([&] { return hub_->Find(other)->reference() != nullptr; }));
  EXPECT_NE(hub_->Find(a), nullptr) << "one is left";

  SessionView* const view = second.get();
  second.reset();
  parts_.Advance(seconds(9));
  second = hub_->Join(a);
  EXPECT_EQ(second.get(), view) << "a viewer whose connection broke is back";
  second.reset();
  EXPECT_EQ(hub_->Find(a).get(), view);
  parts_.Advance(seconds(10));
  EXPECT_TRUE(Eventually([&] { return hub_->Find(a) == nullptr && a->tap() == nullptr; }));
  const auto again = hub_->Join(a);
  EXPECT_EQ(a->tap().get(), again.get());
}

TEST_F(ViewerHubTest, TheTipIsTheNewestAndBelongsToItsSession) {
  const auto a = Open("a"), same_name = Open("a", "bob");
  EXPECT_FALSE(hub_->TipOf(a));
  hub_->SetTip(a, {1, 2, 3});
  parts_.Advance(seconds(1));
  hub_->SetTip(a, {4, 5, 6});
  const auto tip = hub_->TipOf(a);
  ASSERT_TRUE(tip.has_value());
  EXPECT_EQ(tip->point.y, 5);
  EXPECT_EQ(tip->time, parts_.now());
  EXPECT_FALSE(hub_->TipOf(same_name));
  EXPECT_EQ(hub_->Find(a), nullptr) << "a tip is not a viewer";
  EXPECT_EQ(a->tap(), nullptr);
}

TEST_F(ViewerHubTest, ATipIsForgottenWhenItIsOld) {
  const auto a = Open("a"), other = Open("other");
  hub_->SetTip(a, {1, 2, 3});
  const auto viewer = hub_->Join(other);
  EXPECT_TRUE(Eventually([&] { return viewer->reference() != nullptr; }));
  EXPECT_TRUE(hub_->TipOf(a));
  parts_.Advance(seconds(10));
  EXPECT_TRUE(Eventually([&] { return !hub_->TipOf(a); }));
}

TEST_F(ViewerHubTest, ASessionThatClosesGoesThoughItsViewerStays) {
  auto a = Open("a");
  const auto viewer = hub_->Join(a);
  const std::weak_ptr<NavigateSession> weak = a;
  a->Close(absl::OkStatus());
  a.reset();
  EXPECT_TRUE(Eventually([&] { return weak.expired(); })) << "nobody but its viewer is left";
  EXPECT_EQ(viewer->picture(), nullptr);
}

TEST_F(ViewerHubTest, ItsEndTakesTheTapsAway) {
  const auto a = Open("a");
  (void)hub_->Join(a);
  EXPECT_NE(a->tap(), nullptr);
  hub_.reset();
  EXPECT_EQ(a->tap(), nullptr);
}

TEST_F(ViewerHubTest, ViewersComeAndGoFromManyThreads) {
  const auto a = Open("a"), b = Open("b");
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const auto& session = (i + t) % 2 == 0 ? a : b;
        const auto viewer = hub_->Join(session);
        EXPECT_EQ(hub_->Find(session).get(), viewer.get());
        EXPECT_EQ(session->tap().get(), viewer.get());
        hub_->SetTip(session, {double(i), 0, 0});
        EXPECT_TRUE(hub_->TipOf(session));
        if (t == 0) parts_.Advance(seconds(3));
        if (const auto tap = session->tap()) tap->Take(parts_.Frame(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  parts_.Advance(seconds(11));
  EXPECT_TRUE(Eventually([&] { return a->tap() == nullptr && b->tap() == nullptr; }));
}

}  // namespace
}  // namespace intrawarp::server
