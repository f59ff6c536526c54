// SPDX-License-Identifier: Apache-2.0
#include "server/identity/call_limits.h"

#include <algorithm>

namespace intrawarp::server {
namespace {

int CountOf(const std::map<std::string, int>& counts, const std::string& key) {
  const auto it = counts.find(key);
  return it == counts.end() ? 0 : it->second;
}

void Decrement(std::map<std::string, int>& counts, const std::string& key) {
  const auto it = counts.find(key);
  if (it != counts.end() && --it->second == 0) counts.erase(it);
}

}  // namespace

CallLimits::Place::~Place() {
  if (limits_ != nullptr) limits_->Leave(*this);
}

CallLimits::Limit CallLimits::Enter(const std::string& connection, const std::string& identity, Time now,
                                    Place& place) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (options_.connection_calls > 0 && CountOf(of_connection_, connection) >= options_.connection_calls) {
    return Limit::kConnectionCalls;
  }
  if (!identity.empty()) {
    if (options_.identity_calls > 0 && CountOf(of_identity_, identity) >= options_.identity_calls) {
      return Limit::kIdentityCalls;
    }
    if (!TakeFromBucket(identity, now)) return Limit::kIdentityRate;
    ++of_identity_[identity];
  }
  ++of_connection_[connection];
  place.limits_ = this;
  place.connection_ = connection;
  place.identity_ = identity;
  return Limit::kNone;
}

bool CallLimits::TakeFromBucket(const std::string& identity, Time now) {
  if (options_.identity_rate == 0) return true;
  const double most = options_.identity_rate;
  const auto [it, is_new] = buckets_.try_emplace(identity, Bucket{most, now});
  Bucket& bucket = it->second;
  const double seconds = std::max(0.0, std::chrono::duration<double>(now - bucket.filled).count());
  bucket.calls = std::min(most, bucket.calls + seconds * most);
  bucket.filled = std::max(bucket.filled, now);
  if (bucket.calls < 1) return false;
  bucket.calls -= 1;
  return true;
}

void CallLimits::Leave(const Place& place) {
  std::lock_guard<std::mutex> lock(mutex_);
  Decrement(of_connection_, place.connection_);
  if (!place.identity_.empty()) Decrement(of_identity_, place.identity_);
}

int64_t CallLimits::capacity(Limit limit) const {
  switch (limit) {
    case Limit::kConnectionCalls:
      return options_.connection_calls;
    case Limit::kIdentityCalls:
      return options_.identity_calls;
    case Limit::kIdentityRate:
      return options_.identity_rate;
    case Limit::kNone:
      break;
  }
  return 0;
}

}  // namespace intrawarp::server
