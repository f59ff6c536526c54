// SPDX-License-Identifier: Apache-2.0
// FairPlaces: who gives way when the places for callers that nobody knows are all taken: the oldest holder of the
// network that holds most of them. A caller of another network is never the one.
//
// Thread safety: thread-compatible.
#ifndef INTRAWARP_SERVER_FAIR_PLACES_H_
#define INTRAWARP_SERVER_FAIR_PLACES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace intrawarp::server {

class FairPlaces {
 public:
  // Holders are named by the order of their coming. A holder of a lower rank gives way before the others of its
  // network.
  using Id = uint64_t;

  void Enter(const std::string& network, Id id, int rank = 0) {
    std::set<std::pair<int, Id>>& holders = holders_[network];
    counts_.erase({holders.size(), network});
    holders.emplace(rank, id);
    counts_.emplace(holders.size(), network);
    ++size_;
  }

  // Without effect for a holder that is not there with this rank.
  void Leave(const std::string& network, Id id, int rank = 0) {
    const auto it = holders_.find(network);
    if (it == holders_.end() || it->second.count({rank, id}) == 0) return;
    counts_.erase({it->second.size(), network});
    it->second.erase({rank, id});
    --size_;
    if (it->second.empty()) {
      holders_.erase(it);
    } else {
      counts_.emplace(it->second.size(), network);
    }
  }

  size_t size() const { return size_; }

  // Who gives way for a newcomer of `network`. Of networks that hold equally many, the newcomer's own. Holders of a
  // rank below `spared_below` do so only where their network has no others. nullopt: nobody holds a place.
  std::optional<Id> GivesWayFor(const std::string& network, int spared_below = 0) const {
    if (counts_.empty()) return std::nullopt;
    const std::set<std::pair<int, Id>>& holders = Fullest(network);
    const auto first = holders.lower_bound({spared_below, Id{0}});
    return first == holders.end() ? holders.begin()->second : first->second;
  }

 private:
  // With a holder.
  const std::set<std::pair<int, Id>>& Fullest(const std::string& network) const {
    const auto own = holders_.find(network);
    const auto& [most, fullest] = *counts_.rbegin();
    return own != holders_.end() && own->second.size() == most ? own->second : holders_.at(fullest);
  }

  std::unordered_map<std::string, std::set<std::pair<int, Id>>> holders_;  // of networks that have any
  std::set<std::pair<size_t, std::string>> counts_;
  size_t size_ = 0;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_FAIR_PLACES_H_
