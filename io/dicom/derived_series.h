// SPDX-License-Identifier: Apache-2.0
// A warped volume as a derived series of single-frame images, one file a plane of the fixed grid.
//
// The series has the patient, the study and the frame of reference of the fixed series, and the modality, windows and
// main acquisition parameters of the moving one; a PET keeps its units and the times and doses of its decay
// (derived_pet.h). Each image names the fixed image of its plane
// (ReferencedImageSequence), all moving images (SourceImageSequence, "source image for image processing operation") and
// the derivation ("spatial resampling"). ImageType begins with DERIVED\SECONDARY, for PET with
// DERIVED\PRIMARY.
//
// Intensities are stored with the slope and intercept of the moving series, rounded to the nearest stored value, where
// its slices share them and they hold the values: none is clipped (a range beyond the bits of the source gets 16), and
// the values are multiples of the slope or their range has 256 steps and more. Otherwise they get unsigned 16 bits over
// their range, in steps of at most four times those of the source. A PET has 16 bits and the intercept 0, and over
// their range ends at the largest magnitude. DerivationDescription says how far a stored value is off at most. A
// MONOCHROME1 series stays one, with its windows, VOI LUT function, presentation LUT shape and rescale type; lookup
// tables of presentation are not kept.
#ifndef INTRAWARP_IO_DICOM_DERIVED_SERIES_H_
#define INTRAWARP_IO_DICOM_DERIVED_SERIES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/geometry/geometry.h"
#include "io/dicom/reference.h"

namespace intrawarp::io {

// Whether WriteDerivedSeries takes images like these: UNIMPLEMENTED "modality: ..." for another modality than CT, MR
// and PET; for PET as CheckPet.
absl::Status CheckDerivable(const DicomReference& moving);

// Where a warped volume has no source: -1000 HU for CT, otherwise 0.
double DerivedFill(const DicomReference& moving);

// `intensities` lie on `grid`, x fastest. Makes `folder` at once or not at all (AtomicFolder), with files IM00001.dcm
// and so on in the order of planes. INVALID_ARGUMENT "patient: ..." for series of two patients, "grid: ..." as in
// object.h, "pixels: ..." for values that are not finite, of another number than the grid's voxels, or beyond what 16
// bits and a slope hold; errors of CheckDerivable; otherwise as AtomicFolder and AtomicFile. Thread-safe.
absl::Status WriteDerivedSeries(const std::string& folder, const Geometry& grid, absl::Span<const float> intensities,
                                const DicomReference& fixed, const DicomReference& moving,
                                const DicomStamp& stamp = {});

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_DICOM_DERIVED_SERIES_H_
