// SPDX-License-Identifier: Apache-2.0
// intrawarp transform list | show | get | delete, warp, points
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/command.h"
#include "client/cli/commands/commands.h"
#include "client/cli/control_grid.h"
#include "client/cli/dicom_files.h"
#include "client/cli/field_file.h"
#include "client/cli/field_flags.h"
#include "client/cli/files.h"
#include "client/cli/message_json.h"
#include "client/cli/registration_flags.h"
#include "client/cli/report_json.h"
#include "client/cli/verdict.h"
#include "client/cli/volume_file.h"
#include "engine/base/status_macros.h"
#include "io/dicom/derived_series.h"
#include "io/format/grid_files.h"
#include "io/format/matrix_text.h"
#include "io/format/points.h"
#include "wire/convert.h"

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

// "2026-11-26T01:30:00Z"
std::string TimeText(const google::protobuf::Timestamp& time) {
  return absl::FormatTime("%Y-%m-%d%ET%H:%M:%SZ", absl::FromUnixSeconds(time.seconds()), absl::UTCTimeZone());
}

// An image by its name, or by the first digits of its digest where it is gone with the command that brought it.
std::string InputText(const std::string& name, const std::string& digest) {
  const std::string short_digest = absl::BytesToHexString(digest).substr(0, 8);
  if (name.empty() && digest.empty()) return "-";
  return absl::StrCat(name, name.empty() || digest.empty() ? "" : "@", short_digest);
}

// The verdict of a transform with its report; "-" for one that a client brought.
std::string ResultColumns(const v1::Transform& transform) {
  if (!transform.has_report()) return "-\t-\t-";
  const v1::ReportProvenance& from = transform.report().provenance();
  return absl::StrCat(VerdictWord(transform.report()), "\t", InputText(from.fixed(), from.fixed_digest()), "\t",
                      InputText(from.moving(), from.moving_digest()));
}

Json TransformJson(const v1::Transform& transform) {
  v1::Transform bare = transform;
  bare.clear_report();
  Json json = MessageToJson(bare);
  if (!transform.has_report()) return json;
  ReportRecord record;
  record.transform = transform.name();
  json["report"] = ReportToJson(MethodOf(transform.report()), transform.report(), record);
  return json;
}

// A list comes without reports. One that is deleted meanwhile is listed without.
absl::StatusOr<std::vector<v1::Transform>> ListWithReports(CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(std::vector<v1::Transform> transforms, context.client().ListTransforms(context.call()));
  for (v1::Transform& transform : transforms) {
    INTRAWARP_RETURN_IF_ERROR(context.CheckInterrupt());
    absl::StatusOr<v1::Transform> whole = context.client().GetTransform(transform.name(), context.call());
    if (whole.ok()) {
      transform = *std::move(whole);
    } else if (!absl::IsNotFound(whole.status())) {
      return whole.status();
    }
  }
  std::stable_sort(transforms.begin(), transforms.end(), [](const v1::Transform& a, const v1::Transform& b) {
    const auto time = [](const v1::Transform& t) {
      return std::pair(t.create_time().seconds(), t.create_time().nanos());
    };
    return time(a) < time(b);
  });
  return transforms;
}

absl::Status List(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<v1::Transform> transforms, ListWithReports(context));
  if (flags.Has("json")) {
    Json list = Json::array();
    for (const v1::Transform& transform : transforms) list.push_back(TransformJson(transform));
    context.PrintJson(list);
    return absl::OkStatus();
  }
  for (const v1::Transform& transform : transforms) {
    std::printf("%s\t%s\t%lld bytes\t%s\t%s%s\n", transform.name().c_str(), KindName(transform.kind()),
                static_cast<long long>(transform.resident_bytes()), TimeText(transform.create_time()).c_str(),
                ResultColumns(transform).c_str(), OwnerColumn(transform.owner()).c_str());
  }
  return absl::OkStatus();
}

void PrintLine(const char* what, const std::string& text) {
  if (!text.empty()) std::printf("%s\t%s\n", what, text.c_str());
}

void PrintGrid(const Geometry& g) {
  PrintLine("size", absl::StrCat(g.size.x, "x", g.size.y, "x", g.size.z));
  PrintLine("spacing_mm", absl::StrCat(g.spacing.x, "x", g.spacing.y, "x", g.spacing.z));
}

// The stored report of a registration, line by line.
void PrintReport(const v1::Report& report) {
  const v1::ReportProvenance& from = report.provenance();
  PrintLine("method", MethodOf(report));
  PrintLine("device", report.device());
  PrintLine("verdict", VerdictWord(report));
  for (const std::string& reason : ReasonTexts(report)) PrintLine("reason", reason);
  PrintLine("error", ExpectedErrorText(report));
  if (report.has_choice()) PrintLine("choice", report.choice().text());
  if (const std::string text = SlidingText(report); !text.empty()) PrintLine("sliding", text);
  PrintLine("fixed", from.fixed());
  PrintLine("fixed_digest", absl::BytesToHexString(from.fixed_digest()));
  PrintLine("moving", from.moving());
  PrintLine("moving_digest", absl::BytesToHexString(from.moving_digest()));
  if (from.has_report_time()) PrintLine("report_time", TimeText(from.report_time()));
  PrintLine("server_version", from.server_version());
  PrintLine("server_revision", from.server_revision());
}

absl::Status Show(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const v1::Transform transform,
                             context.client().GetTransform(flags.Positional(0), context.call()));
  if (flags.Has("json")) {
    context.PrintJson(TransformJson(transform));
    return absl::OkStatus();
  }
  PrintLine("name", transform.name());
  PrintLine("kind", KindName(transform.kind()));
  PrintLine("owner", transform.owner());
  PrintLine("create_time", TimeText(transform.create_time()));
  if (transform.has_expire_time()) PrintLine("expire_time", TimeText(transform.expire_time()));
  const absl::StatusOr<Geometry> domain = GeometryFromProto(transform.domain());
  if (transform.has_domain() && domain.ok()) PrintGrid(*domain);
  PrintLine("resident_bytes", absl::StrCat(transform.resident_bytes()));
  if (transform.has_report()) PrintReport(transform.report());
  return absl::OkStatus();
}

absl::Status GetMatrix(const std::string& name, const std::string& out, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const v1::Transform transform, context.client().GetTransform(name, context.call()));
  if (transform.kind() != v1::TRANSFORM_KIND_AFFINE) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is more than a matrix; its field can be written to .nii.gz, .nrrd or .mha",
                     transform.kind() == v1::TRANSFORM_KIND_CONTROL_GRID ? ", its control grid to .tfm or .h5" : ""));
  }
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap matrix, AffineMapFromProto(transform.affine()));
  return Annotate(io::WriteMatrix(out, matrix), out);
}

absl::Status GetField(const std::string& name, const v1::FieldRequest& field, const std::string& out,
                      CommandContext& context) {
  v1::DownloadRequest request;
  request.set_name(name);
  *request.mutable_field() = field;
  client::GridData data;
  INTRAWARP_ASSIGN_OR_RETURN(const v1::FieldHeader header,
                             context.client().DownloadField(request, client::SinkInto(&data), context.call()));
  return WriteFieldFile(out, header.encoding(), header.affine(), data);
}

std::vector<std::string> TransformSuffixes() {
  std::vector<std::string> suffixes = {".txt", ".dcm"};
  suffixes.insert(suffixes.end(), ItkSuffixes().begin(), ItkSuffixes().end());
  suffixes.insert(suffixes.end(), io::GridSuffixes().begin(), io::GridSuffixes().end());
  return suffixes;
}

// The series are read first: what is wrong with them is told before anything is fetched.
absl::Status GetRegistration(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const DicomPair series, DicomSeries(flags, "fixed", "moving"));
  return WriteRegistrationFile(flags.Positional(0), flags.String("out"), flags, series, context);
}

absl::Status Get(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "out", TransformSuffixes()));
  const std::string out = flags.String("out"), name = flags.Positional(0);
  INTRAWARP_RETURN_IF_ERROR(CheckDicomFlags(flags, HasDicomSuffix(out), {"fixed", "moving", "tolerance_mm"}));
  const absl::StatusOr<v1::FieldRequest> field =
      ParseFieldFlags(flags, HasVolumeSuffix(out), "a field (.nii[.gz], .nrrd, .nhdr, .mha, .mhd)");
  if (!field.ok()) return UsageError(field.status());
  const absl::Status format = CheckFieldFormat(*field, "out", out);
  if (!format.ok()) return UsageError(format);
  if (HasDicomSuffix(out)) return GetRegistration(flags, context);
  if (HasMatrixSuffix(out)) return GetMatrix(name, out, context);
  if (!HasItkSuffix(out)) return GetField(name, *field, out, context);
  return WriteItkFile(name, out, context);
}

absl::Status Delete(const ParsedFlags& flags, CommandContext& context) {
  return context.client().DeleteTransform(flags.Positional(0), context.call());
}

// A resident volume is named; of a file, only the grid travels.
absl::Status SetLike(const std::string& like, CommandContext& context, v1::WarpVolumeRequest* request) {
  if (IsVolumeName(like)) {
    request->set_like_volume(like);
    return absl::OkStatus();
  }
  INTRAWARP_ASSIGN_OR_RETURN(const LoadedVolume loaded,
                             LoadVolume(like, {.orientation = context.assumed_orientation()}));
  context.TellOrientation(like, loaded.volume);
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

absl::Status Warp(const ParsedFlags& flags, CommandContext& context) {
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
  INTRAWARP_RETURN_IF_ERROR(SetLike(flags.String("like"), context, &request));
  client::GridData warped;
  Temporaries temporaries(context);
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_transform(), temporaries.Transform(flags.String("transform")));
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_moving(), temporaries.Volume(flags.String("moving")));
  INTRAWARP_RETURN_IF_ERROR(context.client().WarpVolume(request, client::SinkInto(&warped), context.call()));
  INTRAWARP_RETURN_IF_ERROR(temporaries.DeleteAll());
  return WriteWarped(out, warped, std::move(series));
}

// How far a point lies outside the voxels of a grid, mm; 0 inside. A slice has no thickness to be outside of.
double DistanceOutside(const Geometry& g, const AffineMap& to_index, Vec3d point) {
  const Vec3d index = to_index(point);
  Vec3d beyond;
  for (int a = 0; a < (g.is_2d() ? 2 : 3); ++a) {
    beyond[a] = g.spacing[a] * std::max({0.0, -0.5 - index[a], index[a] - (g.size[a] - 0.5)});
  }
  return std::sqrt(Dot(beyond, beyond));
}

// A map is only known where its fixed image was: landmarks of another image look like this.
void TellPointsOutside(const std::string& name, const std::vector<Vec3d>& fixed_points, CommandContext& context) {
  const absl::StatusOr<v1::Transform> transform = context.client().GetTransform(name, context.call());
  if (!transform.ok() || !transform->has_domain()) return;
  const absl::StatusOr<Geometry> domain = GeometryFromProto(transform->domain());
  if (!domain.ok()) return;
  const AffineMap to_index = PhysicalToIndex(*domain);
  double farthest = 0;
  int64_t count = 0;
  for (const Vec3d& point : fixed_points) {
    const double distance = DistanceOutside(*domain, to_index, point);
    if (!(distance > 1e-3 * domain->spacing.x)) continue;
    farthest = std::max(farthest, distance);
    ++count;
  }
  if (count == 0) return;
  std::fprintf(
      stderr,
      "intrawarp: %lld of %zu points lie outside the fixed image that the transform was made for, by up to %.3g "
      "mm: the map is not known there\n",
      static_cast<long long>(count), fixed_points.size(), farthest);
}

absl::Status Points(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "out"));
  const absl::StatusOr<std::vector<Vec3d>> points = io::ReadPoints(flags.String("in"));
  if (!points.ok()) return Annotate(points.status(), flags.String("in"));
  Temporaries temporaries(context);
  INTRAWARP_ASSIGN_OR_RETURN(const std::string transform, temporaries.Transform(flags.String("transform")));
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<Vec3d> mapped,
                             context.client().MapPoints(transform, *points, flags.Has("inverse"), context.call()));
  TellPointsOutside(transform, flags.Has("inverse") ? mapped : *points, context);
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
       .choices = {"linear", "nearest", "cubic"}},
      OrientationFlagSpec()};
  for (FlagSpec& spec : DicomSeriesFlagSpecs()) specs.push_back(std::move(spec));
  return specs;
}

}  // namespace

std::vector<Command> TransformCommands() {
  return {
      {.name = "transform list",
       .summary =
           "list stored transforms, oldest first: name, kind, device memory, time, verdict, fixed and moving image, "
           "owner",
       .syntax = {.flags = {JsonFlagSpec()}},
       .reach = Reach::kEach,
       .run = List},
      {.name = "transform show",
       .summary = "all that is known of a transform: its report with verdict and reasons, its images, its time",
       .syntax = {.flags = {JsonFlagSpec()}, .positionals = {"transforms/ID"}},
       .reach = Reach::kPlaced,
       .placed_by = {{""}},
       .run = Show},
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
