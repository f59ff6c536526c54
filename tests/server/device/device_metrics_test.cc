// SPDX-License-Identifier: Apache-2.0
#include "server/device/device_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(DeviceMetrics, TellsHowTheDeviceIs) {
  Registry registry;
  const DeviceMetrics metrics(registry, {"cpu"});
  EXPECT_THAT(registry.Scrape(), HasSubstr("intrawarp_device_errors_total{device=\"cpu\",error=\"lost\"} 0\n"));
  EXPECT_THAT(registry.Scrape(), Not(HasSubstr("intrawarp_device_memory_bytes")));
  metrics.Set(0, {DeviceMemory{100, 40}, /*healthy=*/false, WatchdogState::kHung});
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_device_healthy{device=\"cpu\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_device_memory_bytes{device=\"cpu\",state=\"used\"} 60\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_device_memory_bytes{device=\"cpu\",state=\"free\"} 40\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_watchdog_state{device=\"cpu\",state=\"hung\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_watchdog_state{device=\"cpu\",state=\"well\"} 0\n"));
}

TEST(DeviceMetrics, SeveralDevicesHaveSeriesOfTheirOwn) {
  Registry registry;
  const DeviceMetrics metrics(registry, {"cuda:0", "cuda:1"});
  metrics.CountError(DeviceError::kLost, 1);
  metrics.Set(0, {std::nullopt, /*healthy=*/true, WatchdogState::kWell});
  metrics.Set(1, {std::nullopt, /*healthy=*/false, WatchdogState::kLost});
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_device_healthy{device=\"cuda:0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_device_healthy{device=\"cuda:1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_device_errors_total{device=\"cuda:0\",error=\"lost\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_device_errors_total{device=\"cuda:1\",error=\"lost\"} 1\n"));
}

}  // namespace
}  // namespace intrawarp::server
