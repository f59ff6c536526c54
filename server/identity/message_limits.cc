// SPDX-License-Identifier: Apache-2.0
#include "server/identity/message_limits.h"

#include <algorithm>
#include <iterator>

namespace intrawarp::server {

void MessageLimits::Bucket::Fill(Time now) {
  const double seconds = std::max(0.0, std::chrono::duration<double>(now - filled_).count());
  tokens_ = std::min<double>(rate_, tokens_ + seconds * rate_);
  filled_ = std::max(filled_, now);
}

bool MessageLimits::Bucket::Take(Time now) {
  std::lock_guard<std::mutex> lock(mutex_);
  Fill(now);
  if (tokens_ < 1) return false;
  tokens_ -= 1;
  return true;
}

bool MessageLimits::Bucket::IsFull(Time now) {
  std::lock_guard<std::mutex> lock(mutex_);
  Fill(now);
  return tokens_ >= rate_;
}

MessageLimits::Limit MessageLimits::Sender::Take(Time now) const {
  if (connection_ != nullptr && !connection_->Take(now)) return Limit::kConnection;
  if (identity_ != nullptr && !identity_->Take(now)) return Limit::kIdentity;
  return Limit::kNone;
}

std::shared_ptr<MessageLimits::Bucket> MessageLimits::BucketOf(Buckets& buckets, const std::string& key, int rate,
                                                               Time now) {
  if (rate == 0 || key.empty()) return nullptr;
  for (auto it = buckets.begin(); it != buckets.end();) {
    const bool idle = it->second.use_count() == 1 && it->second->IsFull(now);
    it = idle ? buckets.erase(it) : std::next(it);
  }
  std::shared_ptr<Bucket>& bucket = buckets[key];
  if (bucket == nullptr) bucket = std::make_shared<Bucket>(rate, now);
  return bucket;
}

MessageLimits::Sender MessageLimits::Enter(const std::string& connection, const std::string& identity, Time now) {
  std::lock_guard<std::mutex> lock(mutex_);
  Sender sender;
  sender.connection_ = BucketOf(of_connection_, connection, options_.connection_rate, now);
  sender.identity_ = BucketOf(of_identity_, identity, options_.identity_rate, now);
  return sender;
}

int64_t MessageLimits::capacity(Limit limit) const {
  switch (limit) {
    case Limit::kNone:
      return 0;
    case Limit::kConnection:
      return options_.connection_rate;
    case Limit::kIdentity:
      break;
  }
  return options_.identity_rate;
}

int64_t MessageLimits::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(of_connection_.size() + of_identity_.size());
}

}  // namespace intrawarp::server
