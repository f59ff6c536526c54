// SPDX-License-Identifier: Apache-2.0
// MessageLimits: how many messages a second the streams of a connection, and those of an identity, may bring, so that a
// client with many tiny messages cannot use up the threads of all.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_IDENTITY_MESSAGE_LIMITS_H_
#define INTRAWARP_SERVER_IDENTITY_MESSAGE_LIMITS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace intrawarp::server {

// Messages a second; a second's worth may come at once. 0: no limit.
struct MessageLimitOptions {
  int connection_rate = 20000;
  int identity_rate = 0;
};

class MessageLimits {
 public:
  using Time = std::chrono::steady_clock::time_point;
  enum class Limit { kNone, kConnection, kIdentity };

  // The tokens of one sender, which come at a constant rate. Thread-safe.
  class Bucket {
   public:
    Bucket(int rate, Time now) : rate_(rate), tokens_(rate), filled_(now) {}
    bool Take(Time now);
    bool IsFull(Time now);

   private:
    void Fill(Time now);

    const int rate_;
    std::mutex mutex_;
    double tokens_;
    Time filled_;
  };

  // One stream of a sender's. Copyable; empty by default, without a limit.
  class Sender {
   public:
    // Counts a message that came at `now`, and says which limit it passes.
    Limit Take(Time now) const;

   private:
    friend class MessageLimits;
    std::shared_ptr<Bucket> connection_;  // null: no limit
    std::shared_ptr<Bucket> identity_;
  };

  explicit MessageLimits(const MessageLimitOptions& options) : options_(options) {}

  // A stream of this connection and identity (empty: it has none), which begins at `now`.
  Sender Enter(const std::string& connection, const std::string& identity, Time now);
  // The messages a second of a limit.
  int64_t capacity(Limit limit) const;
  // Buckets that are remembered.
  int64_t size() const;

 private:
  using Buckets = std::map<std::string, std::shared_ptr<Bucket>>;
  // With the mutex held.
  static std::shared_ptr<Bucket> BucketOf(Buckets& buckets, const std::string& key, int rate, Time now);

  const MessageLimitOptions options_;
  mutable std::mutex mutex_;
  // A bucket without a stream stays until it is full again: a new stream gets no new tokens.
  Buckets of_connection_;
  Buckets of_identity_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_IDENTITY_MESSAGE_LIMITS_H_
