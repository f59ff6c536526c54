// SPDX-License-Identifier: Apache-2.0
#include "server/base/seams.h"

#include <random>

#include "absl/strings/str_format.h"

namespace intrawarp::server {

Seams SystemSeams() {
  return {[] {
            // One per thread: std::random_device itself makes no promise about concurrent use.
            thread_local std::random_device device;
            return static_cast<uint32_t>(device());
          },
          [] { return std::chrono::steady_clock::now(); }, [] { return std::chrono::system_clock::now(); }};
}

std::string RandomId(const Seams& seams) {
  const uint32_t high = seams.random();
  const uint32_t low = seams.random();
  return absl::StrFormat("%08x%08x", high, low);
}

}  // namespace intrawarp::server
