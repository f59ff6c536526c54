// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/search_rate.h"

#include <algorithm>

namespace intrawarp::server {

bool SearchRate::Take(const std::string& who, bool sees_patients, Time now) {
  const double capacity = sees_patients ? kSearchesAMinute : kBlindSearchesAMinute;
  std::lock_guard<std::mutex> lock(mutex_);
  Bucket& bucket = buckets_.try_emplace(who, Bucket{0, now}).first->second;
  const double minutes = std::chrono::duration<double, std::ratio<60>>(now - bucket.at).count();
  bucket.used = std::max(0.0, bucket.used - capacity * std::max(0.0, minutes));
  bucket.at = now;
  if (bucket.used + 1 > capacity) return false;
  bucket.used += 1;
  return true;
}

}  // namespace intrawarp::server
