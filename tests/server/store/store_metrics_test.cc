// SPDX-License-Identifier: Apache-2.0
#include "server/store/store_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(StoreMetrics, CountsWhatLeavesTheDeviceAndComesBack) {
  Registry registry;
  const StoreMetrics metrics(registry);
  metrics.CountEviction();
  metrics.VolumeLoaded(true, std::chrono::milliseconds(40));
  metrics.VolumeLoaded(false, std::chrono::milliseconds(50));
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("\nintrawarp_volume_evictions_total 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_volume_loads_total{outcome=\"ok\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_volume_loads_total{outcome=\"failed\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nintrawarp_volume_load_seconds_sum 0.04\n"));
}

TEST(StoreMetrics, ObjectsAreThoseOfTheLastSample) {
  Registry registry;
  const StoreMetrics metrics(registry);
  EXPECT_THAT(registry.Scrape(), HasSubstr("intrawarp_resident_objects{kind=\"volume\"} 0\n"));
  StoreSample sample{{2, 200}, {3, 300}, 4, 5, std::nullopt};
  metrics.Set(sample);
  EXPECT_THAT(registry.Scrape(), Not(HasSubstr("intrawarp_state_disk")));
  sample.disk = {8, 9};
  metrics.Set(sample);
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_resident_objects{kind=\"volume\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_resident_objects{kind=\"sparse_matrix\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_resident_objects{kind=\"transform\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_volumes{residency=\"spooled\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_volume_bytes{residency=\"resident\"} 200\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_state_disk_free_bytes 8\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_state_disk_size_bytes 9\n"));
}

}  // namespace
}  // namespace intrawarp::server
