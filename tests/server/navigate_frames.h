// SPDX-License-Identifier: Apache-2.0
// Frames of a moving blob for tests of navigation, with the answer known: frame n is registered to the resident image
// by MapOfFrame(n).
#ifndef INTRAWARP_TESTS_SERVER_NAVIGATE_FRAMES_H_
#define INTRAWARP_TESTS_SERVER_NAVIGATE_FRAMES_H_

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "intrawarp/v1/registration.pb.h"
#include "tests/engine/device_test.h"
#include "tests/server/bulk_client.h"
#include "tests/server/service_fixture.h"
#include "tests/server/stages.h"
#include "wire/convert.h"

namespace intrawarp::server {

inline constexpr double kBlobScale = 40;  // mm

inline Geometry Grid() { return ObliqueGeometry({40, 48, 20}); }

// Where frame n has moved to: further from frame to frame.
inline AffineMap MapOfFrame(int n) {
  AffineMap map = AffineMap::Identity();
  map.m[0][3] = 1.5 * n;
  map.m[1][3] = -1.0 * n;
  map.m[2][3] = 0.5 * n;
  return map;
}

inline std::vector<float> ResidentImage() { return Blobs(Grid(), Center(Grid()), kBlobScale, AffineMap::Identity()); }

// As a moving frame.
inline std::vector<float> MovingFrame(const Geometry& grid, int n) {
  return Blobs(grid, Center(Grid()), kBlobScale, Inverse(MapOfFrame(n)));
}

inline double Distance(const AffineMap& a, const AffineMap& b) {
  const Vec3d d = a(Center(Grid())) - b(Center(Grid()));
  return std::sqrt(Dot(d, d));
}

// A rigid stage against "volumes/resident".
inline v1::NavigateConfig RigidConfig(bool resident_is_fixed = true) {
  v1::NavigateConfig config;
  (resident_is_fixed ? config.mutable_fixed() : config.mutable_moving())->assign("volumes/resident");
  SetMethod(*config.mutable_options()->add_stages(), StageKind::kRigid);
  return config;
}

// A header and its chunks, float32.
inline std::vector<v1::NavigateRequest> FrameRequests(int64_t number, const Geometry& grid,
                                                      const std::vector<float>& voxels, size_t chunk_bytes = 50000) {
  std::vector<v1::NavigateRequest> requests(1);
  v1::FrameHeader& header = *requests[0].mutable_frame();
  header.set_frame_number(number);
  *header.mutable_geometry() = GeometryToProto(grid);
  header.set_pixel_type(v1::PIXEL_TYPE_FLOAT32);
  header.set_total_bytes(4 * voxels.size());
  header.mutable_acquisition_time()->set_nanos(1000 * static_cast<int32_t>(number));
  const char* bytes = reinterpret_cast<const char*>(voxels.data());
  for (size_t at = 0; at < 4 * voxels.size(); at += chunk_bytes) {
    requests.emplace_back();
    *requests.back().mutable_chunk() =
        MakeChunk(at, std::string(bytes + at, std::min(chunk_bytes, 4 * voxels.size() - at)));
  }
  return requests;
}
inline std::vector<v1::NavigateRequest> GoodFrame(int n) { return FrameRequests(n, Grid(), MovingFrame(Grid(), n)); }

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_NAVIGATE_FRAMES_H_
