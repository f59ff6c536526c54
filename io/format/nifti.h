// SPDX-License-Identifier: Apache-2.0
// Volumes and displacement fields as NIfTI files: .nii, .nii.gz, and for reading also .hdr/.img (or .hdr.gz/.img.gz).
// NIfTI-1 and NIfTI-2 are read. NIfTI-1 is written: no axis of a Geometry is longer than its 16 bits hold.
//
// Geometry. NIfTI's world is RAS; ours is LPS, so the first two rows of every transform change sign on the way in and
// out. The sform counts before the qform; a file with neither gets its spacing with the identity as direction (in LPS)
// and the origin at 0. Units: mm, assumed when absent; metres and microns are converted. An sform whose normalised
// columns are orthonormal to kDirectionTolerance is made exactly orthonormal (the nearest rotation); another one, a
// shear, is refused. In an image with one slice, a missing third column or pixdim becomes the normal of the plane, 1
// mm.
//
// Files are taken for hostile. All of the header is checked before memory is taken for the voxels, a plain file must
// have exactly the length that its header says, and memory for a compressed one grows with the bytes that have
// really come out. Errors begin with the field at fault: INVALID_ARGUMENT "size: ...", "spacing: ...", "direction: ..."
// and so on; DATA_LOSS "data: ..." for truncated or corrupt files; RESOURCE_EXHAUSTED "size: ..." above `max_bytes`;
// UNIMPLEMENTED "datatype: ..." by name; NOT_FOUND and the like "file: ...". Messages hold no free text of the file.
//
// Velocities (of log-demons) are laid out like fields, with the name "velocity" beside the intent and the affine map
// that follows their exponential in a comment, NIfTI's kind of header extension that other programs skip. A reader of
// fields refuses a velocity and a reader of velocities a field, since both are vectors in mm.
//
// Thread-safe functions.
#ifndef INTRAWARP_IO_FORMAT_NIFTI_H_
#define INTRAWARP_IO_FORMAT_NIFTI_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/pixel_type.h"
#include "engine/geometry/geometry.h"
#include "io/format/volume.h"

namespace intrawarp::io {

// One scalar volume of one time point. A slope of 0 or NaN means that there is no rescaling.
absl::StatusOr<HostVolume> ReadNifti(const std::string& path, int64_t max_bytes = kDefaultMaxVolumeBytes);

// Writes .nii or, compressed, .nii.gz, by the suffix; the same input gives the same bytes. Every writer replaces the
// file at once or leaves it as it was (AtomicFile in file.h).
absl::Status WriteNifti(const std::string& path, const Geometry& geometry, PixelType pixel_type, const void* pixels,
                        double rescale_slope = 1, double rescale_intercept = 0);
absl::Status WriteNifti(const std::string& path, const HostVolume& volume);

// A 5-D file (x, y, z, 1, 3), float32 or float64, the components in planes: intent 1007 (vector) holds LPS components
// as ITK and ANTs write them; intent 1006 (displacement vector) holds RAS ones, as ITK takes it. A field of one slice
// may have two components. NiftyReg's transformations and velocities, which have intent 1007 too, are refused.
absl::StatusOr<HostField> ReadField(const std::string& path, int64_t max_bytes = kDefaultMaxVolumeBytes);

// Intent 1007, float32; `displacement` is x y z interleaved, LPS mm.
absl::Status WriteField(const std::string& path, const Geometry& geometry, const float* displacement);
absl::Status WriteField(const std::string& path, const HostField& field);

// Whether a file's header says that it is a velocity that WriteVelocity has written.
absl::StatusOr<bool> HoldsVelocity(const std::string& path);
// INVALID_ARGUMENT "intent: ..." for another field, "extension: ..." where the affine map is missing or broken.
absl::StatusOr<HostVelocity> ReadVelocity(const std::string& path, int64_t max_bytes = kDefaultMaxVolumeBytes);
absl::Status WriteVelocity(const std::string& path, const AffineMap& affine, const Geometry& geometry,
                           const float* velocity);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FORMAT_NIFTI_H_
