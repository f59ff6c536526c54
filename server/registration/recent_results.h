// SPDX-License-Identifier: Apache-2.0
// RecentResults: the last transforms of a Navigate stream, which stay in the store while the stream lives.
#ifndef INTRAWARP_SERVER_REGISTRATION_RECENT_RESULTS_H_
#define INTRAWARP_SERVER_REGISTRATION_RECENT_RESULTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/functional/function_ref.h"
#include "server/ledger/grant_pool.h"
#include "server/store/transform_store.h"

namespace intrawarp::server {

// Erases its results from the store when it goes. Thread-compatible.
class RecentResults {
 public:
  // At most `count` results; `store` must outlive this.
  RecentResults(TransformStore& store, size_t count) : store_(store), count_(count) {}
  RecentResults(const RecentResults&) = delete;
  RecentResults& operator=(const RecentResults&) = delete;
  ~RecentResults();

  // Takes a stored transform; the oldest makes place for it.
  void Add(std::shared_ptr<const StoredTransform> result);

  // Drops the oldest results until a session can claim `needed` resident bytes on the device on which all of them lie;
  // what the ledger can reclaim goes before. Drops nothing when that would not suffice, and no result whose memory
  // others hold.
  void MakeRoom(int64_t needed, const Ledger& ledger, int device = 0);
  // The same for resident bytes that are lent by `pool`.
  void MakeRoom(int64_t needed, const GrantPool& pool);

 private:
  // `room`: what there is already. A result whose memory does not come back to there, by `counts`, stays.
  void MakeRoom(int64_t needed, int64_t room, absl::FunctionRef<bool(const Grant&)> counts);

  TransformStore& store_;
  const size_t count_;
  std::deque<std::shared_ptr<const StoredTransform>> results_;  // oldest first
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_REGISTRATION_RECENT_RESULTS_H_
