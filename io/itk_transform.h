// SPDX-License-Identifier: Apache-2.0
// Control grids as ITK's text transform files (.tfm), which ITK, elastix (as an initial transform) and Slicer load.
//
// A file is written as a CompositeTransform of an AffineTransform and a BSplineTransform of order 3. ITK applies the
// last transform of a CompositeTransform first, so that the file maps x to A(x + u(x)), fixed to moving, LPS mm. ITK
// has no spline on an axis with one control point: a 2-D grid is written with four equal planes along z around its own.
//
// A file is read when it holds one B-spline, or a CompositeTransform of any number of affine transforms and then one
// B-spline; the affine ones are composed. Every other list is UNIMPLEMENTED, since nothing may be left out in silence:
// a list without a CompositeTransform, a B-spline before other transforms, several of them, other types.
//
// Files are taken for hostile: numbers are counted against the grid that the header states before they are stored.
// Errors begin with the field at fault ("FixedParameters: ..."): INVALID_ARGUMENT, UNIMPLEMENTED, and
// RESOURCE_EXHAUSTED "file: ..." above `max_bytes`. Thread-safe functions.
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
  Geometry grid;                    // the lattice of the control points
  std::vector<float> coefficients;  // 3 a control point, x y z interleaved, LPS mm
};

inline constexpr size_t kMaxItkTransformBytes = size_t{1} << 30;

absl::StatusOr<ControlGridFile> ParseItkTransform(absl::string_view text);
absl::StatusOr<ControlGridFile> ReadItkTransform(const std::string& path, size_t max_bytes = kMaxItkTransformBytes);

std::string FormatItkTransform(const ControlGridFile& file);
absl::Status WriteItkTransform(const std::string& path, const ControlGridFile& file);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_ITK_TRANSFORM_H_
