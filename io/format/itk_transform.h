// SPDX-License-Identifier: Apache-2.0
// Transforms as ITK's files, which ITK, ANTs, elastix (as an initial transform) and 3D Slicer load: text (.tfm, .txt)
// and HDF5 (.h5, .hdf5, .hdf).
//
// ITK applies the last transform of a CompositeTransform first. A file is read when it holds one transform, or a
// CompositeTransform of affine ones around at most one that is not: a B-spline of order 3 or a displacement field. The
// affine ones are composed. One that is applied before the B-spline or field moves the grid with it, which must remain
// one whose axes are orthogonal. Every other list is UNIMPLEMENTED, since nothing may be left out in silence: a list
// without a CompositeTransform, several transforms that are not affine, a grid that would be sheared, other types,
// other dimensions than three, and 3D Slicer's inverse types.
//
// The affine types: AffineTransform, MatrixOffsetTransformBase, Euler3DTransform, VersorTransform (about the origin
// alone), VersorRigid3DTransform, Similarity3DTransform, ScaleTransform, TranslationTransform, IdentityTransform; each
// as double and float.
//
// An affine map is written as an AffineTransform, a control grid as a CompositeTransform of an AffineTransform and a
// BSplineTransform, a displacement field as a DisplacementFieldTransform, with an AffineTransform in a
// CompositeTransform where there is one. ITK has no spline on an axis with one control point: a 2-D grid is written
// with four equal planes along z around its own.
//
// Files are taken for hostile: numbers are counted against the grid that the file states, and against what the file can
// hold, before memory is taken for them. Of an HDF5 file the library reads objects and samples that lie in the file
// itself, unfiltered or deflated; links to other files, external storage and other filters are refused.
//
// Errors begin with the field at fault ("FixedParameters: ..."): INVALID_ARGUMENT, UNIMPLEMENTED, DATA_LOSS "file: ..."
// for an HDF5 file that cannot be read, and RESOURCE_EXHAUSTED "file: ..." above `max_bytes`. Thread-safe functions.
#ifndef INTRAWARP_IO_FORMAT_ITK_TRANSFORM_H_
#define INTRAWARP_IO_FORMAT_ITK_TRANSFORM_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/geometry/geometry.h"

namespace intrawarp::io {

// T(x) = A(x + u(x)), fixed to moving, LPS mm.
struct ItkTransform {
  enum class Kind {
    kAffine,        // u is 0
    kControlGrid,   // u is the cubic B-spline with these control points
    kDisplacement,  // u is linear between these samples
  };
  Kind kind = Kind::kAffine;
  AffineMap affine = AffineMap::Identity();
  Geometry grid;               // of the control points or samples
  std::vector<float> vectors;  // 3 a node of the grid, x y z interleaved, LPS mm
};

inline constexpr size_t kMaxItkTransformBytes = size_t{2} << 30;

// The text form.
absl::StatusOr<ItkTransform> ParseItkTransform(absl::string_view text);
std::string FormatItkTransform(const ItkTransform& transform);
// Whether a text, or a file that can be read, begins like one.
bool IsItkText(absl::string_view text);
bool HoldsItkText(const std::string& path);

// By the suffix: HDF5 or text. The same input gives the same bytes; files are replaced at once (AtomicFile in file.h).
absl::StatusOr<ItkTransform> ReadItkTransform(const std::string& path, size_t max_bytes = kMaxItkTransformBytes);
absl::Status WriteItkTransform(const std::string& path, const ItkTransform& transform);

// x + u(x) and A in one field: A(x + u(x)) - x at the nodes of a kDisplacement. Linear interpolation between the nodes
// gives A(x + u(x)) between them, too.
std::vector<float> WholeDisplacement(const ItkTransform& transform);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FORMAT_ITK_TRANSFORM_H_
