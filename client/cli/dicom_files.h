// SPDX-License-Identifier: Apache-2.0
// DICOM outputs of the command line, and the series that they refer to. Thread-safe functions.
//
// A name that ends in .dcm is a DICOM object, one that ends in a slash a folder of images. The objects hold the patient
// and study of the fixed series; nothing of them is shown.
#ifndef INTRAWARP_CLIENT_CLI_DICOM_FILES_H_
#define INTRAWARP_CLIENT_CLI_DICOM_FILES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/command_context.h"
#include "engine/base/flags.h"
#include "io/dicom/reference.h"

namespace intrawarp::cli {

bool HasDicomSuffix(const std::string& path);    // .dcm
bool IsFolderOutput(const std::string& path);    // ends in /
bool IsDicomTransform(const std::string& path);  // a file that begins like DICOM

// --fixed_dicom and --moving_dicom: the series that are referred to where an image is given in another form.
std::vector<FlagSpec> DicomSeriesFlagSpecs();
// --tolerance_mm
FlagSpec ToleranceFlagSpec();

struct DicomPair {
  io::DicomReference fixed;
  io::DicomReference moving;
};
// The series of --fixed_dicom, or else of the DICOM path that the flag `fixed` names; likewise of the moving image. A
// wrong command line (UsageError) where neither is DICOM; errors begin with the path.
absl::StatusOr<io::DicomReference> FixedSeries(const ParsedFlags& flags, const std::string& fixed);
absl::StatusOr<io::DicomReference> MovingSeries(const ParsedFlags& flags, const std::string& moving);
// Both. INVALID_ARGUMENT for series of two patients.
absl::StatusOr<DicomPair> DicomSeries(const ParsedFlags& flags, const std::string& fixed, const std::string& moving);

// A wrong command line where one of these flags is given and `used`, whether a DICOM output is written, is false.
absl::Status CheckDicomFlags(const ParsedFlags& flags, bool used, const std::vector<std::string>& names);

// "transforms/ID" as a registration object. An affine map, a control grid or a velocity keeps its affine part outside
// of the grid.
absl::Status WriteRegistrationFile(const std::string& transform, const std::string& path, const ParsedFlags& flags,
                                   const DicomPair& series, CommandContext& context);

// The warped volume as a derived series, or as a segmentation.
absl::Status WriteDerivedFolder(const std::string& folder, const client::GridData& warped, const DicomPair& series);
absl::Status WriteSegmentationFile(const std::string& path, const client::GridData& warped,
                                   const io::DicomReference& fixed, const io::DicomReference* source);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_DICOM_FILES_H_
