// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/codec/points.h"

#include <cmath>
#include <utility>

#include "client/igtl/codec/bytes.h"
#include "engine/base/field_error.h"

namespace intrawarp::igtl {
namespace {

constexpr size_t kPointNameBytes = 64;
constexpr size_t kGroupBytes = 32;
constexpr size_t kOwnerBytes = 20;
constexpr size_t kPointBytes = 136;
constexpr size_t kCountsBytes = 40;
constexpr int kCellKinds = 4;
constexpr size_t kAttributeHeaderBytes = 6;

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, what);
}

Vec3d ReadPoint(ByteReader& in) {
  Vec3d point;
  for (int axis = 0; axis < 3; ++axis) point[axis] = in.Float();
  return point;
}

void WritePoint(ByteWriter& out, const Vec3d& point) {
  for (int axis = 0; axis < 3; ++axis) out.Float(static_cast<float>(point[axis]));
}

bool IsFinite(const Vec3d& point) { return std::isfinite(point.x) && std::isfinite(point.y) && std::isfinite(point.z); }

}  // namespace

absl::StatusOr<std::vector<NamedPoint>> ParsePoints(absl::string_view content) {
  if (content.size() % kPointBytes != 0) return Invalid("point", "must have 136 bytes for each point");
  ByteReader in(content);
  std::vector<NamedPoint> points;
  points.reserve(content.size() / kPointBytes);
  while (in.remaining() > 0) {
    NamedPoint point;
    point.name = in.Text(kPointNameBytes);
    point.group = in.Text(kGroupBytes);
    point.rgba = in.Uint32();
    point.position = ReadPoint(in);
    point.diameter = in.Float();
    point.owner = in.Text(kOwnerBytes);
    if (!IsFinite(point.position)) return Invalid("point.position", "is not finite");
    points.push_back(std::move(point));
  }
  return points;
}

absl::StatusOr<Mesh> ParseMesh(absl::string_view content) {
  ByteReader in(content);
  Mesh mesh;
  mesh.counts = std::string(in.Raw(kCountsBytes));
  if (!in.ok()) return Invalid("polydata", "has fewer than the 40 bytes of its counts");
  ByteReader counts(mesh.counts);
  const uint64_t points = counts.Uint32();
  uint64_t least = 12 * points;
  for (int kind = 0; kind < kCellKinds; ++kind) {
    (void)counts.Uint32();
    least += counts.Uint32();  // bytes
  }
  least += kAttributeHeaderBytes * uint64_t{counts.Uint32()};
  if (least > in.remaining()) return Invalid("polydata.counts", "need more bytes than there are");
  mesh.points.reserve(points);
  for (uint64_t i = 0; i < points; ++i) {
    mesh.points.push_back(ReadPoint(in));
    if (!IsFinite(mesh.points.back())) return Invalid("polydata.points", "hold a number that is not finite");
  }
  mesh.cells_and_attributes = std::string(in.Raw(in.remaining()));
  return mesh;
}

std::string PackPoints(absl::Span<const NamedPoint> points) {
  ByteWriter out;
  for (const NamedPoint& point : points) {
    out.Text(point.name, kPointNameBytes);
    out.Text(point.group, kGroupBytes);
    out.Uint32(point.rgba);
    WritePoint(out, point.position);
    out.Float(static_cast<float>(point.diameter));
    out.Text(point.owner, kOwnerBytes);
  }
  return out.Take();
}

std::string PackMesh(const Mesh& mesh) {
  ByteWriter out;
  out.Raw(mesh.counts);
  for (const Vec3d& point : mesh.points) WritePoint(out, point);
  out.Raw(mesh.cells_and_attributes);
  return out.Take();
}

Mesh MeshOfPoints(std::vector<Vec3d> points) {
  ByteWriter counts;
  counts.Uint32(static_cast<uint32_t>(points.size()));
  for (int i = 0; i < 2 * kCellKinds + 1; ++i) counts.Uint32(0);
  return {counts.Take(), std::move(points), {}};
}

}  // namespace intrawarp::igtl
