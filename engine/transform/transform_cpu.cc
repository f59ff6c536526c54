// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/device/parallel.h"
#include "engine/transform/transform_kernels.h"

namespace intrawarp::cpu {
namespace {

// Voxels (points) that one piece of work takes.
constexpr int64_t kPiece = 4096;

// out = base + step * i, three components interleaved, for i in [begin, end).
void AffineRow(const double base[3], const double step[3], int64_t begin, int64_t end, float* out) {
  // Four voxels are twelve floats: a pattern that fills whole vectors and repeats.
  constexpr int kVoxels = 4, kFloats = 12;
  double base12[kFloats], step12[kFloats], offset12[kFloats];
  for (int l = 0; l < kFloats; ++l) {
    base12[l] = base[l % 3];
    step12[l] = step[l % 3];
    offset12[l] = l / 3;
  }
  int64_t i = begin;
  for (; i + kVoxels <= end; i += kVoxels, out += kFloats) {
    const double start = static_cast<double>(i);
    for (int l = 0; l < kFloats; ++l) out[l] = static_cast<float>(base12[l] + step12[l] * (start + offset12[l]));
  }
  for (int l = 0; i + l / 3 < end; ++l) {
    out[l] = static_cast<float>(base12[l] + step12[l] * (static_cast<double>(i) + offset12[l]));
  }
}

// body(i) for i in [0, count), in pieces.
template <typename Body>
void ForEach(int64_t count, const Body& body) {
  ParallelFor((count + kPiece - 1) / kPiece, [&](int64_t piece) {
    const int64_t end = std::min(count, (piece + 1) * kPiece);
    for (int64_t i = piece * kPiece; i < end; ++i) body(i);
  });
}

template <typename Map>
absl::Status Warp(const Map& map, ConstVolumeView moving, Interpolation interpolation, float fill, VolumeView out) {
  const Int3 size = out.geometry.size;
  WithInterpolation(interpolation, [&](auto kind) {
    ParallelFor(int64_t{size.y} * size.z, [&](int64_t row) {
      const int y = static_cast<int>(row % size.y), z = static_cast<int>(row / size.y);
      float* to = out.data + row * size.x;
      for (int x = 0; x < size.x; ++x) {
        to[x] = WarpVoxel<kind.value>(map, {x, y, z}, moving.data, moving.geometry.size, fill);
      }
    });
  });
  return absl::OkStatus();
}

template <typename Map>
absl::Status MapAll(const Map& map, absl::Span<double> points) {
  ForEach(static_cast<int64_t>(points.size() / 3), [&](int64_t i) { MapPoint(map, points.data() + 3 * i); });
  return absl::OkStatus();
}

}  // namespace

absl::Status EvaluateAffineField(const ExecContext&, const AffineMap& field, Int3 size, int64_t first, int64_t count,
                                 float* out) {
  const int64_t nx = size.x, first_row = first / nx, last_row = (first + count - 1) / nx;
  const double step[3] = {field.m[0][0], field.m[1][0], field.m[2][0]};
  ParallelFor(last_row - first_row + 1, [&](int64_t r) {
    const int64_t row = first_row + r, begin = std::max<int64_t>(first - row * nx, 0),
                  end = std::min(first + count - row * nx, nx);
    const Vec3d start = field({0, static_cast<double>(row % size.y), static_cast<double>(row / size.y)});
    const double base[3] = {start.x, start.y, start.z};
    AffineRow(base, step, begin, end, out + 3 * (row * nx + begin - first));
  });
  return absl::OkStatus();
}

absl::Status EvaluateField(const ExecContext&, const ForwardMap& map, Int3 size, int64_t first, int64_t count,
                           float* out) {
  ForEach(count, [&](int64_t i) {
    Vec3d d;
    map(ToVec3d(VoxelAt(size, first + i)), &d);
    const Vec3f f = ToVec3f(d);
    out[3 * i] = f.x;
    out[3 * i + 1] = f.y;
    out[3 * i + 2] = f.z;
  });
  return absl::OkStatus();
}

absl::Status WarpThrough(const ExecContext&, const ForwardMap& map, ConstVolumeView moving, Interpolation interpolation,
                         float fill, VolumeView out) {
  return Warp(map, moving, interpolation, fill, out);
}

absl::Status WarpThrough(const ExecContext&, const InverseMap& map, ConstVolumeView moving, Interpolation interpolation,
                         float fill, VolumeView out) {
  return Warp(map, moving, interpolation, fill, out);
}

absl::Status MapThrough(const ExecContext&, const ForwardMap& map, absl::Span<double> points) {
  return MapAll(map, points);
}

absl::Status MapThrough(const ExecContext&, const InverseMap& map, absl::Span<double> points) {
  return MapAll(map, points);
}

}  // namespace intrawarp::cpu
