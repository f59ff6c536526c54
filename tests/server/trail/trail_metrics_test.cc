// SPDX-License-Identifier: Apache-2.0
#include "server/trail/trail_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>

#include "server/trail/audit_trail.h"
#include "tests/server/state/test_files.h"

namespace intrawarp::server {
namespace {

using testing::HasSubstr;

class TrailMetricsTest : public testing::Test {
 protected:
  std::string Scrape() {
    metrics_.Set(trail_);
    return registry_.Scrape();
  }
  // Appends a record and waits until it is written, or cannot be.
  void Append() {
    const auto answered = std::make_shared<std::promise<void>>();
    std::future<void> done = answered->get_future();
    trail_.Append(audit::AuditRecord(), [answered](const absl::Status&) { answered->set_value(); });
    done.wait();
  }

  state::MemoryDisk disk_;
  state::LockedFiles locked_{disk_};
  state::FaultyFiles files_{locked_, state::Fault::kFull};
  const Seams seams_ = SystemSeams();
  AuditTrail trail_{seams_};
  Registry registry_;
  const TrailMetrics metrics_{registry_};
};

TEST_F(TrailMetricsTest, AServerWithoutALogIsAvailable) {
  const std::string text = Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_audit_available 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_audit_records 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_audit_records_lost_total 0\n"));
}

TEST_F(TrailMetricsTest, TellsTheStateOfTheLog) {
  audit::AuditOptions options;
  options.directory = "audit";
  options.retry = std::chrono::milliseconds(1);
  ASSERT_TRUE(trail_.Open(files_, options, {}).ok());
  Append();
  EXPECT_THAT(Scrape(), HasSubstr("intrawarp_audit_records 2\n")) << "and the first one";
  files_.set_fails_writes(true);
  Append();
  EXPECT_THAT(Scrape(), HasSubstr("intrawarp_audit_available 0\n"));
  EXPECT_THAT(Scrape(), HasSubstr("intrawarp_audit_records 2\n"));
  // One waits, and so many have room beside it.
  for (size_t i = 0; i < audit::kMaxPending + 2; ++i) trail_.Append(audit::AuditRecord());
  EXPECT_THAT(Scrape(), HasSubstr("intrawarp_audit_records_lost_total 3\n"));
  files_.set_fails_writes(false);
  while (!trail_.Available().ok()) std::this_thread::yield();
  EXPECT_THAT(Scrape(), HasSubstr("intrawarp_audit_available 1\n"));
  EXPECT_THAT(Scrape(), HasSubstr("intrawarp_audit_records_lost_total 3\n")) << "a counter does not fall";
}

}  // namespace
}  // namespace intrawarp::server
