// SPDX-License-Identifier: Apache-2.0
#include "tests/io/dicom/objects_fixture.h"

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dctk.h>

#include <array>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "io/picture/report_pdf.h"
#include "tests/engine/device_test.h"

namespace intrawarp::io {
namespace {

constexpr int kPoints = 10000;

// ---- Maps after their definition ------------------------------------------------------------------------------------

std::array<double, 4> SplineWeights(double t) {
  return {(1 - t) * (1 - t) * (1 - t) / 6, (3 * t * t * t - 6 * t * t + 4) / 6,
          (-3 * t * t * t + 3 * t * t + 3 * t + 1) / 6, t * t * t / 6};
}

std::array<double, 4> LinearWeights(double t) { return {0, 1 - t, t, 0}; }

}  // namespace

Vec3d Displacement(const ItkTransform& t, Vec3d p) {
  const bool spline = t.kind == ItkTransform::Kind::kControlGrid;
  const Vec3d index = PhysicalToIndex(t.grid)(p);
  int first[3];
  std::array<double, 4> weights[3];
  for (int a = 0; a < 3; ++a) {
    const int n = t.grid.size[a];
    weights[a] = {0, 1, 0, 0};
    first[a] = -1;
    if (n == 1) continue;
    const double low = spline ? 1 : 0, high = spline ? n - 2 : n - 1;
    if (index[a] < low || index[a] > high) return {};
    const double base = std::min(std::floor(index[a]), high - 1);
    first[a] = static_cast<int>(base) - 1;
    weights[a] = spline ? SplineWeights(index[a] - base) : LinearWeights(index[a] - base);
  }
  Vec3d u;
  for (int k = 0; k < 64; ++k) {
    const int step[3] = {k & 3, k >> 2 & 3, k >> 4};
    double weight = 1;
    int64_t at[3];
    for (int a = 0; a < 3; ++a) {
      weight *= weights[a][step[a]];
      at[a] = std::clamp(first[a] + step[a], 0, t.grid.size[a] - 1);
    }
    const int64_t i = (at[2] * t.grid.size.y + at[1]) * t.grid.size.x + at[0];
    for (int c = 0; c < 3; ++c) u[c] += weight * t.vectors[3 * i + c];
  }
  return u;
}

std::vector<Vec3d> PointsAbout(const ItkTransform& t, bool outside) {
  std::mt19937 engine(std::random_device{}());
  const AffineMap to_physical = IndexToPhysical(t.grid);
  const double margin = t.kind == ItkTransform::Kind::kControlGrid ? 1.0001 : 0.0001;
  std::vector<Vec3d> points(kPoints);
  for (Vec3d& p : points) {
    Vec3d index;
    for (int a = 0; a < 3; ++a) {
      const double last = t.grid.size[a] - 1;
      if (t.grid.size[a] == 1) continue;
      index[a] = std::uniform_real_distribution<>(margin, last - margin)(engine);
      if (outside && a == 0) index[a] += index[a] > last / 2 ? last : -last;
    }
    p = to_physical(index);
  }
  return points;
}

Geometry Anisotropic(Int3 size) {
  Geometry g;
  g.size = size;
  g.spacing = {0.6, 0.6, 3};
  g.origin = {-120.5, 33.25, -1432};
  return g;
}

AffineMap SomeAffine() {
  AffineMap a;
  const double m[3][4] = {{0.98, -0.11, 0.05, 12.345678901234}, {0.09, 1.03, -0.2, -87.6}, {-0.04, 0.21, 0.95, 143.2}};
  for (int r = 0; r < 3; ++r) std::copy(m[r], m[r] + 4, a.m[r]);
  return a;
}

AffineMap SomeRigid() {
  AffineMap a;
  const double c = std::cos(0.3), s = std::sin(0.3);
  const double m[3][4] = {{c, -s, 0, -250.123456789}, {s, c, 0, 3.5}, {0, 0, 1, 1432.000001}};
  for (int r = 0; r < 3; ++r) std::copy(m[r], m[r] + 4, a.m[r]);
  return a;
}

ItkTransform AffineOf(const AffineMap& map) {
  ItkTransform t;
  t.affine = map;
  return t;
}

ItkTransform GridOf(ItkTransform::Kind kind, const Geometry& grid, const AffineMap& affine, float amplitude) {
  ItkTransform t;
  t.kind = kind;
  t.affine = affine;
  t.grid = grid;
  t.vectors = RandomFloats(3 * grid.voxels(), std::random_device{}(), -amplitude, amplitude);
  return t;
}

std::vector<float> Ramp(const Geometry& grid) {
  std::vector<float> values;
  for (int64_t i = 0; i < grid.voxels(); ++i) values.push_back(static_cast<float>(i % 900) - 450.25F);
  return values;
}

ReportDocument SomeReport() {
  ReportDocument document;
  document.title = "Registration quality report";
  document.verdict = "Verdict: ok";
  document.is_good = true;
  document.remarks = {
      "- a reason that is so long that it has to be broken between its words, once and then once more, "
      "until nothing of it is left over"};
  document.sections = {{"Options", {}}};
  for (int i = 0; i < 120; ++i) document.sections[0].rows.emplace_back(absl::StrCat("row ", i), "caf\xe9 \n value");
  document.picture = Picture{7, 5, std::vector<uint8_t>(105, 128)};
  return document;
}

}  // namespace intrawarp::io
