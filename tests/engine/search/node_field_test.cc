// SPDX-License-Identifier: Apache-2.0
#include "engine/search/node_field.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/transform/transform.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

class NodeFieldTest : public DeviceTest {
 protected:
  // In an arena of exactly the size that is asked for.
  void Consist(Int3 size, int rounds, std::vector<float>* forward, std::vector<float>* backward) {
    OwnedContext owned = *OwnedContext::Create(device(), MakeConsistentWorkspaceBytes(size));
    float *f = Upload(*forward), *b = Upload(*backward);
    ASSERT_OK(MakeConsistent(owned.context(), size, rounds, f, b));
    ASSERT_OK(device().Synchronize(owned.context().stream()));
    *forward = Download(f, forward->size());
    *backward = Download(b, backward->size());
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(NodeFieldTest);

// A field on a grid, linear between the nodes and constant beyond them.
struct Field {
  const std::vector<float>& values;
  Int3 size;

  double At(const double* index, int component) const {
    double sum = 0;
    for (int corner = 0; corner < 8; ++corner) {
      double weight = 1;
      int place[3];
      for (int a = 0; a < 3; ++a) {
        const double clamped = std::clamp(index[a], 0.0, size[a] - 1.0), lower = std::floor(clamped);
        const bool upper = (corner >> a & 1) != 0;
        weight *= upper ? clamped - lower : 1 - (clamped - lower);
        place[a] = std::min(static_cast<int>(lower) + (upper ? 1 : 0), size[a] - 1);
      }
      sum += weight * values[3 * ((place[2] * size.y + place[1]) * size.x + place[0]) + component];
    }
    return sum;
  }
};

std::vector<float> Round(const std::vector<float>& f, const std::vector<float>& b, Int3 size) {
  std::vector<float> next(f.size());
  for (int z = 0; z < size.z; ++z) {
    for (int y = 0; y < size.y; ++y) {
      for (int x = 0; x < size.x; ++x) {
        const size_t i = 3 * (static_cast<size_t>(z * size.y + y) * size.x + x);
        const double there[3] = {x + double{f[i]}, y + double{f[i + 1]}, z + double{f[i + 2]}};
        for (int c = 0; c < 3; ++c) next[i + c] = static_cast<float>(0.5 * (f[i + c] - Field{b, size}.At(there, c)));
      }
    }
  }
  return next;
}

TEST_P(NodeFieldTest, ConsistencyEqualsTheDefinition) {
  for (const Int3 size : {Int3{1, 1, 1}, Int3{9, 6, 1}, Int3{7, 5, 4}}) {
    for (const int rounds : {0, 1, 4}) {
      const size_t floats = 3 * static_cast<size_t>(size.x) * size.y * size.z;
      std::vector<float> forward = RandomFloats(floats, 3, -2, 2), backward = RandomFloats(floats, 4, -2, 2);
      std::vector<float> f = forward, b = backward;
      for (int i = 0; i < rounds; ++i) {
        const std::vector<float> next = Round(f, b, size);
        b = Round(b, f, size);
        f = next;
      }
      Consist(size, rounds, &forward, &backward);
      for (size_t i = 0; i < floats; ++i) {
        ASSERT_NEAR(forward[i], f[i], 2e-5) << i;
        ASSERT_NEAR(backward[i], b[i], 2e-5) << i;
      }
    }
  }
}

Geometry Nodes(Int3 size) {
  Geometry nodes;
  nodes.size = size;
  nodes.spacing = {4, 5, 6};
  nodes.origin = {-10, 20, 30};
  const double c = std::cos(0.3), s = std::sin(0.3);
  nodes.direction[0][0] = c;
  nodes.direction[0][1] = -s;
  nodes.direction[1][0] = s;
  nodes.direction[1][1] = c;
  return nodes;
}

// A field that is linear in the nodes is kept to the last digits away from the faces, and is defined on all of the
// domain.
TEST_P(NodeFieldTest, AControlGridHasTheFieldOfItsNodes) {
  for (const Int3 size : {Int3{9, 8, 1}, Int3{8, 7, 6}}) {
    const Geometry nodes = Nodes(size);
    std::vector<float> field;
    for (int z = 0; z < size.z; ++z) {
      for (int y = 0; y < size.y; ++y) {
        for (int x = 0; x < size.x; ++x) {
          field.insert(field.end(),
                       {0.1f * static_cast<float>(x), 0.2f * static_cast<float>(y) - 0.05f * static_cast<float>(x),
                        size.z == 1 ? 0 : 0.1f});
        }
      }
    }
    const Geometry grid = ControlGridOfNodes(nodes);
    auto* points = Poisoned<float>(3 * grid.voxels());
    ASSERT_OK(ToControlGrid(ctx(), Upload(field), nodes, {points, grid}));
    auto* out = Poisoned<float>(3 * nodes.voxels());
    Buffer copy = *device().Allocate(3 * grid.voxels() * sizeof(float), ctx().stream());
    ASSERT_OK(device().Copy(copy.as<float>(), points, 3 * grid.voxels() * sizeof(float), ctx().stream()));
    const Transform transform(AffineMap::Identity(), std::move(copy), grid, nodes);
    ASSERT_OK(EvaluateField(ctx(), transform, nodes, 0, nodes.voxels(), out));
    const std::vector<float> mm = Download(out, 3 * nodes.voxels());
    const AffineMap to_mm = IndexToPhysical(nodes);
    size_t i = 0;
    for (int z = 0; z < size.z; ++z) {
      for (int y = 0; y < size.y; ++y) {
        for (int x = 0; x < size.x; ++x, i += 3) {
          const Vec3d expected = to_mm.Linear({field[i], field[i + 1], field[i + 2]});
          const bool inner = x > 1 && y > 1 && x < size.x - 2 && y < size.y - 2;
          for (int a = 0; a < 3; ++a) EXPECT_NEAR(mm[i + a], expected[a], inner ? 1e-4 : 0.35) << x << " " << y;
        }
      }
    }
  }
}

}  // namespace
}  // namespace intrawarp
