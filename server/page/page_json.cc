// SPDX-License-Identifier: Apache-2.0
#include "server/page/page_json.h"

namespace intrawarp::server {

std::string JsonText(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

Json GridJson(const Geometry& grid) {
  const AffineMap map = IndexToPhysical(grid);
  Json rows = Json::array();
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 4; ++c) rows.push_back(map.m[r][c]);
  }
  return {{"size", {grid.size.x, grid.size.y, grid.size.z}}, {"to_lps", std::move(rows)}};
}

double SecondsOf(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

double MillisecondsOf(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace intrawarp::server
