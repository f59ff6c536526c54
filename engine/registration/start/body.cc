// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/start/body.h"

#include <algorithm>
#include <cmath>

#include "engine/base/status_macros.h"

namespace intrawarp {
namespace {

constexpr size_t kPoints = 400;
// A part of the image's range (statistics.h).
constexpr double kAboveBackground = 0.1;

std::vector<int64_t> VoxelsOf(const PreparedImage& image, const std::vector<float>& values,
                              const std::vector<uint8_t>& mask) {
  const VolumeStatistics& s = image.statistics();
  const double least = kAboveBackground * (static_cast<double>(s.maximum) - s.minimum);
  std::vector<int64_t> voxels;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!mask.empty() && mask[i] == 0) continue;
    if (std::abs(static_cast<double>(values[i]) - s.background) > least) voxels.push_back(static_cast<int64_t>(i));
  }
  return voxels;
}

bool Covers(const Body& body, Vec3d p) {
  const Vec3d q = body.to_index(p);
  int64_t index[3];
  for (int a = 0; a < 3; ++a) {
    const bool is_flat = a == 2 && body.grid.is_2d();
    const double nearest = is_flat ? 0 : std::floor(q[a] + 0.5);
    if (!(nearest >= 0 && nearest < body.grid.size[a])) return false;
    index[a] = static_cast<int64_t>(nearest);
  }
  return body.mask.empty() || body.mask[(index[2] * body.grid.size.y + index[1]) * body.grid.size.x + index[0]] != 0;
}

}  // namespace

absl::StatusOr<Body> ReadBody(const ExecContext& ctx, const PreparedImage& image, int level, const MaskLevel& mask) {
  const ConstVolumeView volume = image.levels()[level].volume;
  Body body{volume.geometry, PhysicalToIndex(volume.geometry), {}, {}};
  std::vector<float> values(volume.geometry.voxels());
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(values.data(), volume.data, values.size() * sizeof(float), ctx.stream()));
  if (mask.mask.data != nullptr) {
    body.mask.resize(values.size());
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(body.mask.data(), mask.mask.data, body.mask.size(), ctx.stream()));
  }
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  const std::vector<int64_t> voxels = VoxelsOf(image, values, body.mask);
  const AffineMap to_physical = IndexToPhysical(volume.geometry);
  const Int3 n = volume.geometry.size;
  const size_t stride = std::max<size_t>(1, voxels.size() / kPoints);
  for (size_t k = 0; k < voxels.size(); k += stride) {
    const int64_t x = voxels[k] % n.x, row = voxels[k] / n.x, y = row % n.y, z = row / n.y;
    body.points.push_back(to_physical({static_cast<double>(x), static_cast<double>(y), static_cast<double>(z)}));
  }
  return body;
}

double CoveredFraction(const std::vector<Vec3d>& points, const AffineMap& map, const Body& other) {
  if (points.empty()) return 0;
  const auto count = std::count_if(points.begin(), points.end(), [&](Vec3d p) { return Covers(other, map(p)); });
  return static_cast<double>(count) / static_cast<double>(points.size());
}

double MeanDistance(const std::vector<Vec3d>& points, const AffineMap& a, const AffineMap& b) {
  if (points.empty()) return 0;
  double sum = 0;
  for (const Vec3d& p : points) {
    const Vec3d d = a(p) - b(p);
    sum += std::sqrt(Dot(d, d));
  }
  return sum / static_cast<double>(points.size());
}

}  // namespace intrawarp
