// SPDX-License-Identifier: Apache-2.0
// CallLimits: how many calls an identity and a connection may have under way, and how often an identity may call, so
// that one client cannot use up the places of all.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_IDENTITY_CALL_LIMITS_H_
#define INTRAWARP_SERVER_IDENTITY_CALL_LIMITS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace intrawarp::server {

// 0: no limit.
struct CallLimitOptions {
  int connection_calls = 512;
  int identity_calls = 512;
  // Calls a second of one identity; a second's worth may come at once.
  int identity_rate = 0;
};

class CallLimits {
 public:
  using Time = std::chrono::steady_clock::time_point;
  enum class Limit { kNone, kConnectionCalls, kIdentityCalls, kIdentityRate };

  // The place of a call; gives it back when it goes. Movable; empty by default.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept { *this = std::move(other); }
    Place& operator=(Place&& other) noexcept {
      std::swap(limits_, other.limits_);
      std::swap(connection_, other.connection_);
      std::swap(identity_, other.identity_);
      return *this;
    }
    ~Place();

   private:
    friend class CallLimits;
    CallLimits* limits_ = nullptr;
    std::string connection_;
    std::string identity_;
  };

  explicit CallLimits(const CallLimitOptions& options) : options_(options) {}

  // Takes a place at `now`, and says which limit keeps the call out. A call without an identity (an empty name) counts
  // for its connection alone. `place` is empty before.
  Limit Enter(const std::string& connection, const std::string& identity, Time now, Place& place);
  // The number that belongs to a limit.
  int64_t capacity(Limit limit) const;

 private:
  // The calls that an identity may make at once just now.
  struct Bucket {
    double calls = 0;
    Time filled;
  };
  // With the mutex held.
  bool TakeFromBucket(const std::string& identity, Time now);
  void Leave(const Place& place);

  const CallLimitOptions options_;
  std::mutex mutex_;
  // Calls under way; only those that have any.
  std::map<std::string, int> of_connection_;
  std::map<std::string, int> of_identity_;
  // Buckets of the identities that ever called, which the files of credentials bound.
  std::map<std::string, Bucket> buckets_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_IDENTITY_CALL_LIMITS_H_
