// SPDX-License-Identifier: Apache-2.0
// FairPlaces: who gives way when the places for callers that nobody knows are all taken: the oldest holder of the
// network that holds most of them. A caller of another network is never the one. Where many networks hold equally many,
// as an attacker with many addresses has it, the oldest of all goes, so that whoever comes has as much time as others.
//
// Thread safety: thread-compatible.
#ifndef INTRAWARP_SERVER_BASE_FAIR_PLACES_H_
#define INTRAWARP_SERVER_BASE_FAIR_PLACES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace intrawarp::server {

class FairPlaces {
 public:
  // Holders are named by the order of their coming. A holder of a lower rank gives way before the others of its
  // network.
  using Id = uint64_t;

  void Enter(const std::string& network, Id id, int rank = 0) {
    Holders& holders = holders_[network];
    if (!holders.empty()) standings_.erase(StandingOf(network, holders));
    holders.emplace(rank, id);
    standings_.insert(StandingOf(network, holders));
    ++size_;
  }

  // Without effect for a holder that is not there with this rank.
  void Leave(const std::string& network, Id id, int rank = 0) {
    const auto it = holders_.find(network);
    if (it == holders_.end() || it->second.count({rank, id}) == 0) return;
    standings_.erase(StandingOf(network, it->second));
    it->second.erase({rank, id});
    --size_;
    if (it->second.empty()) {
      holders_.erase(it);
    } else {
      standings_.insert(StandingOf(network, it->second));
    }
  }

  size_t size() const { return size_; }

  // Who gives way for a newcomer of `network`. Of networks that hold equally many, the newcomer's own. Holders of a
  // rank below `spared_below` do so only where their network has no others. nullopt: nobody holds a place.
  std::optional<Id> GivesWayFor(const std::string& network, int spared_below = 0) const {
    if (standings_.empty()) return std::nullopt;
    const Holders& holders = Fullest(network);
    const auto first = holders.lower_bound({spared_below, Id{0}});
    return first == holders.end() ? holders.begin()->second : first->second;
  }

 private:
  using Holders = std::set<std::pair<int, Id>>;
  // The greatest is that of the network that gives way: by the number of its holders, then by the age of its first one.
  // A rank does not count among networks: whoever comes has the lowest.
  using Standing = std::tuple<size_t, Id, std::string>;
  static Standing StandingOf(const std::string& network, const Holders& holders) {
    return {holders.size(), ~holders.begin()->second, network};
  }
  // With a holder.
  const Holders& Fullest(const std::string& network) const {
    const auto own = holders_.find(network);
    const Standing& fullest = *standings_.rbegin();
    const bool is_own = own != holders_.end() && own->second.size() == std::get<0>(fullest);
    return is_own ? own->second : holders_.at(std::get<std::string>(fullest));
  }

  std::unordered_map<std::string, Holders> holders_;  // of networks that have any
  std::set<Standing> standings_;
  size_t size_ = 0;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BASE_FAIR_PLACES_H_
