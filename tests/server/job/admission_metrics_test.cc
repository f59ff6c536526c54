// SPDX-License-Identifier: Apache-2.0
#include "server/job/admission_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/ledger/ledger.h"

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;

TEST(AdmissionMetrics, CountsWhatWasRefusedForLackOfRoom) {
  Registry registry;
  const AdmissionMetrics metrics(registry, {"cpu"});
  EXPECT_THAT(registry.Scrape(), HasSubstr("intrawarp_admission_rejections_total{reason=\"queue_full\"} 0\n"));
  metrics.CountRejection(v1::PINNED_MEMORY);
  metrics.CountRejection(v1::NOT_AUTHENTICATED);  // not a lack of room
  metrics.CountRefusedConnection();
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_admission_rejections_total{reason=\"pinned_memory\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_admission_rejections_total{reason=\"too_many_connections\"} 1\n"));
  EXPECT_EQ(text.find("not_authenticated"), std::string::npos);
}

TEST(AdmissionMetrics, MirrorsTheLedger) {
  Registry registry;
  const AdmissionMetrics metrics(registry, {"cpu"});
  LedgerOptions options;
  options.capacity.resident_bytes = 60;
  options.capacity.pinned_bytes = 50;
  options.capacity.streams = 64;
  Ledger ledger(options);
  Claim claim;
  claim.resident_bytes = 6;
  claim.pinned_bytes = 5;
  claim.streams = 3;
  const auto grant = ledger.Admit(claim, Share::kCommon);
  ASSERT_TRUE(grant.ok()) << grant.status();
  metrics.Set(ledger, {4});
  metrics.SetPinnedPooled(4096);
  metrics.SetTable("calls", 1, 9);
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_used_bytes{kind=\"resident\"} 6\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_evictable_bytes{kind=\"resident\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_capacity_bytes{kind=\"resident\"} 60\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_used_bytes{kind=\"workspace\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_used_bytes{kind=\"pinned\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_capacity_bytes{kind=\"pinned\"} 50\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_evictable_bytes{kind=\"pinned\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_table_used{table=\"streams\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_table_capacity{table=\"streams\"} 64\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_table_used{table=\"operations\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_table_capacity{table=\"calls\"} 9\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_pinned_kept_bytes 4096\n"));
}

TEST(AdmissionMetrics, SeveralDevicesHaveMemoryOfTheirOwn) {
  Registry registry;
  const AdmissionMetrics metrics(registry, {"cuda:0", "cuda:1"});
  LedgerOptions options;
  options.devices.resize(2);
  options.devices[0].capacity.resident_bytes = 10;
  options.devices[1].capacity.resident_bytes = 20;
  const Ledger ledger(options);
  metrics.Set(ledger, {0, 1});
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_used_bytes{device=\"cuda:0\",kind=\"resident\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_capacity_bytes{device=\"cuda:0\",kind=\"resident\"} 10\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_capacity_bytes{device=\"cuda:1\",kind=\"resident\"} 20\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_evictable_bytes{device=\"cuda:0\",kind=\"resident\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_evictable_bytes{device=\"cuda:1\",kind=\"resident\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_memory_used_bytes{kind=\"pinned\"} 0\n"));
}

}  // namespace
}  // namespace intrawarp::server
