// SPDX-License-Identifier: Apache-2.0
// The two versions of the operators of node_field.h, and the arithmetic that they share. Internal to this room.
#ifndef INTRAWARP_ENGINE_SEARCH_NODE_FIELD_KERNELS_H_
#define INTRAWARP_ENGINE_SEARCH_NODE_FIELD_KERNELS_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/transform/displacement.h"

namespace intrawarp {

INTRAWARP_HD inline Vec3f NodeAt(const float* field, int64_t place) {
  return {field[3 * place], field[3 * place + 1], field[3 * place + 2]};
}

// (f - b(x + f(x))) / 2 at a node.
INTRAWARP_HD inline Vec3f ConsistentAt(const float* f, const float* b, Int3 size, int64_t place, Int3 node) {
  const Vec3f own = NodeAt(f, place);
  Vec3d index{};
  for (int a = 0; a < 3; ++a) index[a] = fmin(fmax(static_cast<double>(node[a]) + own[a], 0.0), size[a] - 1.0);
  return 0.5f * (own - ToVec3f(SampleDisplacement(b, size, index)));
}

// One round, from one pair of fields to the other.
struct ConsistencyRound {
  Int3 size;
  const float *forward = nullptr, *backward = nullptr;
  float *next_forward = nullptr, *next_backward = nullptr;
};

INTRAWARP_HD inline void StoreNode(Vec3f value, int64_t place, float* field) {
  for (int a = 0; a < 3; ++a) field[3 * place + a] = value[a];
}

INTRAWARP_HD inline void MakeNodeConsistent(const ConsistencyRound& in, int64_t place, Int3 node) {
  StoreNode(ConsistentAt(in.forward, in.backward, in.size, place, node), place, in.next_forward);
  StoreNode(ConsistentAt(in.backward, in.forward, in.size, place, node), place, in.next_backward);
}

// Control points beyond the nodes, on each side of an axis of several.
inline constexpr int kControlPointsBeyond = 2;

struct ControlGridTask {
  const float* field = nullptr;
  Int3 nodes, points;
  // Nodes to mm, its linear part.
  AffineMap to_mm;
  float* out = nullptr;
};

INTRAWARP_HD inline Vec3f ClampedNode(const ControlGridTask& in, int x, int y, int z) {
  const Int3 n = in.nodes;
  const int i = x < 0     ? 0
                : x < n.x ? x
                          : n.x - 1,
            j = y < 0     ? 0
                : y < n.y ? y
                          : n.y - 1,
            k = z < 0     ? 0
                : z < n.z ? z
                          : n.z - 1;
  return NodeAt(in.field, (int64_t{k} * n.y + j) * n.x + i);
}

// The field at a node after a spline's weights of 1/6 2/3 1/6 on each axis of several nodes.
INTRAWARP_HD inline Vec3f SmoothedNode(const ControlGridTask& in, Int3 node) {
  Vec3f sum;
  for (int k = -1; k <= 1; ++k) {
    for (int j = -1; j <= 1; ++j) {
      for (int i = -1; i <= 1; ++i) {
        const float weight = (i == 0 ? 4.0f : 1.0f) * (j == 0 ? 4.0f : 1.0f) * (k == 0 ? 4.0f : 1.0f) / 216;
        sum = sum + weight * ClampedNode(in, node.x + i, node.y + j, node.z + k);
      }
    }
  }
  return sum;
}

INTRAWARP_HD inline void WriteControlPoint(const ControlGridTask& in, int64_t place, Int3 point) {
  Int3 node{};
  for (int a = 0; a < 3; ++a) node[a] = in.points[a] == 1 ? 0 : point[a] - kControlPointsBeyond;
  const Vec3f value = 2.0f * ClampedNode(in, node.x, node.y, node.z) - SmoothedNode(in, node);
  const Vec3d mm = in.to_mm.Linear({value.x, value.y, value.z});
  StoreNode(ToVec3f(mm), place, in.out);
}

INTRAWARP_DECLARE_ON_DEVICES(absl::Status RunConsistencyRound(const ExecContext& ctx, const ConsistencyRound& in);
                             absl::Status ToControlGrid(const ExecContext& ctx, const ControlGridTask& in);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SEARCH_NODE_FIELD_KERNELS_H_
