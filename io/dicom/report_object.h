// SPDX-License-Identifier: Apache-2.0
// A PDF as a DICOM object (Encapsulated PDF), beside the images that it is about.
#ifndef INTRAWARP_IO_DICOM_REPORT_OBJECT_H_
#define INTRAWARP_IO_DICOM_REPORT_OBJECT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "io/dicom/reference.h"

namespace intrawarp::io {

// With the patient and study of `fixed`. It names all instances of both series as its sources. The PDF must hold
// nothing that identifies a patient: the object says so (BurnedInAnnotation NO), and its own attributes do identify.
// INVALID_ARGUMENT "patient: ..." for series of two patients, "pdf: ..." for bytes that are none; otherwise as
// AtomicFile. Thread-safe.
absl::Status WriteDicomReport(const std::string& path, absl::string_view pdf, const std::string& title,
                              const DicomReference& fixed, const DicomReference& moving, const DicomStamp& stamp = {});

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_DICOM_REPORT_OBJECT_H_
