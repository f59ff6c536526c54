// SPDX-License-Identifier: Apache-2.0
// The contents of POINT (named points) and POLYDATA (a mesh), in mm, in the coordinates of the sender. Plain values;
// thread-safe functions.
#ifndef INTRAWARP_CLIENT_IGTL_CODEC_POINTS_H_
#define INTRAWARP_CLIENT_IGTL_CODEC_POINTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/geometry/vec.h"

namespace intrawarp::igtl {

struct NamedPoint {
  std::string name;
  std::string group;
  uint32_t rgba = 0xffffffff;
  Vec3d position;
  double diameter = 0;
  // The device of an image that the point belongs to.
  std::string owner;
};

// A mesh whose cells and attributes stay as they came: they are counted against the message, and not read.
struct Mesh {
  // The ten counts and sizes, 40 bytes; the first counts the points.
  std::string counts;
  std::vector<Vec3d> points;
  std::string cells_and_attributes;
};

// INVALID_ARGUMENT, naming the field, where counts contradict the number of bytes or a coordinate is not finite.
absl::StatusOr<std::vector<NamedPoint>> ParsePoints(absl::string_view content);
absl::StatusOr<Mesh> ParseMesh(absl::string_view content);

std::string PackPoints(absl::Span<const NamedPoint> points);
// The mesh has as many points as when it was parsed.
std::string PackMesh(const Mesh& mesh);
// A mesh that has only points.
Mesh MeshOfPoints(std::vector<Vec3d> points);

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_CODEC_POINTS_H_
