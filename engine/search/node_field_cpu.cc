// SPDX-License-Identifier: Apache-2.0
#include "engine/device/parallel.h"
#include "engine/search/node_field_kernels.h"

namespace intrawarp::cpu {
namespace {

// body(place, node) for each node.
template <typename Body>
void ForNodes(Int3 size, const Body& body) {
  ParallelFor(int64_t{size.y} * size.z, [&](int64_t row) {
    const int y = static_cast<int>(row % size.y), z = static_cast<int>(row / size.y);
    for (int x = 0; x < size.x; ++x) body(row * size.x + x, Int3{x, y, z});
  });
}

}  // namespace

absl::Status RunConsistencyRound(const ExecContext&, const ConsistencyRound& in) {
  ForNodes(in.size, [&](int64_t place, Int3 node) { MakeNodeConsistent(in, place, node); });
  return absl::OkStatus();
}

absl::Status ToControlGrid(const ExecContext&, const ControlGridTask& in) {
  ForNodes(in.points, [&](int64_t place, Int3 point) { WriteControlPoint(in, place, point); });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
