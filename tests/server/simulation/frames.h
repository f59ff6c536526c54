// SPDX-License-Identifier: Apache-2.0
// Small frames for simulations: a blob that moves a little from frame to frame.
#ifndef INTRAWARP_TESTS_SERVER_SIMULATION_FRAMES_H_
#define INTRAWARP_TESTS_SERVER_SIMULATION_FRAMES_H_

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/geometry/geometry.h"
#include "intrawarp/v1/registration.pb.h"
#include "tests/server/bulk_client.h"
#include "wire/convert.h"

namespace intrawarp::server {

inline constexpr char kResident[] = "resident";
inline constexpr int kFrameSide = 6;

// Planes, since registrations of them are quick.
inline Geometry SquareGrid(int side) {
  Geometry grid;
  grid.size = {side, side, 1};
  grid.spacing = {4, 4, 4};
  return grid;
}
inline Geometry FrameGrid() { return SquareGrid(kFrameSide); }

inline std::vector<float> SquareVoxels(int side, int64_t number) {
  std::vector<float> voxels;
  const double shift = 0.2 * std::sin(static_cast<double>(number));
  for (int y = 0; y < side; ++y) {
    for (int x = 0; x < side; ++x) {
      const double dx = x - 2.3 - shift, dy = y - 2.6;
      voxels.push_back(static_cast<float>(100 * std::exp(-(dx * dx + 1.3 * dy * dy) / 6)));
    }
  }
  return voxels;
}
inline std::vector<float> FrameVoxels(int64_t number) { return SquareVoxels(kFrameSide, number); }

inline v1::FrameHeader FrameHeaderFor(int64_t number, int side) {
  v1::FrameHeader header;
  header.set_frame_number(number);
  *header.mutable_geometry() = GeometryToProto(SquareGrid(side));
  header.set_pixel_type(v1::PIXEL_TYPE_FLOAT32);
  header.set_total_bytes(int64_t{4} * side * side);
  return header;
}

inline std::vector<v1::Chunk> FrameChunks(int64_t number, int side, int count) {
  const std::vector<float> voxels = SquareVoxels(side, number);
  const auto bytes = static_cast<int64_t>(4 * voxels.size());
  std::vector<v1::Chunk> chunks;
  for (int i = 0; i < count; ++i) {
    const int64_t begin = bytes * i / count, end = bytes * (i + 1) / count;
    const std::string data(reinterpret_cast<const char*>(voxels.data()) + begin, end - begin);
    chunks.push_back(MakeChunk(begin, data));
  }
  return chunks;
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_SIMULATION_FRAMES_H_
