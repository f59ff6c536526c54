// SPDX-License-Identifier: Apache-2.0
// The part of a derived series that PET images alone have (PS3.3 A.21): what their pixels measure, and the time to
// which their decay was corrected. Pure functions.
//
// A standardised uptake value is a pixel times the patient's weight over the injected dose at the reference time of the
// decay correction. The units, the correction, the series' date and time, the dose with its half-life and start, and
// the weight are therefore those of the source; the pixels keep its units.
#ifndef INTRAWARP_IO_DICOM_DERIVED_PET_H_
#define INTRAWARP_IO_DICOM_DERIVED_PET_H_

#include "absl/status/status.h"
#include "io/dicom/object.h"
#include "io/dicom/reference.h"

namespace intrawarp::io::dicom {

// Whether a derived series can be made of the PET series. INVALID_ARGUMENT "KEYWORD: ..." without an attribute that the
// meaning of its pixels depends on; UNIMPLEMENTED "SeriesType: ..." for gated images and projections, "DecayCorrection:
// ..." for images of several times that were not corrected to one, "SOPClassUID: ..." for enhanced images, which say
// these things in other ways.
absl::Status CheckPet(const DicomReference& moving);

// The modules PET Series, PET Isotope, NM/PET Patient Orientation and PET Image of plane `plane` of `planes`, from a
// series that passes CheckPet. Where images of the source differ in their time or decay factor, those of its first one
// are written. The position of the patient on the table is left open.
void AddPet(const DicomReference& moving, int plane, int planes, ObjectItem root);

}  // namespace intrawarp::io::dicom

#endif  // INTRAWARP_IO_DICOM_DERIVED_PET_H_
