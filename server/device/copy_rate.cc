// SPDX-License-Identifier: Apache-2.0
#include "server/device/copy_rate.h"

#include <algorithm>

namespace intrawarp::server {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr Seconds kSetup{1e-3};  // beside the bytes
constexpr int64_t kLeastBytes = int64_t{4} << 20;
// The part of the newest copy in the mean: one that waited behind a large upload counts as little as it is typical.
constexpr double kNewest = 0.25;

}  // namespace

std::chrono::nanoseconds CopyRate::Predict(int64_t bytes) const {
  if (bytes <= 0) return std::chrono::nanoseconds(0);
  std::lock_guard<std::mutex> lock(mutex_);
  const Seconds took = kSetup + Seconds(static_cast<double>(bytes) / bytes_per_second_);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(took);
}

void CopyRate::Add(int64_t bytes, std::chrono::nanoseconds took) {
  if (bytes < kLeastBytes) return;
  const double seconds = std::max(1e-5, (Seconds(took) - kSetup).count());
  std::lock_guard<std::mutex> lock(mutex_);
  // A mean of seconds a byte, which is what is predicted.
  const double seconds_per_byte = (1 - kNewest) / bytes_per_second_ + kNewest * seconds / static_cast<double>(bytes);
  bytes_per_second_ = 1 / seconds_per_byte;
}

}  // namespace intrawarp::server
