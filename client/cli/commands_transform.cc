// SPDX-License-Identifier: Apache-2.0
// intrawarp transform list | get | delete, warp, points
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/control_grid.h"
#include "client/cli/field_file.h"
#include "client/cli/field_flags.h"
#include "client/cli/files.h"
#include "client/cli/volume_file.h"
#include "engine/base/status_macros.h"
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
    std::printf("%s\t%s\t%lld bytes\n", transform.name().c_str(), KindName(transform.kind()),
                static_cast<long long>(transform.resident_bytes()));
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
  std::vector<std::string> suffixes = {".txt"};
  suffixes.insert(suffixes.end(), ItkSuffixes().begin(), ItkSuffixes().end());
  suffixes.insert(suffixes.end(), io::GridSuffixes().begin(), io::GridSuffixes().end());
  return suffixes;
}

absl::Status Get(const ParsedFlags& flags, Session& session) {
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "out", TransformSuffixes()));
  const std::string out = flags.String("out"), name = flags.Positional(0);
  const absl::StatusOr<v1::FieldRequest> field =
      ParseFieldFlags(flags, HasVolumeSuffix(out), "a field (.nii[.gz], .nrrd, .nhdr, .mha, .mhd)");
  if (!field.ok()) return UsageError(field.status());
  const absl::Status format = CheckFieldFormat(*field, "out", out);
  if (!format.ok()) return UsageError(format);
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
  INTRAWARP_ASSIGN_OR_RETURN(const io::HostVolume volume, LoadVolume(like));
  *request->mutable_like_geometry() = GeometryToProto(volume.geometry);
  return absl::OkStatus();
}

v1::Interpolation InterpolationFromName(const std::string& name) {
  if (name == "nearest") return v1::INTERPOLATION_NEAREST;
  if (name == "cubic") return v1::INTERPOLATION_CUBIC;
  return v1::INTERPOLATION_LINEAR;
}

absl::Status Warp(const ParsedFlags& flags, Session& session) {
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "out", io::GridSuffixes()));
  v1::WarpVolumeRequest request;
  request.set_inverse(flags.Has("inverse"));
  request.set_fill(static_cast<float>(flags.Number("fill")));
  request.set_interpolation(InterpolationFromName(flags.String("interpolation", "linear")));
  INTRAWARP_RETURN_IF_ERROR(SetLike(flags.String("like"), &request));
  client::GridData warped;
  Temporaries temporaries(session);
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_transform(), temporaries.Transform(flags.String("transform")));
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_moving(), temporaries.Volume(flags.String("moving")));
  INTRAWARP_RETURN_IF_ERROR(session.client().WarpVolume(request, client::SinkInto(&warped), session.call()));
  INTRAWARP_RETURN_IF_ERROR(temporaries.DeleteAll());
  const std::string out = flags.String("out");
  return Annotate(io::WriteVolumeFile(out, warped.geometry, warped.values.data()), out);
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
        "a field (.nii[.gz], .nrrd, .mha), velocity (.nii[.gz]), ITK's (.tfm, .h5) or matrix (.txt) is "
        "uploaded, used and deleted",
    .required = true};
const FlagSpec kInverse = {
    .name = "inverse", .type = FlagType::kSwitch, .placeholder = "", .help = "through the inverse transform"};

std::vector<FlagSpec> GetFlagSpecs() {
  std::vector<FlagSpec> specs = {{.name = "out",
                                  .placeholder = "PATH",
                                  .help = ".txt: 4x4 matrix; .tfm, .h5: as ITK has it; .nii[.gz], .nrrd, .mha: field",
                                  .required = true}};
  for (FlagSpec& spec : FieldFlagSpecs()) specs.push_back(std::move(spec));
  return specs;
}

}  // namespace

std::vector<Command> TransformCommands() {
  return {
      {.name = "transform list",
       .summary = "list stored transforms: name, kind, device memory",
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
       .syntax = {.flags = {kTransform,
                            {.name = "moving", .placeholder = "X", .help = "what is resampled", .required = true},
                            {.name = "like", .placeholder = "X", .help = "the grid of the result", .required = true},
                            {.name = "out",
                             .placeholder = "PATH",
                             .help = ".nii[.gz], .nrrd, .nhdr, .mha or .mhd",
                             .required = true},
                            kInverse,
                            {.name = "fill",
                             .type = FlagType::kNumber,
                             .placeholder = "V",
                             .help = "where there is no source; default 0",
                             .minimum = -3.4e38,
                             .maximum = 3.4e38},
                            {.name = "interpolation",
                             .placeholder = "linear|nearest|cubic",
                             .help = "default linear",
                             .choices = {"linear", "nearest", "cubic"}}}},
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
