// SPDX-License-Identifier: Apache-2.0
// Transforms as DICOM objects: Spatial Registration (affine maps) and Deformable Spatial Registration (grids).
//
// Directions. Ours, T(x) = A(x + u(x)), maps fixed points to moving points. In both objects the registered frame of
// reference, which is the object's own, is the fixed image's.
//
//   Spatial Registration (PS3.3 C.20.2) has matrices from each source to the registered frame: the identity for the
//   fixed series, and the inverse of A for the moving one.
//   Deformable Spatial Registration (PS3.3 C.20.3) goes from the registered frame to the source, which is T's own
//   direction: source = Post(Pre x + d(x)), written with Pre = I, d = u and Post = A, both matrices always there.
//
// All is in LPS mm. A grid of DICOM has orthonormal axes of which the third is the cross product of the others: planes
// of a left-handed grid are written in reverse order. A control grid is sampled so finely that linear interpolation
// between its samples differs from the spline by no more than a tolerance; u is 0 outside of both.
//
// What is written refers to all instances of both series, and holds the patient and study of the fixed one
// (reference.h). Files are replaced at once (AtomicFile). Thread-safe functions.
#ifndef INTRAWARP_IO_DICOM_REGISTRATION_OBJECT_H_
#define INTRAWARP_IO_DICOM_REGISTRATION_OBJECT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/dicom/reference.h"
#include "io/format/itk_transform.h"

namespace intrawarp::io {

inline constexpr double kLeastToleranceMm = 0.01;
inline constexpr double kMostToleranceMm = 0.5;

struct DicomRegistrationOptions {
  // How far linear interpolation in the grid that is written may lie from a control grid's spline, mm. Unset: 0.01, or
  // as little above it as `max_grid_bytes` leaves room for, at most kMostToleranceMm. The object says how far in its
  // FrameOfReferenceTransformationComment.
  std::optional<double> tolerance_mm = {};
  int64_t max_grid_bytes = int64_t{64} << 20;
  DicomStamp stamp = {};
};

// INVALID_ARGUMENT "patient: ..." for series of two patients, "grid: ..." for one that DICOM cannot have, "matrix: ..."
// for a singular one, "displacement: ..." for vectors that are not finite; RESOURCE_EXHAUSTED "tolerance_mm: ..." where
// the grid would have more than `max_grid_bytes`.
absl::Status WriteDicomRegistration(const std::string& path, const ItkTransform& transform, const DicomReference& fixed,
                                    const DicomReference& moving, const DicomRegistrationOptions& options = {});

// Either object, composed to T. The fixed image is the one in the object's own frame of reference, or the only one that
// the object leaves where it is. Files are taken for hostile (dataset.h). INVALID_ARGUMENT "KEYWORD: ..." for what is
// missing or makes no map, and for vectors that are undefined (NaN). UNIMPLEMENTED "KEYWORD: ..." where nothing tells
// the fixed image from the moving one, for more than two frames of reference, for products of matrices, and for a
// deformable registration with several items that change something.
absl::StatusOr<ItkTransform> ReadDicomRegistration(const std::string& path, int64_t max_bytes = int64_t{4} << 30);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_DICOM_REGISTRATION_OBJECT_H_
