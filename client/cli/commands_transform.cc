// SPDX-License-Identifier: Apache-2.0
// intrawarp transform list | get | delete, warp, points
#include <cstdio>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/control_grid.h"
#include "client/cli/dicom_files.h"
#include "client/cli/field_file.h"
#include "client/cli/field_flags.h"
#include "client/cli/files.h"
#include "client/cli/volume_file.h"
#include "engine/base/status_macros.h"
#include "io/dicom/derived_series.h"
#include "io/grid_files.h"
#include "io/matrix_text.h"
#include "io/points.h"
#include "proto/convert.h"

namespace intrawarp::cli {
namespace {

const char* KindName(v1::TransformKind kind) {
  switch (kind) {
    case v1::TRANSFORM_KIND_AFFINE:
      return "affine";
    case v1::TRANSFORM_KIND_DISPLACEMENT:
      return "displacement";
    case v1::TRANSFORM_KIND_CONTROL_GRID:
      return "control-grid";
    case v1::TRANSFORM_KIND_VELOCITY:
      return "velocity";
    default:
      return "unknown";
  }
}

absl::Status List(const ParsedFlags&, Session& session) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<v1::Transform> transforms,
                             session.client().ListTransforms(session.call()));
  for (const v1::Transform& transform : transforms) {
    std::printf("%s\t%s\t%lld bytes%s\n", transform.name().c_str(), KindName(transform.kind()),
                static_cast<long long>(transform.resident_bytes()), OwnerColumn(transform.owner()).c_str());
  }
  return absl::OkStatus();
}

absl::Status GetMatrix(const std::string& name, const std::string& out, Session& session) {
  INTRAWARP_ASSIGN_OR_RETURN(const v1::Transform transform, session.client().GetTransform(name, session.call()));
  if (transform.kind() != v1::TRANSFORM_KIND_AFFINE) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is more than a matrix; its field can be written to .nii.gz, .nrrd or .mha",
                     transform.kind() == v1::TRANSFORM_KIND_CONTROL_GRID ? ", its control grid to .tfm or .h5" : ""));
  }
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap matrix, AffineMapFromProto(transform.affine()));
  return Annotate(io::WriteMatrix(out, matrix), out);
}

absl::Status GetField(const std::string& name, const v1::FieldRequest& field, const std::string& out,
                      Session& session) {
  v1::DownloadRequest request;
  request.set_name(name);
  *request.mutable_field() = field;
  client::GridData data;
  INTRAWARP_ASSIGN_OR_RETURN(const v1::FieldHeader header,
                             session.client().DownloadField(request, client::SinkInto(&data), session.call()));
  return WriteFieldFile(out, header.encoding(), header.affine(), data);
}

std::vector<std::string> TransformSuffixes() {
  std::vector<std::string> suffixes = {".txt", ".dcm"};
  suffixes.insert(suffixes.end(), ItkSuffixes().begin(), ItkSuffixes().end());
  suffixes.insert(suffixes.end(), io::GridSuffixes().begin(), io::GridSuffixes().end());
  return suffixes;
}

// The series are read first: what is wrong with them is told before anything is fetched.
absl::Status GetRegistration(const ParsedFlags& flags, Session& session) {
  INTRAWARP_ASSIGN_OR_RETURN(const DicomPair series, DicomSeries(flags, "fixed", "moving"));
  return WriteRegistrationFile(flags.Positional(0), flags.String("out"), flags, series, session);
}

absl::Status Get(const ParsedFlags& flags, Session& session) {
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "out", TransformSuffixes()));
  const std::string out = flags.String("out"), name = flags.Positional(0);
  INTRAWARP_RETURN_IF_ERROR(CheckDicomFlags(flags, HasDicomSuffix(out), {"fixed", "moving", "tolerance_mm"}));
  const absl::StatusOr<v1::FieldRequest> field =
      ParseFieldFlags(flags, HasVolumeSuffix(out), "a field (.nii[.gz], .nrrd, .nhdr, .mha, .mhd)");
  if (!field.ok()) return UsageError(field.status());
  const absl::Status format = CheckFieldFormat(*field, "out", out);
  if (!format.ok()) return UsageError(format);
  if (HasDicomSuffix(out)) return GetRegistration(flags, session);
  if (HasMatrixSuffix(out)) return GetMatrix(name, out, session);
  if (!HasItkSuffix(out)) return GetField(name, *field, out, session);
  return WriteItkFile(name, out, session);
}

absl::Status Delete(const ParsedFlags& flags, Session& session) {
  return session.client().DeleteTransform(flags.Positional(0), session.call());
}

// A resident volume is named; of a file, only the grid travels.
absl::Status SetLike(const std::string& like, v1::WarpVolumeRequest* request) {
  if (IsVolumeName(like)) {
    request->set_like_volume(like);
    return absl::OkStatus();
  }
  INTRAWARP_ASSIGN_OR_RETURN(const LoadedVolume loaded, LoadVolume(like));
  *request->mutable_like_geometry() = GeometryToProto(loaded.volume.geometry);
  return absl::OkStatus();
}

v1::Interpolation InterpolationFromName(const std::string& name) {
  if (name == "nearest") return v1::INTERPOLATION_NEAREST;
  if (name == "cubic") return v1::INTERPOLATION_CUBIC;
  return v1::INTERPOLATION_LINEAR;
}

// What a DICOM output refers to.
struct WarpSeries {
  std::optional<io::DicomReference> fixed;
  std::optional<io::DicomReference> moving;  // for a segmentation: where it is one of DICOM's
};

absl::StatusOr<WarpSeries> SeriesOfWarp(const ParsedFlags& flags) {
  WarpSeries series;
  const std::string out = flags.String("out"), moving = flags.String("moving");
  if (IsFolderOutput(out)) {
    INTRAWARP_ASSIGN_OR_RETURN(DicomPair pair, DicomSeries(flags, "like", "moving"));
    INTRAWARP_RETURN_IF_ERROR(io::CheckDerivable(pair.moving));
    return WarpSeries{std::move(pair.fixed), std::move(pair.moving)};
  }
  if (!HasDicomSuffix(out)) return series;
  INTRAWARP_ASSIGN_OR_RETURN(series.fixed, FixedSeries(flags, "like"));
  if (!flags.Has("moving_dicom") && !IsDicomPath(moving)) return series;
  INTRAWARP_ASSIGN_OR_RETURN(series.moving, MovingSeries(flags, "moving"));
  return series;
}

std::vector<std::string> WarpSuffixes() {
  std::vector<std::string> suffixes = io::GridSuffixes();
  suffixes.insert(suffixes.end(), {".dcm", "/"});
  return suffixes;
}

// A mask keeps its values, and is empty where it has no source.
absl::Status CheckSegmentationFlags(const ParsedFlags& flags) {
  if (!HasDicomSuffix(flags.String("out"))) return absl::OkStatus();
  if (flags.Has("fill")) return UsageError(absl::InvalidArgumentError("--fill: a segmentation is filled with 0"));
  if (flags.String("interpolation", "nearest") == "nearest") return absl::OkStatus();
  return UsageError(absl::InvalidArgumentError("--interpolation: a segmentation needs nearest"));
}

absl::Status WriteWarped(const std::string& out, const client::GridData& warped, WarpSeries series) {
  if (IsFolderOutput(out)) {
    return WriteDerivedFolder(out, warped, {*std::move(series.fixed), *std::move(series.moving)});
  }
  if (HasDicomSuffix(out)) {
    return WriteSegmentationFile(out, warped, *series.fixed, series.moving ? &*series.moving : nullptr);
  }
  return Annotate(io::WriteVolumeFile(out, warped.geometry, warped.values.data()), out);
}

absl::Status Warp(const ParsedFlags& flags, Session& session) {
  const std::string out = flags.String("out");
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "out", WarpSuffixes()));
  INTRAWARP_RETURN_IF_ERROR(CheckSegmentationFlags(flags));
  INTRAWARP_RETURN_IF_ERROR(
      CheckDicomFlags(flags, HasDicomSuffix(out) || IsFolderOutput(out), {"fixed_dicom", "moving_dicom"}));
  INTRAWARP_ASSIGN_OR_RETURN(WarpSeries series, SeriesOfWarp(flags));
  const double fill = IsFolderOutput(out) ? io::DerivedFill(*series.moving) : 0;
  v1::WarpVolumeRequest request;
  request.set_inverse(flags.Has("inverse"));
  request.set_fill(static_cast<float>(flags.Number("fill", fill)));
  request.set_interpolation(
      InterpolationFromName(flags.String("interpolation", HasDicomSuffix(out) ? "nearest" : "linear")));
  INTRAWARP_RETURN_IF_ERROR(SetLike(flags.String("like"), &request));
  client::GridData warped;
  Temporaries temporaries(session);
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_transform(), temporaries.Transform(flags.String("transform")));
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_moving(), temporaries.Volume(flags.String("moving")));
  INTRAWARP_RETURN_IF_ERROR(session.client().WarpVolume(request, client::SinkInto(&warped), session.call()));
  INTRAWARP_RETURN_IF_ERROR(temporaries.DeleteAll());
  return WriteWarped(out, warped, std::move(series));
}

absl::Status Points(const ParsedFlags& flags, Session& session) {
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "out"));
  const absl::StatusOr<std::vector<Vec3d>> points = io::ReadPoints(flags.String("in"));
  if (!points.ok()) return Annotate(points.status(), flags.String("in"));
  Temporaries temporaries(session);
  INTRAWARP_ASSIGN_OR_RETURN(const std::string transform, temporaries.Transform(flags.String("transform")));
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<Vec3d> mapped,
                             session.client().MapPoints(transform, *points, flags.Has("inverse"), session.call()));
  INTRAWARP_RETURN_IF_ERROR(temporaries.DeleteAll());
  return Annotate(io::WritePoints(flags.String("out"), mapped), flags.String("out"));
}

const FlagSpec kTransform = {
    .name = "transform",
    .placeholder = "transforms/ID|PATH",
    .help =
        "a field (.nii[.gz], .nrrd, .mha), velocity (.nii[.gz]), ITK's (.tfm, .h5), DICOM registration or "
        "matrix (.txt) is uploaded, used and deleted",
    .required = true};
const FlagSpec kInverse = {
    .name = "inverse", .type = FlagType::kSwitch, .placeholder = "", .help = "through the inverse transform"};

std::vector<FlagSpec> GetFlagSpecs() {
  std::vector<FlagSpec> specs = {
      {.name = "out",
       .placeholder = "PATH",
       .help = ".txt: 4x4 matrix; .tfm, .h5: as ITK has it; .dcm: DICOM registration "
               "object; .nii[.gz], .nrrd, .mha: field",
       .required = true},
      {.name = "fixed", .placeholder = "PATH[#SERIES]", .help = "the fixed series that a .dcm refers to"},
      {.name = "moving", .placeholder = "PATH[#SERIES]", .help = "the moving series that a .dcm refers to"},
      ToleranceFlagSpec()};
  for (FlagSpec& spec : FieldFlagSpecs()) specs.push_back(std::move(spec));
  return specs;
}

std::vector<FlagSpec> WarpFlagSpecs() {
  std::vector<FlagSpec> specs = {
      kTransform,
      {.name = "moving", .placeholder = "X", .help = "what is resampled", .required = true},
      {.name = "like", .placeholder = "X", .help = "the grid of the result", .required = true},
      {.name = "out",
       .placeholder = "PATH",
       .help = ".nii[.gz], .nrrd, .nhdr, .mha or .mhd; FOLDER/: a derived DICOM series; .dcm: a mask as a DICOM "
               "segmentation",
       .required = true},
      kInverse,
      {.name = "fill",
       .type = FlagType::kNumber,
       .placeholder = "V",
       .help = "where there is no source; default 0, for a derived CT series -1000",
       .minimum = -3.4e38,
       .maximum = 3.4e38},
      {.name = "interpolation",
       .placeholder = "linear|nearest|cubic",
       .help = "default linear; nearest for a segmentation",
       .choices = {"linear", "nearest", "cubic"}}};
  for (FlagSpec& spec : DicomSeriesFlagSpecs()) specs.push_back(std::move(spec));
  return specs;
}

}  // namespace

std::vector<Command> TransformCommands() {
  return {
      {.name = "transform list",
       .summary = "list stored transforms: name, kind, device memory, owner",
       .syntax = {},
       .reach = Reach::kEach,
       .run = List},
      {.name = "transform get",
       .summary = "download a transform: its matrix, its control grid, or its dense displacement or velocity field",
       .syntax = {.flags = GetFlagSpecs(), .positionals = {"transforms/ID"}},
       .reach = Reach::kPlaced,
       .placed_by = {{""}},
       .run = Get},
      {.name = "transform delete",
       .summary = "delete a transform",
       .syntax = {.flags = {}, .positionals = {"transforms/ID"}},
       .reach = Reach::kPlaced,
       .placed_by = {{""}},
       .run = Delete},
      {.name = "warp",
       .summary = "resample a volume through a transform",
       .syntax = {.flags = WarpFlagSpecs()},
       .reach = Reach::kPlaced,
       .placed_by = {{"moving"}, {"like"}, {"transform", false}},
       .run = Warp},
      {.name = "points",
       .summary = "map points, fixed to moving",
       .syntax = {.flags = {kTransform,
                            {.name = "in", .placeholder = "P.csv", .help = "header x,y,z; LPS mm", .required = true},
                            {.name = "out", .placeholder = "Q.csv", .help = "the same, in order", .required = true},
                            kInverse}},
       .reach = Reach::kPlaced,
       .placed_by = {{"transform", false}},
       .run = Points},
  };
}

}  // namespace intrawarp::cli
