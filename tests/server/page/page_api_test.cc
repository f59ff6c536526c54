// SPDX-License-Identifier: Apache-2.0
#include "server/page/page_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "server/status/errors.h"
#include "server/trail/audit_trail.h"
#include "tests/server/page/page_parts.h"
#include "tests/server/state/test_files.h"
#include "tests/support/eventually.h"

namespace intrawarp::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class PageApiTest : public testing::Test {
 protected:
  // Every frame's tokens: a name, and its roles.
  IdentifyFn Identify() {
    return [this](const std::string& authorization) -> absl::StatusOr<Identity> {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto it = tokens_.find(authorization);
      if (it == tokens_.end()) return absl::UnauthenticatedError("no such token");
      return it->second;
    };
  }
  void SetToken(const std::string& authorization, std::optional<Identity> identity) {
    std::lock_guard<std::mutex> lock(mutex_);
    tokens_.erase(authorization);
    if (identity) tokens_.emplace(authorization, *std::move(identity));
  }
  static PageRequest Request(std::map<std::string, std::string> query = {}, const std::string& authorization = "ann") {
    PageRequest request;
    request.query = std::move(query);
    request.headers["authorization"] = authorization;
    return request;
  }
  static PageRequest PlaneRequest(std::map<std::string, std::string> change = {}) {
    std::map<std::string, std::string> query = {{"plane", "axial"}, {"mode", "fixed"}, {"x", "1"},
                                                {"y", "2"},         {"z", "3"},        {"width", "32"}};
    for (const auto& [name, value] : change) query[name] = value;
    return Request(std::move(query));
  }
  void OpenLog() {
    audit::AuditOptions options;
    options.directory = "audit";
    options.retry = std::chrono::milliseconds(1);
    ASSERT_TRUE(trail_.Open(files_, options, {}).ok());
  }
  // The actions and outcomes of the log's records so far, as "page.frames OK".
  std::vector<std::string> Records() {
    trail_.Close();
    const auto file = locked_.Open("audit/audit-00000001.log", state::OpenMode::kRead);
    EXPECT_TRUE(file.ok());
    std::string text(static_cast<size_t>(*(*file)->Size()), '\0');
    EXPECT_TRUE((*file)->ReadAt(0, text.data(), text.size()).ok());
    std::vector<std::string> records;
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const Json json = Json::parse(line.substr(65));
      const std::string action = json["action"];
      if (!absl::StartsWith(action, "page")) continue;
      EXPECT_EQ(json["peer"], "the peer");
      records.push_back(action + " " + json["outcome"].get<std::string>() + " " + json.value("who", ""));
      if (json.contains("names")) names_.push_back(json["names"]["session"]);
    }
    return records;
  }

  PageParts parts_;
  state::MemoryDisk disk_;
  state::LockedFiles locked_{disk_};
  state::FaultyFiles files_{locked_, state::Fault::kBroken};
  AuditTrail trail_{parts_.seams()};
  std::optional<ViewerHub> hub_{std::in_place, parts_.seams(), [] {}};
  std::mutex mutex_;
  std::map<std::string, Identity> tokens_ = {{"ann", {"ann", Role::kFrame}},
                                             {"bob", {"bob", Role::kFrame}},
                                             {"root", {"root", Role::kAdmin}},
                                             {"stage", {"ann", Role::kStage}}};
  std::vector<std::string> names_;
  std::optional<PageApi> api_{std::in_place, parts_.context(), Identify(), trail_, *hub_};
  const Identity ann_{"ann", Role::kFrame};
};

TEST(PageAnswer, EachErrorHasItsStatus) {
  const std::pair<absl::StatusCode, int> wanted[] = {{absl::StatusCode::kUnauthenticated, 401},
                                                     {absl::StatusCode::kPermissionDenied, 403},
                                                     {absl::StatusCode::kNotFound, 404},
                                                     {absl::StatusCode::kInvalidArgument, 400},
                                                     {absl::StatusCode::kFailedPrecondition, 409},
                                                     {absl::StatusCode::kUnavailable, 503},
                                                     {absl::StatusCode::kInternal, 503}};
  for (const auto& [code, status] : wanted) {
    const PageAnswer answer = AnswerOf(absl::Status(code, "the cause"));
    EXPECT_EQ(answer.status, status);
    EXPECT_EQ(answer.body, "the cause\n");
    EXPECT_EQ(answer.etag, "") << "an error is not to be kept";
  }
}

TEST_F(PageApiTest, WhoeverMaySeeSessionsIsAdmitted) {
  OpenLog();
  EXPECT_EQ(api_->Admit(Request(), "the peer")->name, "ann");
  EXPECT_EQ(api_->Admit(Request({}, "root"), "the peer")->name, "root");
  EXPECT_TRUE(absl::IsUnauthenticated(api_->Admit(Request({}, "none"), "the peer").status()));
  EXPECT_TRUE(absl::IsUnauthenticated(api_->Admit(PageRequest(), "the peer").status()));
  EXPECT_TRUE(absl::IsPermissionDenied(api_->Admit(Request({}, "stage"), "the peer").status()));
  EXPECT_THAT(Records(), ElementsAre("page UNAUTHENTICATED ", "page UNAUTHENTICATED ", "page PERMISSION_DENIED ann"));
}

TEST_F(PageApiTest, AnotherOwnersSessionIsOneThatNobodyHas) {
  const auto session = parts_.Open("or3", "bob");
  const auto find = [&](const Identity& caller, std::map<std::string, std::string> query) {
    for (const auto& [name, value] : PlaneRequest().query) query.emplace(name, value);
    return api_->FindPlane("or3", Request(std::move(query)), caller).status();
  };
  const absl::Status none = api_->FindPlane("nobodys", PlaneRequest(), ann_).status();
  const absl::Status theirs = find(ann_, {});
  EXPECT_TRUE(absl::IsNotFound(none) && absl::IsNotFound(theirs));
  EXPECT_EQ(theirs.message(), find(ann_, {{"owner", "bob"}}).message());
  EXPECT_TRUE(absl::IsNotFound(find(ann_, {{"owner", "ann"}})));
  EXPECT_EQ(api_->SetTip("or3", Request({{"x", "1"}, {"y", "2"}, {"z", "3"}}), ann_).status, 404);
  EXPECT_TRUE(absl::IsNotFound(api_->OpenStream({"frames", "or3"}, Request(), ann_, "the peer", [] {}).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(find({"bob", Role::kFrame}, {})));
  EXPECT_TRUE(absl::IsFailedPrecondition(find({"root", Role::kAdmin}, {})));
}

TEST_F(PageApiTest, AnAdminTellsSessionsOfOneNameApartByTheirOwner) {
  const auto anns = parts_.Open("or3"), bobs = parts_.Open("or3", "bob");
  const Identity root{"root", Role::kAdmin};
  const auto tip = [&](std::map<std::string, std::string> query) {
    for (const char* const axis : {"x", "y", "z"}) query[axis] = "4.5";
    return api_->SetTip("or3", Request(std::move(query)), root).status;
  };
  EXPECT_EQ(tip({}), 409) << "whose is meant?";
  EXPECT_EQ(tip({{"owner", "bob"}}), 204);
  EXPECT_FALSE(hub_->TipOf(anns));
  EXPECT_EQ(hub_->TipOf(bobs)->point.z, 4.5);
  EXPECT_EQ(tip({{"owner", "eve"}}), 404);
}

TEST_F(PageApiTest, ATipIsThreeNumbers) {
  const auto session = parts_.Open("or3");
  for (const auto& [x, y] : {std::pair{"1", ""}, {"nan", "1"}, {"1", "inf"}, {"1e9", "1"}, {"a", "1"}}) {
    const PageAnswer answer = api_->SetTip("or3", Request({{"x", x}, {"y", y}, {"z", "1"}}), ann_);
    EXPECT_EQ(answer.status, 400) << x << " " << y;
    EXPECT_THAT(answer.body, HasSubstr("must be numbers"));
  }
  EXPECT_FALSE(hub_->TipOf(session));
  EXPECT_EQ(api_->SetTip("or3", Request({{"x", "-1"}, {"y", "2.5"}, {"z", "1e6"}}), ann_).status, 204);
  EXPECT_EQ(hub_->TipOf(session)->point.x, -1);
}

TEST_F(PageApiTest, APlaneIsOneOfThePages) {
  const auto session = parts_.Open("or3");
  const auto viewer = hub_->Join(session);
  const auto find = [&](std::map<std::string, std::string> change) {
    return api_->FindPlane("or3", PlaneRequest(std::move(change)), ann_);
  };
  const auto plane = find({{"plane", "sagittal"}, {"mode", "warped"}});
  ASSERT_TRUE(plane.ok()) << plane.status();
  EXPECT_EQ((*plane)->plane, Plane::kSagittal);
  EXPECT_EQ((*plane)->mode, PlaneMode::kWarped);
  EXPECT_EQ((*plane)->cross.y, 2);
  EXPECT_EQ((*plane)->width, 32);
  EXPECT_EQ((*plane)->view.get(), viewer.get());
  EXPECT_EQ((*find({{"width", "0"}}))->width, 1);
  EXPECT_EQ((*find({{"width", "-7"}}))->width, 1);
  EXPECT_EQ((*find({{"width", "9999999"}}))->width, kMostPlaneWidth);
  EXPECT_EQ((*find({{"width", "wide"}}))->width, 256);
  EXPECT_EQ((*find({{"width", ""}}))->width, 256);
  for (const auto& [name, value] : {std::pair{"plane", "oblique"}, {"plane", ""}, {"mode", "secret"}, {"y", "nan"}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(find({{name, value}}).status())) << name << "=" << value;
  }
}

TEST_F(PageApiTest, PlanesAreDrawnOneAfterTheOtherAndNotTooMany) {
  const auto session = parts_.Open("or3");
  const auto viewer = hub_->Join(session);
  viewer->Take(parts_.Frame(1));
  ASSERT_TRUE(Eventually([&] { return viewer->picture() != nullptr && viewer->reference() != nullptr; }));
  const auto plane = [&] { return *api_->FindPlane("or3", PlaneRequest(), ann_); };
  const std::shared_ptr<PagePlane> first = plane();
  // The drawer is held up by whoever waits for the first.
  const auto drawn = std::make_shared<std::promise<void>>(), go_on = std::make_shared<std::promise<void>>();
  ASSERT_TRUE(api_->Draw(first, [drawn, go_on] {
    drawn->set_value();
    go_on->get_future().wait();
  }));
  drawn->get_future().wait();
  EXPECT_EQ(first->answer.status, 200);
  EXPECT_EQ(first->answer.content_type, "image/png");
  EXPECT_EQ(first->answer.body.substr(1, 3), "PNG");
  EXPECT_EQ(first->view, nullptr) << "its session is let go of";
  const auto done = std::make_shared<std::atomic<int>>(0);
  for (int i = 0; i < 12; ++i) EXPECT_TRUE(api_->Draw(plane(), [done] { ++*done; }));
  EXPECT_FALSE(api_->Draw(plane(), [done] { ++*done; }));
  go_on->set_value();
  EXPECT_TRUE(Eventually([&] { return *done == 12; }));
  EXPECT_TRUE(api_->Draw(plane(), [done] { ++*done; }));
  EXPECT_TRUE(Eventually([&] { return *done == 13; }));
}

TEST_F(PageApiTest, APlaneWithoutAPictureIsAnError) {
  const auto session = parts_.Open("or3");
  const auto viewer = hub_->Join(session);
  const auto plane = *api_->FindPlane("or3", PlaneRequest(), ann_);
  const auto done = std::make_shared<std::promise<void>>();
  ASSERT_TRUE(api_->Draw(plane, [done] { done->set_value(); }));
  done->get_future().wait();
  EXPECT_EQ(plane->answer.status, 503);
}

TEST_F(PageApiTest, AfterItsStopNothingIsDrawn) {
  const auto session = parts_.Open("or3");
  const auto viewer = hub_->Join(session);
  const auto plane = *api_->FindPlane("or3", PlaneRequest(), ann_);
  api_->StopDrawing();
  EXPECT_FALSE(api_->Draw(plane, [] { ADD_FAILURE() << "it was stopped"; }));
  api_->StopDrawing();
}

// Reads until there is something: a picture or its absence.
std::string FirstOf(PageStream& stream) {
  std::string bytes(size_t{1} << 20, '?');
  std::optional<size_t> count = 0;
  EXPECT_TRUE(Eventually([&] {
    count = stream.Read(bytes.data(), bytes.size());
    return count != std::optional<size_t>(0);
  }));
  return count ? bytes.substr(0, *count) : "end";
}

Json HeadOf(const std::string& packet) {
  uint32_t head = 0;
  std::memcpy(&head, packet.data() + 4, sizeof(head));
  return Json::parse(packet.substr(16, head), nullptr, /*allow_exceptions=*/false);
}

TEST_F(PageApiTest, EachStreamIsWhatItsPathSays) {
  const auto session = parts_.Open("or3");
  const auto open = [&](const std::string& what, std::map<std::string, std::string> query = {}) {
    auto stream = api_->OpenStream({what, "or3"}, Request(std::move(query)), ann_, "the peer", [] {});
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *std::move(stream);
  };
  EXPECT_EQ(Json::parse(FirstOf(*open("state")))["sessions"][0]["id"], "or3");
  EXPECT_EQ(session->tap(), nullptr) << "a list is not a viewer";
  const auto frames = open("frames"), heads = open("frames", {{"picture", "0"}}), reference = open("reference");
  EXPECT_NE(session->tap(), nullptr);
  EXPECT_EQ(HeadOf(FirstOf(*reference))["image"]["role"], "fixed");
  session->tap()->Take(parts_.Frame(5));
  ASSERT_TRUE(Eventually([&] { return hub_->Find(session)->picture() != nullptr; }));
  EXPECT_EQ(HeadOf(FirstOf(*frames))["parts"].size(), 2);
  const Json head = HeadOf(FirstOf(*heads));
  EXPECT_EQ(head["frame"], 5);
  EXPECT_EQ(head["parts"].size(), 0);
}

TEST_F(PageApiTest, AStreamEndsWithItsCallersRight) {
  const auto session = parts_.Open("or3");
  const std::optional<Identity> others[] = {std::nullopt, Identity{"bob", Role::kFrame}, Identity{"ann", Role::kStage}};
  for (const std::optional<Identity>& now : others) {
    SetToken("ann", ann_);
    auto stream = api_->OpenStream({"frames", "or3"}, Request(), ann_, "the peer", [] {});
    ASSERT_TRUE(stream.ok());
    EXPECT_EQ(HeadOf(FirstOf(**stream))["parts"].size(), 0) << "nothing is shown yet";
    SetToken("ann", now);
    parts_.Advance(std::chrono::seconds(1));
    EXPECT_EQ(FirstOf(**stream), "end");
  }
}

TEST_F(PageApiTest, AStreamIsRecordedBeforeItsFirstByte) {
  OpenLog();
  const auto session = parts_.Open("or3");
  const auto changed = std::make_shared<std::promise<void>>();
  const auto stream =
      api_->OpenStream({"frames", "or3"}, Request(), ann_, "the peer", [changed] { changed->set_value(); });
  ASSERT_TRUE(stream.ok());
  changed->get_future().wait();
  EXPECT_EQ(HeadOf(FirstOf(**stream))["parts"].size(), 0);
  const auto state = api_->OpenStream({"state", ""}, Request(), ann_, "the peer", [] {});
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(Json::parse(FirstOf(**state))["caller"], "ann");
  const std::string digest = trail_.NameDigest("sessions/or3");
  EXPECT_THAT(Records(), ElementsAre("page.frames OK ann")) << "the state is not recorded";
  EXPECT_THAT(names_, ElementsAre(digest));
}

// The page ends while the disk takes its time.
TEST_F(PageApiTest, ARecordThatIsWrittenAfterThePagesEndTouchesNothingOfIt) {
  OpenLog();
  const auto session = parts_.Open("or3");
  const auto begun = std::make_shared<std::promise<void>>(), go_on = std::make_shared<std::promise<void>>();
  trail_.Append(audit::AuditRecord(), [begun, go_on](const absl::Status&) {
    begun->set_value();
    go_on->get_future().wait();
  });
  begun->get_future().wait();
  const auto told = [] { ADD_FAILURE() << "nobody is there any more"; };
  auto stream = api_->OpenStream({"frames", "or3"}, Request(), ann_, "the peer", told);
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ((*stream)->Read(nullptr, 0), std::optional<size_t>(0)) << "it waits for its record";
  api_.reset();
  EXPECT_EQ((*stream)->Read(nullptr, 0), std::nullopt);
  stream->reset();  // the last viewer
  hub_.reset();
  EXPECT_EQ(session->tap(), nullptr);
  go_on->set_value();
  EXPECT_THAT(Records(), ElementsAre("page.frames OK ann")) << "it was asked for, all the same";
}

TEST_F(PageApiTest, WithoutARecordNothingIsSent) {
  OpenLog();
  const auto session = parts_.Open("or3");
  files_.set_fails_writes(true);
  const auto changed = std::make_shared<std::promise<void>>();
  const auto stream =
      api_->OpenStream({"reference", "or3"}, Request(), ann_, "the peer", [changed] { changed->set_value(); });
  ASSERT_TRUE(stream.ok()) << stream.status();
  changed->get_future().wait();
  EXPECT_EQ(FirstOf(**stream), "end");
  // The log is known to fail: nobody joins.
  const absl::Status status = api_->OpenStream({"frames", "or3"}, Request(), ann_, "the peer", [] {}).status();
  EXPECT_EQ(ReasonOf(status), v1::AUDIT_UNAVAILABLE) << status;
  files_.set_fails_writes(false);
}

}  // namespace
}  // namespace intrawarp::server
