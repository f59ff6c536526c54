// SPDX-License-Identifier: Apache-2.0
// intrawarp selftest: phantom pairs with known maps, through files, the wire and this server's device.
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/commands/commands.h"
#include "client/cli/files.h"
#include "client/cli/registration_flags.h"
#include "client/cli/report_json.h"
#include "client/phantom/phantom.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"
#include "io/format/nifti.h"

namespace intrawarp::cli {
namespace {

// One method on one pair. The limits are some three times the errors of the CPU device, which
// docs/operate/operators-guide.md states.
struct Case {
  std::string method;
  // The stages, as register takes them.
  std::string stages;
  bool is_rigid = false;
  // The amplitude at the abdominal wall; 0: the map is affine.
  double amplitude_mm = 0;
  // For the mean error over the body.
  double limit_mm = 0;
};

const std::vector<Case>& Cases() {
  static const auto* const cases = new std::vector<Case>{
      {.method = "rigid", .stages = "rigid", .is_rigid = true, .limit_mm = 0.15},
      {.method = "affine", .stages = "affine", .limit_mm = 0.15},
      {.method = "ffd", .stages = "affine,ffd", .amplitude_mm = 20, .limit_mm = 3},
      {.method = "log-demons", .stages = "affine,log-demons", .amplitude_mm = 20, .limit_mm = 1.6},
      {.method = "search", .stages = "search,ffd", .amplitude_mm = 20, .limit_mm = 3},
      {.method = "auto", .stages = "auto", .amplitude_mm = 20, .limit_mm = 3},
  };
  return *cases;
}

struct Distance {
  double mean_mm = 0;
  double worst_mm = 0;
};

struct Measured {
  std::string device;
  bool verdict_ok = false;
  // The errors of the field over the body, after it went through a file.
  Distance field;
  // The errors of landmarks that the server mapped.
  Distance landmarks;
  double milliseconds = 0;
};

struct Outcome {
  absl::Status status;
  Measured measured;
  bool passed = false;
};

// A folder that goes with the object. `path` is empty where none could be made.
struct ScratchFolder {
  ScratchFolder() {
    std::error_code error;
    std::string name = (std::filesystem::temp_directory_path(error) / "intrawarp-selftest-XXXXXX").string();
    if (!error && mkdtemp(name.data()) != nullptr) path = name;
  }
  ~ScratchFolder() {
    std::error_code error;
    if (!path.empty()) std::filesystem::remove_all(path, error);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string path;
};

absl::StatusOr<phantom::Phantom> MakePair(const Case& test) {
  phantom::PhantomOptions options;
  options.size = {80, 80, 60};
  options.spacing = {4, 4, 4};
  options.amplitude_mm = test.amplitude_mm;
  if (test.amplitude_mm == 0) {
    const double scale = test.is_rigid ? 0 : 1;
    options.affine = phantom::RandomAffine(/*seed=*/1, 10, 0.10 * scale, 0.05 * scale, 15);
  }
  return phantom::MakePhantom(options);
}

absl::StatusOr<v1::RegistrationOptions> StagesOf(const Case& test) {
  const CommandSyntax syntax = {.flags = RegistrationFlagSpecs()};
  const std::vector<std::string> arguments = {absl::StrCat("--method=", test.stages)};
  INTRAWARP_ASSIGN_OR_RETURN(const ParsedFlags flags, ParseFlags(syntax, arguments));
  INTRAWARP_ASSIGN_OR_RETURN(const RegistrationFlags parsed, ParseRegistrationFlags(flags));
  return parsed.options;
}

Distance Over(const std::vector<double>& errors) {
  Distance distance;
  for (const double error : errors) {
    // A NaN stays.
    distance.mean_mm += error / static_cast<double>(errors.size());
    distance.worst_mm = error <= distance.worst_mm ? distance.worst_mm : error;
  }
  return distance;
}

// Over the voxels of the body. INTERNAL for a field on another grid than the phantom's.
absl::StatusOr<Distance> CompareFields(const io::HostField& found, const phantom::Phantom& phantom) {
  const std::vector<float>& truth = phantom.field.displacement;
  if (!SameGrid(found.geometry, phantom.field.geometry) || found.displacement.size() != truth.size()) {
    return absl::InternalError("the field lies on another grid than the fixed image");
  }
  std::vector<double> errors;
  for (size_t i = 0; i < phantom.body_mask.pixels.size(); ++i) {
    if (phantom.body_mask.pixels[i] == 0) continue;
    double squares = 0;
    for (size_t c = 3 * i; c < 3 * i + 3; ++c) squares += std::pow(double{found.displacement[c]} - truth[c], 2);
    errors.push_back(std::sqrt(squares));
  }
  return Over(errors);
}

absl::StatusOr<Distance> CompareLandmarks(const std::string& transform, const phantom::Phantom& phantom,
                                          CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(
      const std::vector<Vec3d> found,
      context.client().MapPoints(transform, phantom.fixed_landmarks, /*inverse=*/false, context.call()));
  std::vector<double> errors;
  for (size_t i = 0; i < found.size(); ++i) {
    const Vec3d apart = found[i] - phantom.moving_landmarks[i];
    errors.push_back(std::sqrt(Dot(apart, apart)));
  }
  return Over(errors);
}

// The field as another program would get it: written to a file, and read from there.
absl::StatusOr<io::HostField> ThroughFile(const client::GridData& field, const std::string& path) {
  INTRAWARP_RETURN_IF_ERROR(Annotate(io::WriteField(path, field.geometry, field.values.data()), path));
  absl::StatusOr<io::HostField> read = io::ReadField(path);
  if (!read.ok()) return Annotate(read.status(), path);
  if (read->displacement != field.values) return absl::DataLossError("the field changed on its way through a file");
  return read;
}

absl::StatusOr<Measured> Measure(const phantom::Phantom& phantom, const v1::RegisterResult& result,
                                 const client::GridData& field, const std::string& folder, CommandContext& context) {
  Measured measured;
  measured.device = result.report().device();
  measured.verdict_ok = result.report().verdict() == v1::VERDICT_OK;
  INTRAWARP_ASSIGN_OR_RETURN(const io::HostField read, ThroughFile(field, folder + "/field.nii.gz"));
  INTRAWARP_ASSIGN_OR_RETURN(measured.field, CompareFields(read, phantom));
  INTRAWARP_ASSIGN_OR_RETURN(measured.landmarks, CompareLandmarks(result.transform(), phantom, context));
  return measured;
}

absl::StatusOr<Measured> RunCase(const Case& test, const std::string& folder, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const phantom::Phantom phantom, MakePair(test));
  const std::string fixed = folder + "/fixed.nii.gz", moving = folder + "/moving.nii.gz";
  INTRAWARP_RETURN_IF_ERROR(Annotate(io::WriteNifti(fixed, phantom.fixed), fixed));
  INTRAWARP_RETURN_IF_ERROR(Annotate(io::WriteNifti(moving, phantom.moving), moving));

  Temporaries temporaries(context);
  v1::RegisterRequest request;
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_options(), StagesOf(test));
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_fixed(), temporaries.Volume(fixed));
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_moving(), temporaries.Volume(moving));
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);

  client::GridData field;
  const auto begin = std::chrono::steady_clock::now();
  INTRAWARP_ASSIGN_OR_RETURN(
      const v1::RegisterResult result,
      context.client().Register(request, /*on_progress=*/nullptr, client::SinkInto(&field), context.call()));
  const auto end = std::chrono::steady_clock::now();

  absl::StatusOr<Measured> measured = Measure(phantom, result, field, folder, context);
  if (measured.ok()) measured->milliseconds = std::chrono::duration<double, std::milli>(end - begin).count();
  const absl::Status deleted = context.client().DeleteTransform(result.transform(), context.call());
  INTRAWARP_RETURN_IF_ERROR(temporaries.DeleteAll());
  INTRAWARP_RETURN_IF_ERROR(deleted);
  return measured;
}

bool IsWithin(const Measured& measured, double limit_mm) {
  return measured.field.mean_mm <= limit_mm && measured.landmarks.mean_mm <= limit_mm;
}

Outcome Run(const Case& test, const std::string& folder, CommandContext& context) {
  Outcome outcome;
  absl::StatusOr<Measured> measured = RunCase(test, folder, context);
  outcome.status = measured.status();
  if (!measured.ok()) return outcome;
  outcome.measured = *std::move(measured);
  outcome.passed = outcome.measured.verdict_ok && IsWithin(outcome.measured, test.limit_mm);
  return outcome;
}

void PrintOutcome(const Case& test, const Outcome& outcome) {
  const Measured& m = outcome.measured;
  if (!outcome.status.ok()) {
    std::printf("%-11s %s: %s\n", test.method.c_str(), absl::StatusCodeToString(outcome.status.code()).c_str(),
                std::string(outcome.status.message()).c_str());
  } else {
    std::printf("%-11s %-8s %9.3f %9.3f %9.3f %9.3f %9.0f  %-7s %s\n", test.method.c_str(), m.device.c_str(),
                m.field.mean_mm, m.field.worst_mm, m.landmarks.mean_mm, test.limit_mm, m.milliseconds,
                m.verdict_ok ? "ok" : "review", outcome.passed ? "pass" : "FAIL");
  }
  std::fflush(stdout);
}

Json ToJson(const Case& test, const Outcome& outcome) {
  Json json = {{"method", test.method}, {"stages", test.stages}, {"passed", outcome.passed}};
  if (!outcome.status.ok()) {
    json["error"] = absl::StatusCodeToString(outcome.status.code());
    return json;
  }
  const Measured& m = outcome.measured;
  json["device"] = m.device;
  json["verdict"] = m.verdict_ok ? "ok" : "review";
  json["limit_mm"] = test.limit_mm;
  json["field_mean_mm"] = m.field.mean_mm;
  json["field_worst_mm"] = m.field.worst_mm;
  json["landmarks_mean_mm"] = m.landmarks.mean_mm;
  json["landmarks_worst_mm"] = m.landmarks.worst_mm;
  json["milliseconds"] = m.milliseconds;
  return json;
}

// A method of the server that no case covers is not passed over.
std::vector<std::string> Uncovered(const v1::ServerInfo& info) {
  std::vector<std::string> uncovered;
  for (const std::string& method : info.methods()) {
    const std::string word = MethodWord(method);
    const bool is_covered =
        std::any_of(Cases().begin(), Cases().end(), [&](const Case& test) { return test.method == word; });
    if (!is_covered) uncovered.push_back(word);
  }
  return uncovered;
}

absl::Status SelfTest(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "report", {".json"}));
  INTRAWARP_ASSIGN_OR_RETURN(const v1::ServerInfo info, context.client().GetServerInfo(context.call()));
  const ScratchFolder folder;
  if (folder.path.empty()) return absl::UnavailableError("no folder can be made in the one for temporary files");

  Json report = {{"version", info.version()}, {"revision", info.revision()}, {"cases", Json::array()}};
  std::vector<std::string> failed = Uncovered(info);
  std::printf("%-11s %-8s %9s %9s %9s %9s %9s  %-7s\n", "method", "device", "mean mm", "worst mm", "landmarks",
              "limit mm", "ms", "verdict");
  for (const Case& test : Cases()) {
    INTRAWARP_RETURN_IF_ERROR(context.CheckInterrupt());
    const Outcome outcome = Run(test, folder.path, context);
    if (absl::IsUnavailable(outcome.status)) return outcome.status;
    PrintOutcome(test, outcome);
    report["cases"].push_back(ToJson(test, outcome));
    if (!outcome.passed) failed.push_back(test.method);
  }
  report["passed"] = failed.empty();
  if (flags.Has("report")) {
    const std::string out = flags.String("report");
    INTRAWARP_RETURN_IF_ERROR(Annotate(io::WriteSmallFile(out, JsonText(report)), out));
  }
  if (!failed.empty()) return absl::InternalError(absl::StrCat("the self-test failed: ", absl::StrJoin(failed, ", ")));
  std::printf("passed: %s (%s)\n", info.version().c_str(), info.revision().c_str());
  return absl::OkStatus();
}

}  // namespace

std::vector<Command> SelfTestCommands() {
  return {{.name = "selftest",
           .summary = "register phantoms with known maps by every method, and compare",
           .syntax = {.flags = {{.name = "report", .placeholder = "OUT.json", .help = "the figures of the table"}}},
           .run = SelfTest,
           .notes =
               "What a new installation runs first. Each pair is written to a file, read, uploaded and registered;\n"
               "the field comes back through a file too. A case passes when the mean error over the body and at\n"
               "the landmarks is within the limit, and the verdict is ok. The server is left as it was.\n"}};
}

}  // namespace intrawarp::cli
