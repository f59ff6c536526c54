// SPDX-License-Identifier: Apache-2.0
#include "tests/support/eventually.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace intrawarp {
namespace {

constexpr std::chrono::seconds kLimit{120};
constexpr std::chrono::milliseconds kLongestPause{20};

}  // namespace

bool Eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kLimit;
  for (std::chrono::milliseconds pause{1}; !condition(); pause = std::min(2 * pause, kLongestPause)) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

}  // namespace intrawarp
