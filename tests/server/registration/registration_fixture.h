// SPDX-License-Identifier: Apache-2.0
// A pair of volumes with a known affine map between them, and the request that finds it.
#ifndef INTRAWARP_TESTS_SERVER_REGISTRATION_REGISTRATION_FIXTURE_H_
#define INTRAWARP_TESTS_SERVER_REGISTRATION_REGISTRATION_FIXTURE_H_

#include <grpcpp/generic/generic_stub.h>

#include <cmath>

#include "server/monitor/registry.h"
#include "tests/server/service_fixture.h"
#include "tests/server/stages.h"

namespace intrawarp::server {

inline constexpr double kScale = 40;  // mm, of the blobs

inline Geometry FixedGrid() { return ObliqueGeometry({44, 60, 24}); }

inline Geometry MovingGrid() {
  Geometry g = ObliqueGeometry({50, 56, 28}, /*left_handed=*/true);
  g.spacing = {1.2, 0.9, 2.2};
  // The same place: the centres coincide.
  g.origin = g.origin + Center(FixedGrid()) - Center(g);
  return g;
}

// A rotation of some degrees about the centre of the fixed grid, and a shift.
inline AffineMap TrueMap() {
  const double c = std::cos(0.09), s = std::sin(0.09);
  AffineMap rotation = AffineMap::Identity();
  rotation.m[0][0] = rotation.m[1][1] = c;
  rotation.m[0][1] = -s;
  rotation.m[1][0] = s;
  const Vec3d center = Center(FixedGrid()), shift{3.0, -2.0, 1.5};
  const Vec3d t = center + shift - rotation(center);
  for (int r = 0; r < 3; ++r) rotation.m[r][3] = t[r];
  return rotation;
}

class RegistrationServiceTest : public ServiceTest {
 protected:
  using ServiceTest::ServiceTest;

  // "volumes/fixed" and "volumes/moving", registered by TrueMap().
  void PutPair() {
    const Vec3d center = Center(FixedGrid());
    PutVolume("fixed", FixedGrid(), Blobs(FixedGrid(), center, kScale, TrueMap()));
    PutVolume("moving", MovingGrid(), Blobs(MovingGrid(), center, kScale, AffineMap::Identity()));
  }

  static v1::RegisterRequest Request(StageKind method = StageKind::kAffine, v1::Metric metric = v1::METRIC_SSD) {
    v1::RegisterRequest request;
    request.set_fixed("volumes/fixed");
    request.set_moving("volumes/moving");
    v1::Stage* stage = request.mutable_options()->add_stages();
    SetMethod(*stage, method);
    SetMetric(*stage, metric);
    return request;
  }

  bool Scraped(const std::string& line) {
    return context().metrics.registry.Scrape().find(line + "\n") != std::string::npos;
  }
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_REGISTRATION_REGISTRATION_FIXTURE_H_
