// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/admit_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/device/device_set.h"
#include "server/job/admission_metrics.h"
#include "server/monitor/watchdog.h"
#include "server/status/errors.h"
#include "tests/server/partial_context.h"

namespace intrawarp::server {
namespace {

using testing::HasSubstr;

// A server with two devices, whose watchdogs see what a test says.
class AdmitCallTest : public testing::Test {
 protected:
  static LedgerOptions Places() {
    LedgerOptions options;
    options.capacity.streams = 3;
    options.session_reserve.streams = 1;
    options.owner_limit.streams = 2;
    return options;
  }
  AdmitCallTest() {
    parts_.devices = &devices_;
    parts_.ledger = &ledger_;
    parts_.admission = &admission_;
    for (const auto& watchdog : watchdogs_) {
      devices_.Add({parts_.Make(), devices_.size(), *NoPart<Device>(), *NoPart<const DeviceProbe>(), *watchdog,
                    *NoPart<JobQueue>(), *NoPart<CopyLane>()});
    }
    context_.emplace(parts_.Make());
  }
  // The watchdog believes a hang that it has seen twice.
  void Look(int device, bool hangs) {
    const Watchdog::Time now{std::chrono::hours(1)};
    const DeviceSigns signs{hangs ? std::optional(now - std::chrono::minutes(10)) : std::nullopt};
    for (int i = 0; i < 2; ++i) (void)watchdogs_[device]->Check(now, signs);
  }
  bool IsRejected(const std::string& reason, int times) const {
    const std::string line =
        absl::StrCat("intrawarp_admission_rejections_total{reason=\"", reason, "\"} ", times, "\n");
    return registry_.Scrape().find(line) != std::string::npos;
  }

  Registry registry_;
  const AdmissionMetrics admission_{registry_, {"one", "two"}};
  Ledger ledger_{Places()};
  const std::vector<std::unique_ptr<Watchdog>> watchdogs_ = [] {
    std::vector<std::unique_ptr<Watchdog>> two;
    for (int i = 0; i < 2; ++i)
      two.push_back(std::make_unique<Watchdog>(WatchdogOptions(), [] { return std::vector<WatchedJob>(); }));
    return two;
  }();
  DeviceSet devices_;
  PartialContext parts_;
  std::optional<ServerContext> context_;
};

TEST_F(AdmitCallTest, ACallHasAPlaceUntilItEnds) {
  {
    const auto call = AdmitCall(*context_, "ann");
    ASSERT_TRUE(call.ok()) << call.status();
    EXPECT_EQ(call->held().streams, 1);
    EXPECT_EQ(ledger_.in_use(Resource::kStreams), 1);
    EXPECT_EQ(ledger_.owner_use("ann").streams, 1);
  }
  EXPECT_EQ(ledger_.in_use(Resource::kStreams), 0);
}

TEST_F(AdmitCallTest, AnOwnerHasSoManyAndAllTogether) {
  const auto first = AdmitCall(*context_, "ann"), second = AdmitCall(*context_, "");
  ASSERT_TRUE(first.ok() && second.ok());
  const absl::Status full = AdmitCall(*context_, "").status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_EQ(ReasonOf(full), v1::TOO_MANY_STREAMS);
  EXPECT_TRUE(IsRejected("too_many_streams", 1));
  // Sessions have a place of their own.
  const auto session = AdmitCall(*context_, "ann", Share::kSession);
  EXPECT_TRUE(session.ok()) << session.status();
  EXPECT_EQ(ReasonOf(AdmitCall(*context_, "bob", Share::kSession).status()), v1::TOO_MANY_STREAMS);
}

TEST_F(AdmitCallTest, AnOwnerThatHasEnoughIsRefusedBesideFreePlaces) {
  const auto first = AdmitCall(*context_, "ann");
  const auto second = AdmitCall(*context_, "ann", Share::kSession);
  ASSERT_TRUE(first.ok() && second.ok());
  const absl::Status status = AdmitCall(*context_, "ann").status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ReasonOf(status), v1::OWNER_QUOTA);
  EXPECT_TRUE(IsRejected("owner_quota", 1));
  EXPECT_TRUE(AdmitCall(*context_, "bob").ok());
}

TEST_F(AdmitCallTest, IsRefusedWhileEveryDeviceHangs) {
  Look(0, true);
  EXPECT_TRUE(AdmitCall(*context_, "ann").ok()) << "the other one serves it";
  Look(1, true);
  const absl::Status status = AdmitCall(*context_, "ann").status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(ReasonOf(status), v1::DEVICE_HUNG);
  EXPECT_TRUE(IsRejected("device_hung", 1));
  EXPECT_EQ(ledger_.in_use(Resource::kStreams), 0);
  Look(1, false);
  EXPECT_TRUE(AdmitCall(*context_, "ann").ok());
}

}  // namespace
}  // namespace intrawarp::server
