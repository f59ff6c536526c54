// SPDX-License-Identifier: Apache-2.0
// intrawarp register: one registration and its outputs.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "client/cli/commands/commands.h"
#include "client/cli/control_grid.h"
#include "client/cli/dicom_files.h"
#include "client/cli/field_file.h"
#include "client/cli/field_flags.h"
#include "client/cli/files.h"
#include "client/cli/outputs.h"
#include "client/cli/progress_bar.h"
#include "client/cli/registration_cost.h"
#include "client/cli/registration_flags.h"
#include "client/cli/registration_inputs.h"
#include "client/cli/registration_montage.h"
#include "client/cli/report_document.h"
#include "client/cli/report_json.h"
#include "client/cli/verdict.h"
#include "engine/base/status_macros.h"
#include "io/dicom/derived_series.h"
#include "io/dicom/report_object.h"
#include "io/file/file.h"
#include "io/format/grid_files.h"
#include "io/format/points.h"
#include "io/picture/png.h"
#include "wire/convert.h"

namespace intrawarp::cli {
namespace {

struct Outcome {
  v1::RegisterResult result;
  client::GridData field;
  client::GridData warped;
  // Only the montage needs it; the montage takes the warped image last.
  MontageInputs montage;
  // Only DICOM outputs need it.
  std::optional<DicomPair> series;
};

bool WantsDicomSeries(const ParsedFlags& flags) { return IsFolderOutput(flags.String("warped")); }
bool WantsDicom(const ParsedFlags& flags) {
  return flags.Has("registration") || flags.Has("dicom_report") || WantsDicomSeries(flags);
}
bool WantsMontage(const ParsedFlags& flags) { return flags.Has("montage") || flags.Has("dicom_report"); }

absl::Status AskForErrors(const ParsedFlags& flags, v1::RegistrationOptions* options) {
  if (flags.Has("error_map") || WantsMontage(flags)) options->mutable_error()->set_map(true);
  if (flags.Has("missing_tissue")) options->set_find_missing_tissue(true);
  if (!flags.Has("error_at")) return absl::OkStatus();
  const absl::StatusOr<std::vector<Vec3d>> points = io::ReadPoints(flags.String("error_at"));
  if (!points.ok()) return Annotate(points.status(), flags.String("error_at"));
  for (const Vec3d& p : *points) {
    for (const double coordinate : {p.x, p.y, p.z}) options->mutable_error()->add_points(coordinate);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::RegisterRequest> MakeRequest(const ParsedFlags& flags, const RegistrationFlags& registration,
                                                Temporaries& temporaries) {
  v1::RegisterRequest request;
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_options(), WithInputs(registration, temporaries));
  INTRAWARP_RETURN_IF_ERROR(AskForErrors(flags, request.mutable_options()));
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_fixed(), temporaries.Volume(flags.String("fixed")));
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_moving(), temporaries.Volume(flags.String("moving")));
  return request;
}

// Where the volume cannot be asked for, nothing is told: the call that needs it says why.
std::optional<Geometry> GeometryOf(const std::string& volume, CommandContext& context) {
  const absl::StatusOr<v1::Volume> found = context.client().GetVolume(volume, context.call());
  if (!found.ok()) return std::nullopt;
  const absl::StatusOr<Geometry> geometry = GeometryFromProto(found->geometry());
  return geometry.ok() ? std::optional(*geometry) : std::nullopt;
}

// The options whose stages Progress counts: without named stages a slice in a volume has a rigid one. `fixed` absent:
// stages are named, or the image is not known.
v1::RegistrationOptions CountedOptions(const v1::RegisterRequest& request, const std::optional<Geometry>& fixed,
                                       CommandContext& context) {
  v1::RegistrationOptions options = request.options();
  if (!fixed || !fixed->is_2d()) return options;
  const std::optional<Geometry> moving = GeometryOf(request.moving(), context);
  if (moving && !moving->is_2d()) options.add_stages()->mutable_rigid();
  return options;
}

// Tells what auto is about to cost on a CPU.
void TellCost(const Geometry& fixed, CommandContext& context) {
  const absl::StatusOr<v1::ServerInfo> server = context.client().GetServerInfo(context.call());
  const std::string line = server.ok() ? CostLine(*server, fixed) : "";
  if (!line.empty()) std::fprintf(stderr, "%s\n", line.c_str());
}

// A start that is not where the headers put the images is worth a word: a wrong header looks like that.
void TellStart(const v1::Report& report, const std::string& fixed_volume, CommandContext& context) {
  if (report.starts().empty() || report.starts(0).kind() != v1::START_KIND_CENTER_OF_MASS) return;
  const std::optional<Geometry> fixed = GeometryOf(fixed_volume, context);
  const absl::StatusOr<AffineMap> map = AffineMapFromProto(report.starts(0).end());
  if (!fixed || !map.ok()) return;
  const Vec3d center = Center(*fixed), moved = (*map)(center)-center;
  std::fprintf(stderr, "start: the centres of mass, %.3g mm from where the headers put the images\n",
               std::sqrt(Dot(moved, moved)));
}

absl::Status RequestRegistration(const ParsedFlags& flags, const RegistrationFlags& registration,
                                 const v1::FieldRequest& field, CommandContext& context, Temporaries& temporaries,
                                 Outcome* outcome) {
  INTRAWARP_ASSIGN_OR_RETURN(v1::RegisterRequest request, MakeRequest(flags, registration, temporaries));
  if (flags.Has("field")) *request.mutable_field() = field;
  const bool is_automatic = request.options().stages().empty();
  const std::optional<Geometry> fixed = is_automatic ? GeometryOf(request.fixed(), context) : std::nullopt;
  const v1::RegistrationOptions counted = CountedOptions(request, fixed, context);
  if (fixed && counted.stages().empty()) TellCost(*fixed, context);
  INTRAWARP_RETURN_IF_ERROR(context.Retrying([&]() -> absl::Status {
    ProgressBar bar;
    INTRAWARP_ASSIGN_OR_RETURN(outcome->result, context.client().Register(
                                                    request,
                                                    [&](const v1::Progress& progress) {
                                                      bar.Update(RegistrationFraction(counted, progress),
                                                                 RegistrationStep(counted, progress));
                                                    },
                                                    client::SinkInto(&outcome->field), context.call()));
    return absl::OkStatus();
  }));
  TellStart(outcome->result.report(), request.fixed(), context);
  return absl::OkStatus();
}

absl::Status WarpMoving(const ParsedFlags& flags, const std::string& transform, double fill, CommandContext& context,
                        Temporaries& temporaries, client::GridData* warped) {
  v1::WarpVolumeRequest request;
  request.set_transform(transform);
  request.set_fill(static_cast<float>(fill));
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_moving(), temporaries.Volume(flags.String("moving")));
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_like_volume(), temporaries.Volume(flags.String("fixed")));
  return context.client().WarpVolume(request, client::SinkInto(warped), context.call());
}

absl::StatusOr<v1::FieldHeader> FetchWholeField(const std::string& transform, v1::FieldEncoding encoding,
                                                CommandContext& context, client::GridData* field) {
  v1::DownloadRequest request;
  request.set_name(transform);
  request.mutable_field()->set_encoding(encoding);
  return context.client().DownloadField(request, client::SinkInto(field), context.call());
}

absl::Status WriteVelocityOf(const std::string& transform, const std::string& out, CommandContext& context) {
  client::GridData velocity;
  INTRAWARP_ASSIGN_OR_RETURN(const v1::FieldHeader header,
                             FetchWholeField(transform, v1::FIELD_ENCODING_VELOCITY, context, &velocity));
  return WriteFieldFile(out, header.encoding(), header.affine(), velocity);
}

// The images and the field that a picture needs beside the warped image.
absl::Status FetchForMontage(const ParsedFlags& flags, CommandContext& context, Outcome* outcome) {
  INTRAWARP_RETURN_IF_ERROR(
      FetchWholeField(outcome->result.transform(), v1::FIELD_ENCODING_FLOAT32, context, &outcome->montage.field)
          .status());
  INTRAWARP_ASSIGN_OR_RETURN(outcome->montage.fixed, FetchImage(flags.String("fixed"), context));
  INTRAWARP_ASSIGN_OR_RETURN(outcome->montage.moving, FetchImage(flags.String("moving"), context));
  return absl::OkStatus();
}

// Makes the outputs that still need the server, before the uploaded volumes are deleted.
void FetchOutputs(const ParsedFlags& flags, CommandContext& context, Temporaries& temporaries, Outcome* outcome,
                  Outputs* outputs) {
  const std::string& transform = outcome->result.transform();
  outputs->Make({"warped", "montage", "dicom_report"}, [&] {
    const double fill = WantsDicomSeries(flags) ? io::DerivedFill(outcome->series->moving) : 0;
    return WarpMoving(flags, transform, fill, context, temporaries, &outcome->warped);
  });
  outputs->Make({"registration"}, [&] {
    return WriteRegistrationFile(transform, flags.String("registration"), flags, *outcome->series, context);
  });
  outputs->Make({"grid"}, [&] { return WriteControlGrid(transform, flags.String("grid"), context); });
  outputs->Make({"velocity"}, [&] { return WriteVelocityOf(transform, flags.String("velocity"), context); });
  outputs->Make({"montage", "dicom_report"}, [&] { return FetchForMontage(flags, context, outcome); });
}

// The images, masks, weights and the start as the command line names them.
ReportRecord RecordOf(const ParsedFlags& flags, const Outcome& outcome) {
  ReportRecord record;
  record.transform = outcome.result.transform();
  for (const char* name :
       {"fixed", "moving", "fixed_mask", "moving_mask", "fixed_weight", "moving_weight", "initial"}) {
    if (flags.Has(name)) record.inputs[name] = flags.String(name);
  }
  record.command_line = {"register"};
  for (const std::string& argument : flags.arguments()) record.command_line.push_back(argument);
  return record;
}

absl::Status WriteReport(const ParsedFlags& flags, const Outcome& outcome, const std::string& method) {
  const std::string out = flags.String("report");
  const Json report = ReportToJson(method, outcome.result.report(), RecordOf(flags, outcome));
  return Annotate(io::WriteSmallFile(out, JsonText(report)), out);
}

absl::Status WriteErrorMap(const v1::Report& report, const std::string& out) {
  if (!report.has_error_map()) {
    return absl::FailedPreconditionError("--error_map: the images have too little structure to predict the error");
  }
  INTRAWARP_ASSIGN_OR_RETURN(const Geometry blocks, GeometryFromProto(report.error_map().geometry()));
  if (blocks.voxels() != report.error_map().bound_mm_size()) {
    return absl::InternalError("the server sent an error map of another size than it says");
  }
  return Annotate(io::WriteVolumeFile(out, blocks, report.error_map().bound_mm().data()), out);
}

// 1 at the nodes where tissue is missing, otherwise 0.
absl::Status WriteMissingTissue(const v1::Report& report, const std::string& out) {
  const v1::MissingTissue& missing = report.missing_tissue();
  INTRAWARP_ASSIGN_OR_RETURN(const Geometry grid, GeometryFromProto(missing.geometry()));
  std::vector<float> values(grid.voxels());
  const std::string& bits = missing.nodes();
  if (!bits.empty() && bits.size() != (values.size() + 7) / 8) {
    return absl::InternalError("the server sent a map of missing tissue of another size than it says");
  }
  for (size_t i = 0; i < values.size() && !bits.empty(); ++i) {
    values[i] = static_cast<float>(static_cast<uint8_t>(bits[i / 8]) >> i % 8 & 1);
  }
  return Annotate(io::WriteVolumeFile(out, grid, values.data()), out);
}

// One line a point, in their order; its figures are nan where the images have too little structure to predict the
// error, and where the point has no counterpart.
absl::Status WriteErrorsAt(const v1::Report& report, const v1::ErrorRequest& asked, const std::string& out) {
  std::string text = "x,y,z,expected_mm,bound_mm,distance_mm\n";
  v1::PointError unknown;
  unknown.set_expected_mm(NAN);
  unknown.set_bound_mm(NAN);
  unknown.set_distance_mm(NAN);
  for (int i = 0; i < asked.points_size() / 3; ++i) {
    const bool is_known = i < report.error_at_size() && !report.error_at(i).no_correspondence();
    const v1::PointError& error = is_known ? report.error_at(i) : unknown;
    absl::StrAppendFormat(&text, "%.17g,%.17g,%.17g,%.6g,%.6g,%.6g\n", asked.points(3 * i), asked.points(3 * i + 1),
                          asked.points(3 * i + 2), error.expected_mm(), error.bound_mm(), error.distance_mm());
  }
  return Annotate(io::WriteSmallFile(out, text), out);
}

absl::Status WriteWarped(const std::string& out, const Outcome& outcome) {
  if (IsFolderOutput(out)) return WriteDerivedFolder(out, outcome.warped, *outcome.series);
  return Annotate(io::WriteVolumeFile(out, outcome.warped.geometry, outcome.warped.values.data()), out);
}

absl::Status WriteDicomReport(const std::string& method, const std::string& out, const io::Picture& montage,
                              const Outcome& outcome) {
  io::DicomStamp stamp;
  io::ReportDocument document = ReportDocumentOf(ReportToJson(method, outcome.result.report()));
  document.picture = montage;
  document.time = stamp.time;
  INTRAWARP_ASSIGN_OR_RETURN(const std::string pdf, io::RenderReportPdf(document));
  return Annotate(io::WriteDicomReport(out, pdf, kReportTitle, outcome.series->fixed, outcome.series->moving, stamp),
                  out);
}

// Makes the outputs that need only the report: no server, and before anything else can fail.
void WriteReports(const ParsedFlags& flags, const std::string& method, const Outcome& outcome, Outputs* outputs) {
  const v1::Report& report = outcome.result.report();
  outputs->Make({"report"}, [&] { return WriteReport(flags, outcome, method); });
  outputs->Make({"error_map"}, [&] { return WriteErrorMap(report, flags.String("error_map")); });
  outputs->Make({"missing_tissue"}, [&] { return WriteMissingTissue(report, flags.String("missing_tissue")); });
  outputs->Make({"error_out"},
                [&] { return WriteErrorsAt(report, report.options().error(), flags.String("error_out")); });
}

void WriteOutputs(const ParsedFlags& flags, const std::string& method, v1::FieldEncoding encoding, Outcome* outcome,
                  Outputs* outputs) {
  outputs->Make({"field"}, [&] {
    return WriteFieldFile(flags.String("field"), encoding, outcome->result.report().affine(), outcome->field);
  });
  outputs->Make({"warped"}, [&] { return WriteWarped(flags.String("warped"), *outcome); });
  io::Picture montage;
  outputs->Make({"montage", "dicom_report"}, [&]() -> absl::Status {
    outcome->montage.warped = std::move(outcome->warped);
    INTRAWARP_ASSIGN_OR_RETURN(montage,
                               RenderRegistration(std::move(outcome->montage), method, outcome->result.report()));
    return absl::OkStatus();
  });
  outputs->Make({"montage"}, [&] {
    const std::string out = flags.String("montage");
    return Annotate(io::WritePng(out, montage), out);
  });
  outputs->Make({"dicom_report"},
                [&] { return WriteDicomReport(method, flags.String("dicom_report"), montage, *outcome); });
}

std::vector<std::string> WarpedSuffixes() {
  std::vector<std::string> suffixes = io::GridSuffixes();
  suffixes.emplace_back("/");
  return suffixes;
}

// LPS mm, from --montage_at.
absl::StatusOr<std::optional<Vec3d>> MontagePlace(const ParsedFlags& flags) {
  if (!flags.Has("montage_at")) return std::optional<Vec3d>();
  const auto wrong = [](const char* what) {
    return UsageError(absl::InvalidArgumentError(absl::StrCat("--montage_at: ", what)));
  };
  if (!WantsMontage(flags)) return wrong("only --montage and --dicom_report use it");
  const std::vector<std::string> words = absl::StrSplit(flags.String("montage_at"), ',');
  if (words.size() != 3) return wrong("must be X,Y,Z, LPS mm");
  Vec3d place;
  for (int a = 0; a < 3; ++a) {
    const absl::StatusOr<double> number = io::ParseFinite(words[static_cast<size_t>(a)]);
    if (!number.ok()) return wrong("must be X,Y,Z, LPS mm");
    place[a] = *number;
  }
  return std::optional(place);
}

absl::Status CheckOutputs(const ParsedFlags& flags) {
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "field", io::GridSuffixes()));
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "warped", WarpedSuffixes()));
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "registration", {".dcm"}));
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "dicom_report", {".dcm"}));
  INTRAWARP_RETURN_IF_ERROR(CheckDicomFlags(flags, WantsDicom(flags), {"fixed_dicom", "moving_dicom"}));
  INTRAWARP_RETURN_IF_ERROR(CheckDicomFlags(flags, flags.Has("registration"), {"tolerance_mm"}));
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "montage", {".png"}));
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "grid", ItkSuffixes()));
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "velocity", {".nii", ".nii.gz"}));
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "error_map", io::GridSuffixes()));
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "missing_tissue", io::GridSuffixes()));
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "error_out", {".csv"}));
  return CheckOutput(flags, "report");
}

// Native forms come from the method that has them.
absl::Status CheckNativeForms(const ParsedFlags& flags, const v1::RegistrationOptions& options) {
  if (flags.Has("grid") && !EndsIn(v1::Stage::kFfd, options)) {
    return absl::InvalidArgumentError("--grid: only ffd as the last stage has a control grid");
  }
  if (flags.Has("velocity") && !EndsIn(v1::Stage::kLogDemons, options)) {
    return absl::InvalidArgumentError("--velocity: only log-demons as the last stage has a velocity");
  }
  return CheckFieldEncoding(flags, options);
}

// On a terminal, like progress.
void ShowChoice(const v1::Report& report) {
  if (report.has_choice() && isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "%s\n", report.choice().text().c_str());
}

// Whether stderr is a terminal or not: whoever uses the result has to know.
void TellVerdict(const v1::Report& report) {
  const std::string line = VerdictLine(report);
  if (!ShowsColor()) {
    std::fprintf(stderr, "%s\n", line.c_str());
  } else {
    std::fprintf(stderr, "\033[%sm%s\033[0m\n", IsOk(report) ? "32" : "1;33", line.c_str());
  }
}

// Without this line nobody would see that --sliding found nothing that slides.
void TellSliding(const v1::Report& report) {
  const std::string text = SlidingText(report);
  if (!text.empty()) std::fprintf(stderr, "sliding: %s\n", text.c_str());
}

// For --require_ok.
absl::Status CheckVerdict(const ParsedFlags& flags, const v1::Report& report) {
  if (!flags.Has("require_ok") || IsOk(report)) return absl::OkStatus();
  return NotOkError(absl::FailedPreconditionError(
      absl::StrCat("the verdict is ", VerdictWord(report), ", and --require_ok takes only ok")));
}

void PrintName(const v1::RegisterResult& result) {
  std::printf("%s\n", result.transform().c_str());
  std::fflush(stdout);
}

// There is nothing to write yet.
absl::Status CheckDetach(const ParsedFlags& flags) {
  if (flags.Has("request_id") && !flags.Has("detach")) {
    return UsageError(absl::InvalidArgumentError("--request_id: goes with --detach"));
  }
  if (!flags.Has("detach")) return absl::OkStatus();
  for (const char* flag :
       {"field",          "field_encoding", "field_region", "field_stride", "grid",         "velocity",  "warped",
        "registration",   "dicom_report",   "fixed_dicom",  "moving_dicom", "tolerance_mm", "report",    "error_map",
        "missing_tissue", "error_at",       "error_out",    "montage",      "montage_at",   "require_ok"}) {
    if (flags.Has(flag)) {
      return UsageError(absl::InvalidArgumentError(
          absl::StrCat("--", flag, ": is about the result, which --detach does not wait for")));
    }
  }
  return absl::OkStatus();
}

// The volumes of a file are deleted at once: the work holds them as long as it needs them.
absl::Status StartRegistration(const ParsedFlags& flags, const RegistrationFlags& registration,
                               CommandContext& context) {
  Temporaries temporaries(context);
  INTRAWARP_ASSIGN_OR_RETURN(v1::RegisterRequest request, MakeRequest(flags, registration, temporaries));
  request.set_request_id(flags.String("request_id"));
  INTRAWARP_ASSIGN_OR_RETURN(const v1::Operation operation,
                             context.client().StartRegister(std::move(request), context.call()));
  std::printf("%s\n", operation.name().c_str());
  std::fflush(stdout);
  return temporaries.DeleteAll();
}

absl::Status Register(const ParsedFlags& flags, CommandContext& context) {
  const absl::StatusOr<RegistrationFlags> registration = ParseRegistrationFlags(flags);
  if (!registration.ok()) return UsageError(registration.status());
  INTRAWARP_RETURN_IF_ERROR(CheckDetach(flags));
  if (flags.Has("detach")) return StartRegistration(flags, *registration, context);
  INTRAWARP_RETURN_IF_ERROR(CheckOutputs(flags));
  const absl::StatusOr<v1::FieldRequest> field = ParseFieldFlags(flags, flags.Has("field"), "--field");
  if (!field.ok()) return UsageError(field.status());
  const absl::Status format = CheckFieldFormat(*field, "field", flags.String("field"));
  if (!format.ok()) return UsageError(format);
  const absl::Status native = CheckNativeForms(flags, registration->options);
  if (!native.ok()) return UsageError(native);
  if (flags.Has("error_at") != flags.Has("error_out")) {
    return UsageError(absl::InvalidArgumentError("--error_at: goes with --error_out, and --error_out with --error_at"));
  }

  Outcome outcome;
  INTRAWARP_ASSIGN_OR_RETURN(outcome.montage.at, MontagePlace(flags));
  if (WantsDicom(flags)) {
    INTRAWARP_ASSIGN_OR_RETURN(outcome.series, DicomSeries(flags, "fixed", "moving"));
    if (WantsDicomSeries(flags)) INTRAWARP_RETURN_IF_ERROR(io::CheckDerivable(outcome.series->moving));
  }
  Temporaries temporaries(context);
  INTRAWARP_RETURN_IF_ERROR(RequestRegistration(flags, *registration, *field, context, temporaries, &outcome));
  // A server that fails from here on loses the transform, and another one makes it again.
  const bool is_final = !context.servers().has_several();
  const v1::Report& report = outcome.result.report();
  if (is_final) PrintName(outcome.result);
  ShowChoice(report);
  TellSliding(report);
  TellVerdict(report);
  Outputs outputs(flags, context);
  WriteReports(flags, registration->method, outcome, &outputs);
  FetchOutputs(flags, context, temporaries, &outcome, &outputs);
  INTRAWARP_RETURN_IF_ERROR(outputs.server_fault());
  if (!is_final) PrintName(outcome.result);
  const absl::Status deleted = temporaries.DeleteAll();
  const std::string name = outcome.result.transform();
  const absl::Status verdict = CheckVerdict(flags, report);
  WriteOutputs(flags, registration->method, field->encoding(), &outcome, &outputs);
  INTRAWARP_RETURN_IF_ERROR(outputs.Finish(
      absl::StrCat(name, " was made, and while the server keeps it, warp and transform get or show give the rest")));
  INTRAWARP_RETURN_IF_ERROR(deleted);
  return verdict;
}

std::vector<FlagSpec> RegisterFlagSpecs() {
  std::vector<FlagSpec> specs = {
      {.name = "fixed", .placeholder = "X", .help = "the image whose grid the transform maps from", .required = true},
      {.name = "moving", .placeholder = "X", .help = "the image that is aligned to it", .required = true},
  };
  for (FlagSpec& spec : RegistrationFlagSpecs()) specs.push_back(std::move(spec));
  for (FlagSpec spec : std::vector<FlagSpec>{
           {.name = "detach",
            .type = FlagType::kSwitch,
            .placeholder = "",
            .help = "begin an operation, which goes on by itself; prints operations/ID (intrawarp operation wait)"},
           {.name = "request_id", .placeholder = "ID", .help = "with --detach: the wanted ID; default: a UUID"},
           {.name = "field", .placeholder = "OUT.nii.gz", .help = "the dense displacement field, LPS mm"},
           {.name = "grid", .placeholder = "OUT.tfm", .help = "the control grid of ffd, as ITK has it"},
           {.name = "velocity",
           .placeholder = "OUT.nii.gz",
           .help = "the velocity of log-demons, whose exponential maps"},
           {.name = "warped",
           .placeholder = "OUT.nii.gz|FOLDER/",
           .help = "the moving image on the fixed grid; FOLDER/: as a derived DICOM series"},
           {.name = "registration",
           .placeholder = "OUT.dcm",
           .help = "the transform as a DICOM (Deformable) Spatial Registration"},
           {.name = "dicom_report", .placeholder = "OUT.dcm", .help = "report and montage as a DICOM Encapsulated PDF"},
           {.name = "report", .placeholder = "OUT.json", .help = "what was done and how good it is"},
           {.name = "error_map",
           .placeholder = "OUT.nii.gz",
           .help = "what 95 % of the errors lie below, mm, block by block; NaN without structure"},
           {.name = "missing_tissue",
           .placeholder = "OUT.nii.gz",
           .help = "1 where tissue has no counterpart, on a grid of its own; implies --find_missing_tissue"},
           {.name = "error_at", .placeholder = "POINTS.csv", .help = "where to predict the error: x,y,z, LPS mm"},
           {.name = "error_out", .placeholder = "OUT.csv", .help = "the errors predicted there"},
           {.name = "montage",
           .placeholder = "OUT.png",
           .help = "images, differences or contours, predicted error, deformed grid, verdict"},
           {.name = "montage_at",
           .placeholder = "X,Y,Z",
           .help = "where the montage's slices go through, LPS mm; default: the largest predicted error above the "
                   "limit, or the middle"},
           RequireOkFlagSpec(),
           OrientationFlagSpec()}) {
    specs.push_back(std::move(spec));
  }
  for (FlagSpec& spec : DicomSeriesFlagSpecs()) specs.push_back(std::move(spec));
  specs.push_back(ToleranceFlagSpec());
  for (FlagSpec& spec : FieldFlagSpecs()) specs.push_back(std::move(spec));
  return specs;
}

}  // namespace

std::vector<Command> RegisterCommands() {
  return {
      {.name = "register",
       .summary = "register a moving image to a fixed one; prints transforms/ID",
       .syntax = {.flags = RegisterFlagSpecs()},
       .reach = Reach::kPlaced,
       .placed_by = {{"fixed"},
                     {"moving"},
                     {"fixed_mask"},
                     {"moving_mask"},
                     {"fixed_weight"},
                     {"moving_weight"},
                     {"initial", false}},
       .run = Register,
       .notes =
           "stderr has a line with the verdict, its reasons and their numbers; docs/use/report.md explains them. "
           "Every\n"
           "output is tried, also where another one fails; each failure is told, and the exit status is then 1.\n"
           "Without --method the server chooses metrics and weights by the images; the report says which, and why.\n"
           "Options govern the last stage. A rigid or affine stage before it uses ssd when the last stage\n"
           "does, and ngf, which serves unlike intensities best, otherwise.\n"
           "log-demons compares intensities: give images of one modality. Where their gain and offset differ it\n"
           "matches them, and the affine stage before it takes ngf, unless --no_match_intensities is given.\n"
           "Its map has an inverse, which warp and points --inverse use.\n"
           "A deformation that does not bring the tissue that it moves nearer is taken out, and the reasons say so\n"
           "(deformation rejected); --keep_deformation keeps it, with the verdict review.\n"}};
}

}  // namespace intrawarp::cli
