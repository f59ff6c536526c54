// SPDX-License-Identifier: Apache-2.0
// JSON for the page. Thread-safe functions.
#ifndef INTRAWARP_SERVER_PAGE_PAGE_JSON_H_
#define INTRAWARP_SERVER_PAGE_PAGE_JSON_H_

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/geometry/geometry.h"

namespace intrawarp::server {

using Json = nlohmann::ordered_json;

// On one line. Text that is not UTF-8 is replaced by U+FFFD; numbers that are not finite are null.
std::string JsonText(const Json& json);
// {"size": [x, y, z], "to_lps": 3 x 4 numbers, row after row, from indices to mm}.
Json GridJson(const Geometry& grid);
// Seconds of the steady clock.
double SecondsOf(std::chrono::steady_clock::time_point time);
double MillisecondsOf(std::chrono::nanoseconds duration);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_PAGE_JSON_H_
