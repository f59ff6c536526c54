// SPDX-License-Identifier: Apache-2.0
// Volumes and displacement fields as NRRD files: .nrrd, and .nhdr with its samples in a file of their own.
//
// Read: NRRD0001 to NRRD0005; the encodings raw and gzip; both byte orders; the types of PixelType; two and three
// dimensions; the spaces left-posterior-superior, right-anterior-superior and left-anterior-superior, or none, which
// counts as LPS; directions of either hand; space units. Axes without a direction must have one sample, but for the
// components of a field. UNIMPLEMENTED by name: other encodings, types and spaces, "line skip", samples in several
// files, axis mins, a measurement frame other than the identity.
//
// Fields hold LPS mm, fixed to moving, in a space that is left-posterior-superior or not stated: readers differ in what
// the components mean in another one, which is UNIMPLEMENTED. Fields are marked as 3D Slicer reads them: an axis of
// kind vector, the first or the last, and the key "displacement field type" with the value "resampling". A file without
// the key counts as resampling, like in Slicer; "modeling", the inverse map, is UNIMPLEMENTED.
//
// Written: .nrrd with gzip; .nhdr with raw samples beside it in STEM.DIGEST.raw (samples.h). Formats of this kind know
// no rescaling, so that a volume with one is written as float32.
//
// Files are taken for hostile (samples.h): a header is at most 1 MiB, samples are counted against the limit before
// memory is taken for them, and the data file that a header names lies in its folder. Errors begin with the field of
// the header at fault ("sizes: ...", "space directions: ..."), and hold no free text of the file. Thread-safe
// functions.
#ifndef INTRAWARP_IO_FORMAT_NRRD_H_
#define INTRAWARP_IO_FORMAT_NRRD_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/format/volume.h"

namespace intrawarp::io {

absl::StatusOr<HostVolume> ReadNrrd(const std::string& path, int64_t max_bytes = kDefaultMaxVolumeBytes);
absl::StatusOr<HostField> ReadNrrdField(const std::string& path, int64_t max_bytes = kDefaultMaxVolumeBytes);

// By the suffix .nrrd or .nhdr. The same input gives the same bytes; files are replaced at once (AtomicFile in file.h).
absl::Status WriteNrrd(const std::string& path, const HostVolume& volume);
absl::Status WriteNrrdField(const std::string& path, const Geometry& geometry, const float* displacement);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FORMAT_NRRD_H_
