// SPDX-License-Identifier: Apache-2.0
#include "server/ledger/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

constexpr std::array<Resource, kResources> kEvery = AllResources();

LedgerOptions Options() {
  LedgerOptions options;
  options.capacity = {.resident_bytes = 100,
                      .workspace_bytes = 80,
                      .pinned_bytes = 60,
                      .uploading_bytes = 50,
                      .transforms = 10,
                      .streams = 6,
                      .uploads = 4,
                      .sessions = 2,
                      .operations = 3};
  options.session_reserve = {.workspace_bytes = 20, .pinned_bytes = 15, .transforms = 4, .sessions = 2};
  options.lanes = {2, 2, 1};
  return options;
}

// With lanes for the jobs of several owners.
LedgerOptions ModelOptions() {
  LedgerOptions options = Options();
  options.lanes = {2, 3, 2};
  options.at_once = {2, 1, 1};
  return options;
}

Claim WorkspaceClaim(int64_t bytes, JobClass job_class = JobClass::kInteractive) {
  return {{.workspace_bytes = bytes}, job_class};
}

TEST(LedgerTest, AGrantGivesBackWhatItHeld) {
  Ledger ledger(Options());
  {
    const absl::StatusOr<Grant> grant = ledger.Admit({{.resident_bytes = 40, .transforms = 1}});
    ASSERT_TRUE(grant.ok()) << grant.status();
    EXPECT_EQ(ledger.in_use(Resource::kResident), 40);
    EXPECT_EQ(ledger.in_use(Resource::kTransforms), 1);
  }
  for (const Resource resource : kEvery) EXPECT_EQ(ledger.in_use(resource), 0);
  EXPECT_EQ(ledger.use(Resource::kResident).peak, 40);
}

LedgerOptions TwoDevices() {
  LedgerOptions options = Options();
  options.devices = {{"cuda:0", {.resident_bytes = 100, .workspace_bytes = 80}, {.workspace_bytes = 20}},
                     {"cuda:1", {.resident_bytes = 50, .workspace_bytes = 40}, {.workspace_bytes = 10}}};
  return options;
}

TEST(LedgerTest, EachDeviceHasMemoryOfItsOwn) {
  Ledger ledger(TwoDevices());
  {
    const Grant first = *ledger.Admit({{.resident_bytes = 100, .pinned_bytes = 20}, JobClass::kInteractive, 0});
    Grant second = *ledger.Admit({{.resident_bytes = 45, .workspace_bytes = 30}, JobClass::kBatch, 1});
    EXPECT_EQ(second.device(), 1);
    EXPECT_EQ(second.Split({.resident_bytes = 5}).device(), 1);
    EXPECT_EQ(ledger.use(Resource::kResident, 0).in_use, 100);
    EXPECT_EQ(ledger.use(Resource::kResident, 1).in_use, 40);
    EXPECT_EQ(ledger.use(Resource::kWorkspace, 0).in_use, 0);
    EXPECT_EQ(ledger.use(Resource::kWorkspace, 1).in_use, 30);
    EXPECT_EQ(ledger.in_use(Resource::kResident), 140);
    EXPECT_EQ(ledger.use(Resource::kResident).capacity, 150);
    EXPECT_EQ(ledger.in_use(Resource::kPinned), 20);
    EXPECT_EQ(ledger.available(Resource::kResident, Share::kCommon, 1), 10);
    const absl::Status refused = ledger.Admit({{.resident_bytes = 11}, JobClass::kBatch, 1}).status();
    EXPECT_EQ(ReasonOf(refused), v1::RESIDENT_MEMORY);
    EXPECT_EQ(refused.message(), "resident_memory of cuda:1: 11 asked, 40 of 50 in use");
    // What fits one device may never fit another.
    const absl::Status never = ledger.Admit({{.resident_bytes = 51}, JobClass::kBatch, 1}).status();
    EXPECT_EQ(ReasonOf(never), v1::EXCEEDS_CAPACITY);
    EXPECT_EQ(ledger.capacity(Resource::kWorkspace, Share::kCommon, 1), 30);
    EXPECT_EQ(ledger.capacity(Resource::kWorkspace, Share::kSession, 1), 40);
  }
  for (const Resource resource : kEvery) EXPECT_EQ(ledger.in_use(resource), 0);
}

TEST(LedgerTest, WhatIsKeptForSpeedGivesWay) {
  Ledger ledger(TwoDevices());
  std::vector<Grant> kept;
  std::vector<int64_t> asked;
  ledger.set_reclaim([&](int device, int64_t bytes) {
    EXPECT_EQ(device, 1);
    asked.push_back(bytes);
    if (!kept.empty()) kept.pop_back();
  });
  for (int i = 0; i < 2; ++i) kept.push_back(*ledger.Admit({{.resident_bytes = 20}, JobClass::kBatch, 1}));
  EXPECT_TRUE(asked.empty());
  const absl::StatusOr<Grant> grant = ledger.Admit({{.resident_bytes = 25}, JobClass::kBatch, 1});
  ASSERT_TRUE(grant.ok()) << grant.status();
  EXPECT_EQ(asked, std::vector<int64_t>({15}));
  EXPECT_EQ(ledger.use(Resource::kResident, 1).in_use, 45);
  // Nothing is asked for a claim that fails for something else, or that no reclaiming can help.
  EXPECT_FALSE(ledger.Admit({{.resident_bytes = 51}, JobClass::kBatch, 1}).ok());
  EXPECT_FALSE(ledger.Admit({{.uploading_bytes = 51}, JobClass::kBatch, 1}).ok());
  EXPECT_EQ(asked.size(), 1u);
  EXPECT_FALSE(ledger.Admit({{.resident_bytes = 30}, JobClass::kBatch, 1}).ok());
  EXPECT_EQ(asked, std::vector<int64_t>({15, 25}));
}

TEST(LedgerTest, AClaimIsAdmittedWholeOrNotAtAll) {
  Ledger ledger(Options());
  const Grant streams = *ledger.Admit({{.streams = 6}});
  const absl::Status refused =
      ledger.Admit({{.resident_bytes = 1, .workspace_bytes = 1, .pinned_bytes = 1, .streams = 1}}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), v1::TOO_MANY_STREAMS);
  EXPECT_EQ(ledger.in_use(Resource::kResident), 0);
  EXPECT_EQ(ledger.in_use(Resource::kWorkspace), 0);
  EXPECT_EQ(ledger.in_use(Resource::kPinned), 0);
}

TEST(LedgerTest, WhatCanNeverFitIsToldFromWhatCouldLater) {
  constexpr v1::ErrorReason kReasons[] = {v1::RESIDENT_MEMORY,  v1::WORKSPACE_MEMORY,    v1::PINNED_MEMORY,
                                          v1::RESIDENT_MEMORY,  v1::TOO_MANY_TRANSFORMS, v1::TOO_MANY_STREAMS,
                                          v1::TOO_MANY_UPLOADS, v1::TOO_MANY_SESSIONS,   v1::TOO_MANY_OPERATIONS};
  for (int i = 0; i < kResources; ++i) {
    const Resource resource = kEvery[i];
    Ledger ledger(Options());
    Claim claim;
    claim[resource] = ledger.capacity(resource, Share::kSession);
    const Grant all = *ledger.Admit(claim, Share::kSession);
    claim[resource] = 1;
    claim.job_class = JobClass::kBatch;  // another workspace than the one admitted
    const absl::Status later = ledger.Admit(claim, Share::kSession).status();
    EXPECT_EQ(later.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ReasonOf(later), kReasons[i]);
    for (const int64_t amount : {ledger.capacity(resource, Share::kSession) + 1, int64_t{-1}}) {
      claim[resource] = amount;
      const absl::Status never = ledger.Admit(claim, Share::kSession).status();
      EXPECT_EQ(never.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_EQ(ReasonOf(never), v1::EXCEEDS_CAPACITY);
    }
  }
}

TEST(LedgerTest, RefusalsTellTheNumbers) {
  Ledger ledger(Options());
  const Grant held = *ledger.Admit({{.pinned_bytes = 30}});
  EXPECT_EQ(ledger.Admit({{.pinned_bytes = 16}}).status().message(), "pinned_memory: 16 asked, 30 of 45 in use");
  EXPECT_TRUE(ledger.Admit({{.pinned_bytes = 15}}).ok());
}

TEST(LedgerTest, OthersNeverTouchTheShareOfSessions) {
  Ledger ledger(Options());
  const Grant common = *ledger.Admit({{.workspace_bytes = 60, .pinned_bytes = 45, .transforms = 6}});
  EXPECT_EQ(ledger.available(Resource::kPinned), 0);
  EXPECT_EQ(ReasonOf(ledger.Admit({{.pinned_bytes = 1}}).status()), v1::PINNED_MEMORY);
  EXPECT_EQ(ReasonOf(ledger.Admit({{.transforms = 1}}).status()), v1::TOO_MANY_TRANSFORMS);
  EXPECT_EQ(ReasonOf(ledger.Admit(WorkspaceClaim(1, JobClass::kBatch)).status()), v1::WORKSPACE_MEMORY);
  Claim frame{{.workspace_bytes = 20, .pinned_bytes = 15, .transforms = 4}, JobClass::kFrame};
  const absl::StatusOr<Grant> session = ledger.Admit(frame, Share::kSession);
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ(ledger.use(Resource::kPinned).session_in_use, 15);
  EXPECT_EQ(ledger.in_use(Resource::kPinned), 60);
  // More than the share can ever have of the whole.
  EXPECT_EQ(ReasonOf(ledger.Admit({{.pinned_bytes = 46}}).status()), v1::EXCEEDS_CAPACITY);
}

TEST(LedgerTest, SessionsMayUseWhatOthersLeave) {
  Ledger ledger(Options());
  const Grant session = *ledger.Admit({{.pinned_bytes = 40}}, Share::kSession);
  EXPECT_EQ(ledger.available(Resource::kPinned), 20);
  EXPECT_TRUE(ledger.Admit({{.pinned_bytes = 20}}).ok());
  EXPECT_FALSE(ledger.Admit({{.pinned_bytes = 21}}).ok());
}

TEST(LedgerTest, AClassReservesItsLargestWorkspaces) {
  Ledger ledger(Options());
  std::vector<Grant> grants;
  const auto admit = [&](int64_t bytes, JobClass job_class) {
    grants.push_back(*ledger.Admit(WorkspaceClaim(bytes, job_class)));
    return ledger.in_use(Resource::kWorkspace);
  };
  EXPECT_EQ(admit(10, JobClass::kInteractive), 10);
  EXPECT_EQ(admit(5, JobClass::kInteractive), 15);
  EXPECT_EQ(admit(5, JobClass::kInteractive), 15);   // waits for one of the two lanes
  EXPECT_EQ(admit(20, JobClass::kInteractive), 30);  // in place of the 5
  EXPECT_EQ(admit(30, JobClass::kBatch), 60);
  EXPECT_EQ(admit(30, JobClass::kBatch), 60);
  EXPECT_EQ(ReasonOf(ledger.Admit(WorkspaceClaim(11)).status()), v1::WORKSPACE_MEMORY);
  EXPECT_EQ(admit(10, JobClass::kInteractive), 60);
  grants.erase(grants.begin() + 3);
  EXPECT_EQ(ledger.in_use(Resource::kWorkspace), 50);
  grants.clear();
  EXPECT_EQ(ledger.in_use(Resource::kWorkspace), 0);
}

TEST(LedgerTest, GrantsShrinkAndSplit) {
  Ledger ledger(Options());
  Grant grant = *ledger.Admit({{.resident_bytes = 50, .workspace_bytes = 30, .transforms = 1}});
  {
    const Grant part = grant.Split({.resident_bytes = 20, .workspace_bytes = 30, .pinned_bytes = 7});
    EXPECT_EQ(part.held(), (Claim{{.resident_bytes = 20, .workspace_bytes = 30}}));
    EXPECT_EQ(grant.held(), (Claim{{.resident_bytes = 30, .transforms = 1}}));
    EXPECT_EQ(ledger.in_use(Resource::kResident), 50);
    EXPECT_EQ(ledger.in_use(Resource::kWorkspace), 30);
  }
  EXPECT_EQ(ledger.in_use(Resource::kResident), 30);
  EXPECT_EQ(ledger.in_use(Resource::kWorkspace), 0);
  grant.ShrinkResident(40);
  EXPECT_EQ(grant.resident_bytes(), 30);
  grant.ShrinkResident(10);
  EXPECT_EQ(ledger.in_use(Resource::kResident), 10);
  EXPECT_EQ(ledger.in_use(Resource::kTransforms), 1);
  grant.Merge(*ledger.Admit({{.resident_bytes = 7, .transforms = 2}}));
  EXPECT_EQ(grant.held(), (Claim{{.resident_bytes = 17, .transforms = 3}}));
  EXPECT_EQ(ledger.in_use(Resource::kResident), 17);
  Grant empty;
  EXPECT_EQ(empty.Split({.resident_bytes = 1}).resident_bytes(), 0);
}

// The same by recounting everything from the grants that live.
class PlainModel {
 public:
  struct Entry {
    Claim claim;
    Share share;
  };

  int64_t InUse(Resource resource, Share share, const std::vector<Entry>& entries) const {
    if (resource == Resource::kWorkspace) return Workspace(share, entries);
    int64_t sum = 0;
    for (const Entry& entry : entries) sum += entry.share == share ? entry.claim[resource] : 0;
    return sum;
  }

  // Whether a session, or everybody else, stays within what is theirs with one more.
  bool Fits(std::vector<Entry> entries, const Entry& more) const {
    for (const Resource resource : kEvery) {
      if (more.claim[resource] == 0) continue;
      std::vector<Entry> with = entries;
      with.push_back(more);
      const int64_t common = InUse(resource, Share::kCommon, with);
      int64_t sessions = InUse(resource, Share::kSession, with);
      if (more.share == Share::kCommon) sessions = std::max(sessions, options_.session_reserve[resource]);
      if (common + sessions > options_.capacity[resource]) return false;
      const int64_t reserve = more.share == Share::kCommon ? options_.session_reserve[resource] : 0;
      if (more.claim[resource] > options_.capacity[resource] - reserve) return false;
    }
    return true;
  }

 private:
  int64_t Workspace(Share share, const std::vector<Entry>& entries) const {
    int64_t sum = 0;
    for (int job_class = 0; job_class < kJobClasses; ++job_class) {
      std::map<std::pair<std::string, bool>, std::vector<int64_t>> flows;
      for (const Entry& entry : entries) {
        if (entry.share == share && static_cast<int>(entry.claim.job_class) == job_class) {
          flows[{entry.claim.owner, entry.claim.is_short}].push_back(entry.claim.workspace_bytes);
        }
      }
      std::vector<int64_t> workspaces;
      for (auto& [name, of_flow] : flows) {
        std::sort(of_flow.begin(), of_flow.end(), std::greater<>());
        of_flow.resize(std::min(of_flow.size(), static_cast<size_t>(options_.at_once[job_class])));
        workspaces.insert(workspaces.end(), of_flow.begin(), of_flow.end());
      }
      std::sort(workspaces.begin(), workspaces.end(), std::greater<>());
      const auto lanes = static_cast<size_t>(options_.lanes[job_class]);
      for (size_t i = 0; i < std::min(lanes, workspaces.size()); ++i) sum += workspaces[i];
    }
    return sum;
  }

  const LedgerOptions options_ = ModelOptions();
};

class LedgerModelTest : public testing::TestWithParam<int> {
 protected:
  int64_t Random(int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random_); }
  Claim RandomClaim() {
    Claim claim;
    for (const Resource resource : kEvery) {
      if (Random(2) == 0) claim[resource] = Random(ModelOptions().capacity[resource] / 2);
    }
    claim.job_class = static_cast<JobClass>(Random(kJobClasses - 1));
    claim.owner = std::string(Random(2), 'a');
    claim.is_short = Random(2) == 0;
    return claim;
  }
  void Admit() {
    const PlainModel::Entry entry{RandomClaim(), Random(2) == 0 ? Share::kSession : Share::kCommon};
    const bool fits = model_.Fits(entries_, entry);
    absl::StatusOr<Grant> grant = ledger_.Admit(entry.claim, entry.share);
    ASSERT_EQ(grant.ok(), fits) << grant.status();
    if (!fits) return;
    grants_.push_back(*std::move(grant));
    entries_.push_back(entry);
  }
  // Anything but an admission, which never fails.
  void Change() {
    if (grants_.empty()) return;
    const auto i = Random(static_cast<int64_t>(grants_.size()) - 1);
    const Claim other = RandomClaim();
    switch (Random(2)) {
      case 0:
        grants_.erase(grants_.begin() + i);
        entries_.erase(entries_.begin() + i);
        break;
      case 1:
        for (const Resource r : kEvery) entries_[i].claim[r] = std::min(entries_[i].claim[r], other[r]);
        grants_[i].Shrink(other);
        break;
      default: {
        PlainModel::Entry part = entries_[i];
        for (const Resource r : kEvery) {
          part.claim[r] = std::min(part.claim[r], other[r]);
          entries_[i].claim[r] -= part.claim[r];
        }
        grants_.push_back(grants_[i].Split(other));
        entries_.push_back(part);
      }
    }
  }
  void Compare() {
    for (const Resource resource : kEvery) {
      const int64_t common = model_.InUse(resource, Share::kCommon, entries_);
      const int64_t sessions = model_.InUse(resource, Share::kSession, entries_);
      const ResourceUse use = ledger_.use(resource);
      ASSERT_EQ(use.in_use, common + sessions);
      ASSERT_EQ(use.session_in_use, sessions);
      ASSERT_LE(use.in_use, use.capacity);
      ASSERT_LE(common, use.capacity - use.session_reserve);
      ASSERT_GE(ledger_.available(resource), 0);
    }
  }

  std::mt19937_64 random_{static_cast<uint64_t>(GetParam())};
  PlainModel model_;
  Ledger ledger_{ModelOptions()};
  std::vector<Grant> grants_;
  std::vector<PlainModel::Entry> entries_;
};
INSTANTIATE_TEST_SUITE_P(Seeds, LedgerModelTest, testing::Range(0, 50));

TEST(LedgerTest, HeldJobsOfSeveralOwnersAreReservedTogetherThoseOfOneByTheirLargest) {
  Ledger ledger(ModelOptions());
  std::vector<Grant> grants;
  const auto take = [&](const std::string& owner, int64_t bytes, bool is_short = false) {
    Claim claim = WorkspaceClaim(bytes);
    claim.owner = owner;
    claim.is_short = is_short;
    absl::StatusOr<Grant> grant = ledger.Admit(claim);
    ASSERT_TRUE(grant.ok()) << grant.status();
    grants.push_back(*std::move(grant));
  };
  take("a", 10);
  take("a", 12);
  EXPECT_EQ(ledger.in_use(Resource::kWorkspace), 12) << "one of them has started at a time";
  take("b", 9);
  take("a", 5, /*is_short=*/true);
  EXPECT_EQ(ledger.in_use(Resource::kWorkspace), 26);
  take("c", 7);
  EXPECT_EQ(ledger.in_use(Resource::kWorkspace), 28) << "three lanes";
  EXPECT_EQ(ledger.owner_use("a").workspace_bytes, 17);
  grants.clear();
  EXPECT_EQ(ledger.in_use(Resource::kWorkspace), 0);
}

TEST(LedgerTest, EveryResourceHasALimitForItsOwner) {
  const std::string first_owner = "a", second_owner = "b";
  for (const Resource resource : kEvery) {
    LedgerOptions options = Options();
    for (const Resource other : kEvery) options.owner_limit[other] = options.capacity[other] / 2;
    Ledger ledger(options);
    Claim claim;
    claim.owner = first_owner;
    claim[resource] = options.owner_limit[resource];
    const absl::StatusOr<Grant> first = ledger.Admit(claim, Share::kSession);
    ASSERT_TRUE(first.ok()) << kResourceNames[static_cast<int>(resource)] << first.status();
    EXPECT_EQ(ledger.owner_use("a")[resource], claim[resource]);
    claim[resource] = 1;
    const absl::Status more = ledger.Admit(claim, Share::kSession).status();
    // Another job of the class computes beside the first: its workspace is reserved, too.
    EXPECT_EQ(ReasonOf(more), v1::OWNER_QUOTA) << kResourceNames[static_cast<int>(resource)];
    claim.owner = std::string("b");
    EXPECT_TRUE(ledger.Admit(claim, Share::kSession).ok());
  }
}

TEST_P(LedgerModelTest, RandomOperationsAgreeWithAPlainModel) {
  for (int step = 0; step < 400; ++step) {
    ASSERT_NO_FATAL_FAILURE(Random(1) == 0 ? Admit() : Change());
    ASSERT_NO_FATAL_FAILURE(Compare());
  }
  grants_.clear();
  entries_.clear();
  Compare();
}

TEST(LedgerTest, ThreadsNeverHoldMoreThanThereIsAndLeaveNothing) {
  Ledger ledger(Options());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&ledger, t] {
      std::mt19937 random(t);
      std::vector<Grant> grants;
      for (int i = 0; i < 3000; ++i) {
        const auto below = [&random](int end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(random); };
        const Claim claim{{.resident_bytes = below(60), .workspace_bytes = below(40), .streams = 1}};
        absl::StatusOr<Grant> grant = ledger.Admit(claim, t == 0 ? Share::kSession : Share::kCommon);
        if (grant.ok()) grants.push_back(*std::move(grant));
        if (!grants.empty() && random() % 2 == 0) grants.push_back(grants.back().Split({.resident_bytes = 5}));
        if (!grants.empty() && random() % 2 == 0) grants.erase(grants.begin());
        for (const Resource resource : kEvery) EXPECT_LE(ledger.in_use(resource), Options().capacity[resource]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Resource resource : kEvery) {
    EXPECT_EQ(ledger.in_use(resource), 0);
    EXPECT_LE(ledger.use(resource).peak, Options().capacity[resource]);
  }
}

}  // namespace
}  // namespace intrawarp::server
