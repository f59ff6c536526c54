// SPDX-License-Identifier: Apache-2.0
// The frame that benches of the transport send: a ball in a cube of 256 mm, and the server's part of its latency.
#ifndef INTRAWARP_TESTS_BENCH_BALL_FRAME_H_
#define INTRAWARP_TESTS_BENCH_BALL_FRAME_H_

#include <string>

#include "engine/geometry/geometry.h"
#include "intrawarp/v1/registration.pb.h"

namespace intrawarp {

inline Geometry Cube(int size) {
  Geometry geometry;
  geometry.size = {size, size, size};
  geometry.spacing = {256.0 / size, 256.0 / size, 256.0 / size};
  return geometry;
}

// The voxels of Cube(size), x fastest.
template <typename T>
std::string Ball(int size) {
  std::string bytes(sizeof(T) * size * size * size, '\0');
  auto* voxel = reinterpret_cast<T*>(bytes.data());
  for (int z = 0; z < size; ++z) {
    for (int y = 0; y < size; ++y) {
      for (int x = 0; x < size; ++x) {
        const int dx = 2 * x - size, dy = 2 * y - size, dz = 2 * z - size;
        *voxel++ = static_cast<T>(dx * dx + dy * dy + 2 * dz * dz < size * size ? 1000 + x * 256 / size : 0);
      }
    }
  }
  return bytes;
}

// Without receiving and sending.
inline double DeviceMs(const v1::LatencyBreakdown& latency) {
  return latency.queue_ms() + latency.upload_ms() + latency.prepare_ms() + latency.optimise_ms() + latency.assess_ms() +
         latency.encode_ms() + latency.download_ms();
}

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_BENCH_BALL_FRAME_H_
