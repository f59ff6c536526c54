// SPDX-License-Identifier: Apache-2.0
// Placement: which device gets a piece of work or a session, from what is known of each. Pure functions over plain
// values.
#ifndef INTRAWARP_SERVER_PLACEMENT_PLACEMENT_H_
#define INTRAWARP_SERVER_PLACEMENT_PLACEMENT_H_

#include <chrono>
#include <optional>
#include <vector>

namespace intrawarp::server {

// A device as a piece of work sees it.
struct PlacementState {
  // It takes work, and every input is there or can be copied there.
  bool usable = true;
  // The work, and the copies that it needs, have room there now.
  bool fits = true;
  // What copying the missing inputs there would take, as predicted.
  std::chrono::nanoseconds copy{0};
  // Until the work would start, as predicted.
  std::chrono::nanoseconds wait{0};
  // The part of its time that open sessions take; 1 is all.
  double load = 0;
};

// Devices whose loads differ by less count as equally loaded.
inline constexpr double kEqualLoad = 0.02;

// The index of the usable device on which the work starts soonest, the copying of its inputs included; among equals the
// first. Devices on which it fits go before those on which it does not. nullopt when none is usable.
std::optional<int> PlaceWork(const std::vector<PlacementState>& devices);
// The same for a session, which stays: the least loaded of the usable devices, and among equally loaded ones as
// PlaceWork.
std::optional<int> PlaceSession(const std::vector<PlacementState>& devices);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PLACEMENT_PLACEMENT_H_
