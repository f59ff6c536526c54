// SPDX-License-Identifier: Apache-2.0
#include "client/cli/dicom_files.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/control_grid.h"
#include "client/cli/volume_file.h"
#include "engine/base/status_macros.h"
#include "io/dicom/derived_series.h"
#include "io/dicom/registration_object.h"
#include "io/dicom/segmentation_out.h"

namespace intrawarp::cli {
namespace {

// The path that a flag of a series names, or else the image itself where that is a path.
absl::StatusOr<io::DicomReference> SeriesOf(const ParsedFlags& flags, const std::string& series_flag,
                                            const std::string& image_flag) {
  const std::string path = flags.Has(series_flag) ? flags.String(series_flag) : flags.String(image_flag);
  if (path.empty() || !IsDicomPath(path)) {
    return UsageError(absl::InvalidArgumentError(
        absl::StrCat("--", image_flag, ": a DICOM output refers to a series; give a DICOM folder or file")));
  }
  return LoadReference(path);
}

}  // namespace

bool HasDicomSuffix(const std::string& path) { return absl::EndsWith(path, ".dcm"); }
bool IsFolderOutput(const std::string& path) { return absl::EndsWith(path, "/"); }

bool IsDicomTransform(const std::string& path) {
  std::error_code error;
  return !std::filesystem::is_directory(path, error) && io::LooksLikeDicom(path);
}

std::vector<FlagSpec> DicomSeriesFlagSpecs() {
  return {{.name = "fixed_dicom",
           .placeholder = "PATH[#SERIES]",
           .help = "the fixed series that DICOM outputs refer to; default: the fixed image itself"},
          {.name = "moving_dicom",
           .placeholder = "PATH[#SERIES]",
           .help = "the moving series that they refer to; default: the moving image itself"}};
}

FlagSpec ToleranceFlagSpec() {
  return {.name = "tolerance_mm",
          .type = FlagType::kNumber,
          .placeholder = "MM",
          .help = "how far a DICOM grid may lie from a B-spline; default 0.01, or what fits into 64 MiB",
          .minimum = 1e-6,
          .maximum = 1e3};
}

absl::StatusOr<io::DicomReference> FixedSeries(const ParsedFlags& flags, const std::string& fixed) {
  return SeriesOf(flags, "fixed_dicom", fixed);
}
absl::StatusOr<io::DicomReference> MovingSeries(const ParsedFlags& flags, const std::string& moving) {
  return SeriesOf(flags, "moving_dicom", moving);
}

absl::StatusOr<DicomPair> DicomSeries(const ParsedFlags& flags, const std::string& fixed, const std::string& moving) {
  INTRAWARP_ASSIGN_OR_RETURN(io::DicomReference fixed_series, FixedSeries(flags, fixed));
  INTRAWARP_ASSIGN_OR_RETURN(io::DicomReference moving_series, MovingSeries(flags, moving));
  INTRAWARP_RETURN_IF_ERROR(io::CheckSamePatient(fixed_series, moving_series));
  return DicomPair{std::move(fixed_series), std::move(moving_series)};
}

absl::Status CheckDicomFlags(const ParsedFlags& flags, bool used, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (used || !flags.Has(name)) continue;
    return UsageError(absl::InvalidArgumentError(absl::StrCat("--", name, ": no DICOM output needs it")));
  }
  return absl::OkStatus();
}

absl::Status WriteRegistrationFile(const std::string& transform, const std::string& path, const ParsedFlags& flags,
                                   const DicomPair& series, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const io::ItkTransform fetched, FetchFactored(transform, context));
  io::DicomRegistrationOptions options;
  if (flags.Has("tolerance_mm")) options.tolerance_mm = flags.Number("tolerance_mm");
  return Annotate(io::WriteDicomRegistration(path, fetched, series.fixed, series.moving, options), path);
}

absl::Status WriteDerivedFolder(const std::string& folder, const client::GridData& warped, const DicomPair& series) {
  return Annotate(io::WriteDerivedSeries(folder, warped.geometry, warped.values, series.fixed, series.moving), folder);
}

absl::Status WriteSegmentationFile(const std::string& path, const client::GridData& warped,
                                   const io::DicomReference& fixed, const io::DicomReference* source) {
  return Annotate(io::WriteDicomSegmentation(path, warped.geometry, warped.values, fixed, source), path);
}

}  // namespace intrawarp::cli
