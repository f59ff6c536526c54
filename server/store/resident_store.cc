// SPDX-License-Identifier: Apache-2.0
#include "server/store/resident_store.h"

#include "server/base/seams.h"

namespace intrawarp::server {

std::optional<Expiry> ExpiryAfter(const Seams& seams, std::optional<std::chrono::nanoseconds> ttl) {
  if (!ttl) return std::nullopt;
  const auto system_ttl = std::chrono::duration_cast<std::chrono::system_clock::duration>(*ttl);
  const auto steady_ttl = std::chrono::duration_cast<std::chrono::steady_clock::duration>(*ttl);
  return Expiry{seams.system_now() + system_ttl, seams.steady_now() + steady_ttl};
}

absl::Status SeveralOwners(absl::string_view name) {
  return absl::FailedPreconditionError(
      absl::StrCat("several owners have ", name, ": only they themselves can name it by its id"));
}

}  // namespace intrawarp::server
