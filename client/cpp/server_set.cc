// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/server_set.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/file/digest.h"

namespace intrawarp::client {
namespace {

uint64_t Weight(const std::string& address, absl::string_view key) {
  const std::string text = absl::StrCat(address, "\n", key);
  const std::string digest = io::Sha256Of(text.data(), text.size());
  uint64_t weight = 0;
  for (int i = 0; i < 8; ++i) weight = weight << 8 | static_cast<unsigned char>(digest[static_cast<size_t>(i)]);
  return weight;
}

}  // namespace

ServerSet::ServerSet(std::vector<std::string> addresses) : addresses_(std::move(addresses)) {
  std::sort(addresses_.begin(), addresses_.end());
  addresses_.erase(std::unique(addresses_.begin(), addresses_.end()), addresses_.end());
}

std::vector<std::string> ServerSet::Order(absl::string_view key) const {
  std::vector<std::pair<uint64_t, std::string>> weighted;
  for (const std::string& address : addresses_) weighted.emplace_back(Weight(address, key), address);
  std::sort(weighted.begin(), weighted.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  std::vector<std::string> order;
  for (auto& [weight, address] : weighted) order.push_back(std::move(address));
  return order;
}

}  // namespace intrawarp::client
