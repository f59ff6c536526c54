// SPDX-License-Identifier: Apache-2.0
// GrantPool: a grant from which parts are lent again and again. What a part gives back returns to the pool instead of
// the ledger, so that nobody else can take it meanwhile.
//
// Thread safety: safe for concurrent use. The pool lives until the last of its parts is gone.
#ifndef INTRAWARP_SERVER_LEDGER_GRANT_POOL_H_
#define INTRAWARP_SERVER_LEDGER_GRANT_POOL_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "server/ledger/ledger.h"

namespace intrawarp::server {

class GrantPool : public std::enable_shared_from_this<GrantPool> {
 public:
  static std::shared_ptr<GrantPool> Create(Grant grant);

  // A part of what the pool holds now; nullopt when it holds less of any resource, or is closed.
  std::optional<Grant> Lend(const Amounts& amounts);
  // Device memory that the pool holds now.
  int64_t resident_bytes() const;
  // Whether `grant` is a part of this pool.
  bool Lent(const Grant& grant) const { return grant.pool_.get() == this; }
  // Gives the ledger what the pool holds, and what comes back later.
  void Close();

 private:
  friend class Grant;
  explicit GrantPool(Grant grant) : free_(std::move(grant)) {}

  void TakeBack(Grant part);

  mutable std::mutex mutex_;
  Grant free_;
  bool is_closed_ = false;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_LEDGER_GRANT_POOL_H_
