// SPDX-License-Identifier: Apache-2.0
// Control grids as ITK's text transform files (.tfm), which ITK, elastix (as an initial transform) and Slicer load.
//
// The file holds a CompositeTransform of an AffineTransform and a BSplineTransform of order 3; ITK applies the last one
// first, so that it maps x to A(x + u(x)), fixed to moving, LPS mm. ITK has no spline on an axis with one control
// point: a 2-D grid is written with four equal ones along z, its plane in the middle of them.
//
// Files are taken for hostile: numbers are counted against the grid that the header states before they are stored.
// Errors begin with the field at fault ("FixedParameters: ..."); INVALID_ARGUMENT, RESOURCE_EXHAUSTED "file: ..." above
// `max_bytes`, UNIMPLEMENTED for other transforms, by name. Thread-safe functions.
#ifndef INTRAWARP_IO_ITK_TRANSFORM_H_
#define INTRAWARP_IO_ITK_TRANSFORM_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/geometry/geometry.h"

namespace intrawarp::io {

struct ControlGridFile {
  AffineMap affine = AffineMap::Identity();
  // Of the control points.
  Geometry grid;
  // 3 a control point, x y z interleaved, LPS mm.
  std::vector<float> coefficients;
};

inline constexpr size_t kMaxItkTransformBytes = size_t{1} << 30;

absl::StatusOr<ControlGridFile> ParseItkTransform(absl::string_view text);
absl::StatusOr<ControlGridFile> ReadItkTransform(const std::string& path, size_t max_bytes = kMaxItkTransformBytes);

std::string FormatItkTransform(const ControlGridFile& file);
absl::Status WriteItkTransform(const std::string& path, const ControlGridFile& file);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_ITK_TRANSFORM_H_
