// SPDX-License-Identifier: Apache-2.0
#include "engine/geometry/geometry.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"

namespace intrawarp {
namespace {

constexpr const char* kAxisName[3] = {"x", "y", "z"};

absl::Status ValidateDirection(const Geometry& g) {
  for (int a = 0; a < 3; ++a) {
    for (int b = 0; b < 3; ++b) {
      double dot = 0;
      for (int r = 0; r < 3; ++r) dot += g.direction[r][a] * g.direction[r][b];
      if (!(std::abs(dot - (a == b ? 1.0 : 0.0)) <= kDirectionTolerance)) {
        return FieldError(absl::StatusCode::kInvalidArgument, "direction",
                          a == b ? absl::StrCat("axis ", kAxisName[a], " is not a unit vector")
                                 : absl::StrCat("axes ", kAxisName[a], " and ", kAxisName[b], " are not orthogonal"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool operator==(const Geometry& a, const Geometry& b) {
  return a.size == b.size && a.spacing == b.spacing && a.origin == b.origin &&
         std::equal(&a.direction[0][0], &a.direction[0][0] + 9, &b.direction[0][0]);
}

absl::Status ValidateGeometry(const Geometry& g) {
  for (int a = 0; a < 3; ++a) {
    if (g.size[a] < 1 || g.size[a] > kMaxAxis) {
      return FieldError(absl::StatusCode::kInvalidArgument, "size",
                        absl::StrCat(kAxisName[a], " is ", g.size[a], ", must be 1 to ", kMaxAxis));
    }
  }
  for (int a = 0; a < 3; ++a) {
    if (!(g.spacing[a] >= 1e-6 && g.spacing[a] <= 1e6)) {
      return FieldError(
          absl::StatusCode::kInvalidArgument, "spacing",
          absl::StrCat(kAxisName[a], " is ", g.spacing[a], ", must be finite and above 0 (1e-6 to 1e6 mm)"));
    }
  }
  for (int a = 0; a < 3; ++a) {
    if (!(std::abs(g.origin[a]) <= 1e7)) {
      return FieldError(absl::StatusCode::kInvalidArgument, "origin",
                        absl::StrCat(kAxisName[a], " is ", g.origin[a], ", must be finite and within 1e7 mm"));
    }
  }
  return ValidateDirection(g);
}

AffineMap IndexToPhysical(const Geometry& g) {
  AffineMap a;
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 3; ++c) a.m[r][c] = g.direction[r][c] * g.spacing[c];
    a.m[r][3] = g.origin[r];
  }
  return a;
}

AffineMap PhysicalToIndex(const Geometry& g) { return Inverse(IndexToPhysical(g)); }

bool IsSingular(const AffineMap& map) {
  double lengths = 1;
  for (int c = 0; c < 3; ++c) lengths *= std::hypot(map.m[0][c], map.m[1][c], map.m[2][c]);
  return !(std::abs(Determinant(map)) > 1e-9 * lengths) || !std::isfinite(lengths);
}

Vec3d Center(const Geometry& g) {
  return IndexToPhysical(g)({0.5 * (g.size.x - 1), 0.5 * (g.size.y - 1), 0.5 * (g.size.z - 1)});
}

bool SameGrid(const Geometry& a, const Geometry& b, double tolerance_voxels) {
  if (!(a.size == b.size)) return false;
  const AffineMap a_to_b = Compose(PhysicalToIndex(b), IndexToPhysical(a));
  for (int corner = 0; corner < 8; ++corner) {
    const Vec3d p{corner & 1 ? a.size.x - 1.0 : 0.0, corner & 2 ? a.size.y - 1.0 : 0.0,
                  corner & 4 ? a.size.z - 1.0 : 0.0};
    const Vec3d d = a_to_b(p) - p;
    if (!(std::max({std::abs(d.x), std::abs(d.y), std::abs(d.z)}) <= tolerance_voxels)) return false;
  }
  return true;
}

std::string SizeString(const Geometry& g) { return absl::StrCat(g.size.x, "x", g.size.y, "x", g.size.z); }

}  // namespace intrawarp
