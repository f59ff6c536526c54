// SPDX-License-Identifier: Apache-2.0
#include "client/phantom/voxels.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

namespace intrawarp::phantom {
namespace {

// body(row) for row in [0, count).
template <typename Body>
void ForEachRow(int64_t count, const Body& body) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t row; (row = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(row);
  };
  std::vector<std::jthread> others;
  try {
    for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) others.emplace_back(work);
  } catch (const std::system_error&) {
    // The threads that could be started share the rows.
  }
  work();
}

}  // namespace

void ForEachVoxel(const Geometry& g, const std::function<void(int64_t, Vec3d)>& body) {
  const AffineMap to_physical = IndexToPhysical(g);
  ForEachRow(int64_t{g.size.y} * g.size.z, [&](int64_t row) {
    const int y = static_cast<int>(row % g.size.y), z = static_cast<int>(row / g.size.y);
    for (int x = 0; x < g.size.x; ++x) {
      body(row * g.size.x + x, to_physical({double(x), double(y), double(z)}));
    }
  });
}

io::HostVolume EmptyVolume(const Geometry& geometry, PixelType type) {
  io::HostVolume volume;
  volume.geometry = geometry;
  volume.pixel_type = type;
  volume.pixels.resize(geometry.voxels() * BytesPerPixel(type));
  return volume;
}

int16_t ToInt16(double value) { return static_cast<int16_t>(std::clamp(std::lround(value), -32768l, 32767l)); }

void SetPixel(io::HostVolume& volume, int64_t index, int16_t value) {
  std::memcpy(volume.pixels.data() + index * sizeof(value), &value, sizeof(value));
}

int16_t GetPixel(const io::HostVolume& volume, int64_t index) {
  int16_t value;
  std::memcpy(&value, volume.pixels.data() + index * sizeof(value), sizeof(value));
  return value;
}

bool Contains(const Geometry& g, Vec3d p) {
  const Vec3d index = PhysicalToIndex(g)(p);
  for (int a = 0; a < 3; ++a)
    if (index[a] < 0 || index[a] > g.size[a] - 1 + 1e-9) return g.is_2d() && a == 2 && std::abs(index[a]) < 0.5;
  return true;
}

}  // namespace intrawarp::phantom
