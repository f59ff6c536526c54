// SPDX-License-Identifier: Apache-2.0
// A series as the objects that are written refer to it: its patient, study, frame of reference and instances.
//
// Privacy. A reference holds what identifies a patient, and exists only to be copied into DICOM objects, which must
// carry it. Nothing of it goes into a message or a log.
#ifndef INTRAWARP_IO_DICOM_REFERENCE_H_
#define INTRAWARP_IO_DICOM_REFERENCE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/geometry/geometry.h"
#include "io/dicom/dataset.h"
#include "io/dicom/dicom.h"

namespace intrawarp::io {

struct ReferencedInstance {
  std::string sop_class;
  std::string sop_instance;
};

// How the stored values of a series stand for intensities.
struct StoredValues {
  // False where slices differ in their rescaling, or where pixels are not integers of 16 bits or less.
  bool shared = false;
  double slope = 1, intercept = 0;
  int bits = 16;
  bool is_signed = false;
};

// Movable; thread-compatible.
struct DicomReference {
  // One volume of a path, as ReadDicom chooses it; files with gaps or tilt are referred to, too. Errors are
  // ReadDicom's, and INVALID_ARGUMENT "KEYWORD: ..." where an instance has no valid UID, study or frame of reference,
  // "patient: ..." where instances are of several patients or studies.
  static absl::StatusOr<DicomReference> Read(const std::string& path, const DicomOptions& options = {});

  std::string study;
  std::string series;
  std::string frame_of_reference;
  // By the position of their first plane along the normal.
  std::vector<ReferencedInstance> instances;
  // Whether slices lie on an even grid; `geometry` and `instance_of_plane` are those of ReadDicom then.
  bool has_planes = false;
  Geometry geometry;
  // For each plane of the grid, its instance in `instances`; -1 for one that a segmentation leaves out.
  std::vector<int> instance_of_plane;
  // For each plane, its frame in a multi-frame instance, from 1; 0 in others.
  std::vector<int> frame_of_plane;
  // A defined term, or empty.
  std::string modality;
  StoredValues stored;
  // MONOCHROME1: small values are shown bright.
  bool is_inverted = false;
  // False where instances differ in the time of their acquisition, its length or the factor of their decay.
  bool is_of_one_time = true;
  // The segment of a segmentation, from 1; 0 for other images.
  int segment = 0;
  // The first instance without its pixels.
  std::unique_ptr<DcmDataset, dicom::DatasetDeleter> header;
};

// INVALID_ARGUMENT "patient: ..." unless both are of one patient: PatientID and, where both have one, its issuer agree;
// without an id, the name does.
absl::Status CheckSamePatient(const DicomReference& fixed, const DicomReference& moving);

// "2.25." and a random UUID as a decimal number (PS3.5 B.2): unique without a root of a site.
std::string NewDicomUid();

// What makes two equal requests give different objects. Tests replace it.
struct DicomStamp {
  absl::Time time = absl::Now();  // written as local time, as the dates that are copied from other files are
  std::function<std::string()> new_uid = NewDicomUid;
};

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_DICOM_REFERENCE_H_
