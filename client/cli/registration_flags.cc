// SPDX-License-Identifier: Apache-2.0
#include "client/cli/registration_flags.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/report_json.h"
#include "engine/base/status_macros.h"

namespace intrawarp::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr char kAutomatic[] = "auto";
constexpr char kMatching[] = "match_intensities", kNoMatching[] = "no_match_intensities";

// The members of Stage.method, one a method.
std::vector<const FieldDescriptor*> Methods() {
  const google::protobuf::OneofDescriptor& oneof = *v1::Stage::descriptor()->FindOneofByName("method");
  std::vector<const FieldDescriptor*> methods;
  for (int i = 0; i < oneof.field_count(); ++i) methods.push_back(oneof.field(i));
  return methods;
}

// Null when there is none.
const FieldDescriptor* MethodFromName(const std::string& name) {
  for (const FieldDescriptor* method : Methods()) {
    if (MethodWord(method->name()) == name) return method;
  }
  return nullptr;
}

// The options of stages, which are flags of the same names: the union over all methods.
std::vector<std::string> StageFlags() {
  std::vector<std::string> names;
  for (const FieldDescriptor* method : Methods()) {
    const Descriptor& options = *method->message_type();
    for (int i = 0; i < options.field_count(); ++i) {
      if (std::find(names.begin(), names.end(), options.field(i)->name()) == names.end()) {
        names.push_back(options.field(i)->name());
      }
    }
  }
  return names;
}

// "ffd or log-demons": the methods that have the option.
std::string MethodsWith(const std::string& flag) {
  std::vector<std::string> names;
  for (const FieldDescriptor* method : Methods()) {
    if (method->message_type()->FindFieldByName(flag) != nullptr) names.push_back(MethodWord(method->name()));
  }
  return absl::StrJoin(names, " or ");
}

v1::Metric MetricFromName(const std::string& name) {
  for (v1::Metric metric : {v1::METRIC_SSD, v1::METRIC_NGF, v1::METRIC_NMI, v1::METRIC_LNCC, v1::METRIC_MIND}) {
    if (MetricName(metric) == name) return metric;
  }
  return v1::METRIC_UNSPECIFIED;
}

bool IsLinear(const FieldDescriptor* method) {
  return method->number() == v1::Stage::kRigidFieldNumber || method->number() == v1::Stage::kAffineFieldNumber;
}

absl::StatusOr<std::vector<const FieldDescriptor*>> ParseMethods(const std::string& list) {
  std::vector<const FieldDescriptor*> methods;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(list, ','))) {
    methods.push_back(MethodFromName(name));
    if (methods.back() == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--method: must be auto, or list rigid, affine, search, ffd or log-demons: '", name, "'"));
    }
  }
  return methods;
}

absl::Status CheckUsed(const ParsedFlags& flags, const std::string& name, bool used, const std::string& by) {
  if (!flags.Has(name) || used) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", name, ": only ", by, " uses it"));
}

// The value whose name ends with the flag's word: LBFGS, CONJUGATE_GRADIENT for cg.
const EnumValueDescriptor* EnumFromWord(const EnumDescriptor& type, const std::string& word) {
  const std::string name = word == "cg" ? "CONJUGATE_GRADIENT" : absl::AsciiStrToUpper(word);
  for (int i = 0; i < type.value_count(); ++i) {
    if (absl::EndsWith(type.value(i)->name(), absl::StrCat("_", name))) return type.value(i);
  }
  return type.value(0);
}

void SetOption(const ParsedFlags& flags, const FieldDescriptor& field, Message& options) {
  const Reflection& reflection = *options.GetReflection();
  const std::string& name = field.name();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.SetInt32(&options, &field, static_cast<int32_t>(flags.Integer(name)));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.SetDouble(&options, &field, flags.Number(name));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(&options, &field, true);
    default:
      return reflection.SetEnum(&options, &field, EnumFromWord(*field.enum_type(), flags.String(name)));
  }
}

// --no_match_intensities, without which the server looks whether intensities are to be matched.
absl::Status SetNoMatching(const ParsedFlags& flags, Message& options) {
  if (!flags.Has(kNoMatching)) return absl::OkStatus();
  const FieldDescriptor* field = options.GetDescriptor()->FindFieldByName(kMatching);
  INTRAWARP_RETURN_IF_ERROR(
      CheckUsed(flags, kNoMatching, field != nullptr, absl::StrCat(MethodsWith(kMatching), " as the last stage")));
  if (flags.Has(kMatching)) {
    return absl::InvalidArgumentError(absl::StrCat("--", kNoMatching, ": contradicts --", kMatching));
  }
  options.GetReflection()->SetBool(&options, field, false);
  return absl::OkStatus();
}

// Sets the flags that are options of the stage. INVALID_ARGUMENT for a flag that only other methods have.
absl::Status SetOptions(const ParsedFlags& flags, Message& options) {
  for (const std::string& flag : StageFlags()) {
    if (!flags.Has(flag)) continue;
    const FieldDescriptor* field = options.GetDescriptor()->FindFieldByName(flag);
    INTRAWARP_RETURN_IF_ERROR(
        CheckUsed(flags, flag, field != nullptr, absl::StrCat(MethodsWith(flag), " as the last stage")));
    SetOption(flags, *field, options);
  }
  return SetNoMatching(flags, options);
}

Message& AddStage(const FieldDescriptor* method, v1::RegistrationOptions& options) {
  v1::Stage& stage = *options.add_stages();
  return *stage.GetReflection()->MutableMessage(&stage, method);
}

void SetMetric(v1::Metric metric, Message& options) {
  const FieldDescriptor* field = options.GetDescriptor()->FindFieldByName("metric");
  options.GetReflection()->SetEnumValue(&options, field, metric);
}

// Whether a method compares intensities directly when nothing else is said.
bool DefaultsToSsd(const FieldDescriptor* method, const ParsedFlags& flags) {
  const bool is_log_demons = method->number() == v1::Stage::kLogDemonsFieldNumber;
  return IsLinear(method) || (is_log_demons && !flags.Has("match_intensities"));
}

// The stages that the flags name, with their options; none for auto, which takes no option of a stage.
absl::Status SetStages(const ParsedFlags& flags, const std::string& method, v1::RegistrationOptions& options) {
  if (method == kAutomatic) {
    for (const std::string& flag : StageFlags()) {
      INTRAWARP_RETURN_IF_ERROR(
          CheckUsed(flags, flag, false, absl::StrCat("a named --method (", MethodsWith(flag), ")")));
    }
    INTRAWARP_RETURN_IF_ERROR(
        CheckUsed(flags, kNoMatching, false, absl::StrCat("a named --method (", MethodsWith(kMatching), ")")));
    return absl::OkStatus();
  }
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<const FieldDescriptor*> methods, ParseMethods(method));
  const FieldDescriptor* last = methods.back();
  const v1::Metric metric = MetricFromName(flags.String("metric"));
  const bool last_is_ssd = metric == v1::METRIC_SSD || (metric == v1::METRIC_UNSPECIFIED && DefaultsToSsd(last, flags));
  for (size_t i = 0; i + 1 < methods.size(); ++i) {
    Message& stage = AddStage(methods[i], options);
    if (IsLinear(methods[i])) SetMetric(last_is_ssd ? v1::METRIC_SSD : v1::METRIC_NGF, stage);
  }
  return SetOptions(flags, AddStage(last, options));
}

}  // namespace

std::vector<FlagSpec> RegistrationFlagSpecs() {
  constexpr double kMaxInt = 1e9, kMaxSigma = 64;
  return {
      {.name = "method",
       .placeholder = "auto|M[,M...]",
       .help = "auto (default): affine or search, then ffd, with what suits the images; or stages in order: rigid, "
               "affine, search, ffd, log-demons"},
      {.name = "metric",
       .placeholder = "ssd|ngf|nmi|lncc|mind",
       .help = "of the last stage; default: ssd for rigid, affine and log-demons, nmi for ffd",
       .choices = {"ssd", "ngf", "nmi", "lncc", "mind"}},
      {.name = "levels",
       .type = FlagType::kInteger,
       .placeholder = "N",
       .help = "pyramid levels; default: as many as the images allow; of ffd and log-demons from a control grid or "
               "velocity, 2; of log-demons from a velocity of a large image, 3 or more",
       .minimum = 1,
       .maximum = kMaxInt},
      {.name = "iterations",
       .type = FlagType::kInteger,
       .placeholder = "N",
       .help = "at most, on each level",
       .minimum = 1,
       .maximum = kMaxInt},
      {.name = "finest_iterations",
       .type = FlagType::kInteger,
       .placeholder = "N",
       .help = "at most, on the finest level of log-demons; default: as --iterations; from a velocity 15, with "
               "three levels or more 10",
       .minimum = 1,
       .maximum = kMaxInt},
      {.name = "spacing_vox",
       .type = FlagType::kNumber,
       .placeholder = "N",
       .help = "control-point spacing of ffd in voxels",
       .minimum = 1,
       .maximum = kMaxInt},
      {.name = "bending_weight",
       .type = FlagType::kNumber,
       .placeholder = "W",
       .help = "weight of the bending energy of ffd",
       .minimum = 0},
      {.name = "elasticity_weight",
       .type = FlagType::kNumber,
       .placeholder = "W",
       .help = "weight of the linear elasticity of ffd",
       .minimum = 0},
      {.name = "jacobian_weight",
       .type = FlagType::kNumber,
       .placeholder = "W",
       .help = "weight of the penalty on volume that shrinks below a half, of ffd",
       .minimum = 0},
      {.name = "total_variation_weight",
       .type = FlagType::kNumber,
       .placeholder = "W",
       .help = "weight of the total variation of ffd, which lets the displacement jump; default 0",
       .minimum = 0},
      {.name = "sliding",
       .type = FlagType::kSwitch,
       .placeholder = "",
       .help = "divides the image into two parts that slide along each other, with an ffd for each; with --metric=ssd"},
      {.name = "optimizer", .placeholder = "lbfgs|cg", .help = "of ffd; default lbfgs", .choices = {"lbfgs", "cg"}},
      {.name = "fluid_sigma",
       .type = FlagType::kNumber,
       .placeholder = "S",
       .help = "smooths the updates of log-demons: standard deviation in voxels; default 2",
       .minimum = 0,
       .maximum = kMaxSigma},
      {.name = "diffusion_sigma",
       .type = FlagType::kNumber,
       .placeholder = "S",
       .help = "smooths the velocity of log-demons: standard deviation in voxels; default 0.7",
       .minimum = 0,
       .maximum = kMaxSigma},
      {.name = "max_step",
       .type = FlagType::kNumber,
       .placeholder = "N",
       .help = "longest update of log-demons before it is smoothed, in voxels; default 2",
       .minimum = 0.001,
       .maximum = 100},
      {.name = "weak_gradient",
       .type = FlagType::kNumber,
       .placeholder = "N",
       .help = "gradients weaker than this pull less in log-demons; default 0.05",
       .minimum = 0,
       .maximum = 100},
      {.name = "velocity_update",
       .placeholder = "add|compose|bch",
       .help = "how an update changes the velocity of log-demons; default compose",
       .choices = {"add", "compose", "bch"}},
      {.name = "symmetric",
       .type = FlagType::kSwitch,
       .placeholder = "",
       .help = "log-demons in both directions: exchanging the images gives the inverse"},
      {.name = "match_intensities",
       .type = FlagType::kSwitch,
       .placeholder = "",
       .help = "log-demons on images of different gain and offset; default: where the images show such a difference"},
      {.name = "no_match_intensities",
       .type = FlagType::kSwitch,
       .placeholder = "",
       .help = "log-demons compares intensities as they are"},
      {.name = "velocity_grid",
       .placeholder = "full|half",
       .help =
           "voxels of the velocity of log-demons, at the finest level and at large coarser ones; default: half for a "
           "frame after another, full otherwise",
       .choices = {"full", "half"}},
      {.name = "node_mm",
       .type = FlagType::kNumber,
       .placeholder = "MM",
       .help = "distance of nodes of search; default: about 32000 nodes",
       .minimum = 1e-6},
      {.name = "range_mm",
       .type = FlagType::kNumber,
       .placeholder = "MM",
       .help = "longest displacement of search on each axis, at most 12 nodes; default 48, at most 8 nodes",
       .minimum = 1e-6},
      {.name = "fixed_mask", .placeholder = "X", .help = "leave out the fixed voxels where this volume is 0"},
      {.name = "moving_mask", .placeholder = "X", .help = "leave out the moving voxels where this volume is 0"},
      {.name = "fixed_weight",
       .placeholder = "X",
       .help = "how much each fixed voxel counts: a volume of values from 0 to 1"},
      {.name = "moving_weight",
       .placeholder = "X",
       .help = "how much each moving voxel counts: a volume of values from 0 to 1"},
      {.name = "initial",
       .placeholder = "transforms/ID|PATH",
       .help = "where to start: a matrix (.txt, 4x4, fixed to moving, LPS mm), affine map or control grid in ITK's "
               "form (.tfm, .h5), velocity (.nii.gz) or registration object (.dcm)"},
      {.name = "budget_ms",
       .type = FlagType::kInteger,
       .placeholder = "N",
       .help = "end the optimisation after this long",
       .minimum = 1,
       .maximum = kMaxInt},
      {.name = "best_effort",
       .type = FlagType::kSwitch,
       .placeholder = "",
       .help = "with --budget_ms: the best result so far instead of an error"},
      {.name = "keep_deformation",
       .type = FlagType::kSwitch,
       .placeholder = "",
       .help = "keep a deformation that does not bring the tissue nearer, which the affine part replaces otherwise"},
      {.name = "find_missing_tissue",
       .type = FlagType::kSwitch,
       .placeholder = "",
       .help = "look for tissue that only one image shows, and leave it out"},
      {.name = "landmarks",
       .placeholder = "PAIRS.csv",
       .help = "points that belong together: fixed_x,fixed_y,fixed_z,moving_x,moving_y,moving_z[,sigma_mm], LPS mm; "
               "sigma_mm is 1 unless given"},
      {.name = "unmoved_points",
       .placeholder = "POINTS.csv",
       .help = "points of the fixed image that must not move, to 0.5 mm: x,y,z, LPS mm"},
      {.name = "error_limit_mm",
       .type = FlagType::kNumber,
       .placeholder = "MM",
       .help = "review where a larger error is expected; default 5",
       .minimum = 1e-3,
       .maximum = 1e6},
  };
}

bool NamesAnInput(const std::string& flag) {
  return flag == "fixed_mask" || flag == "moving_mask" || flag == "fixed_weight" || flag == "moving_weight" ||
         flag == "initial" || flag == "landmarks" || flag == "unmoved_points";
}

FlagSpec RequireOkFlagSpec() {
  return {.name = "require_ok",
          .type = FlagType::kSwitch,
          .placeholder = "",
          .help = "exit status 3 for a result whose verdict is not ok; its outputs are written all the same"};
}

FlagSpec OrientationFlagSpec() {
  return {.name = "assume_orientation",
          .placeholder = "LPS|RAS",
          .help = "where the axes of a file that states no orientation point to; default LPS, with a warning",
          .choices = {"LPS", "RAS"}};
}

absl::StatusOr<RegistrationFlags> ParseRegistrationFlags(const ParsedFlags& flags) {
  RegistrationFlags parsed;
  parsed.method = flags.String("method", kAutomatic);
  INTRAWARP_RETURN_IF_ERROR(CheckUsed(flags, "best_effort", flags.Has("budget_ms"), "--budget_ms"));
  INTRAWARP_RETURN_IF_ERROR(SetStages(flags, parsed.method, parsed.options));

  if (flags.Has("budget_ms")) {
    const int64_t ms = flags.Integer("budget_ms");
    parsed.options.mutable_budget()->set_seconds(ms / 1000);
    parsed.options.mutable_budget()->set_nanos(static_cast<int32_t>(ms % 1000) * 1000000);
  }
  if (flags.Has("best_effort")) parsed.options.set_best_effort(true);
  if (flags.Has("keep_deformation")) parsed.options.set_keep_deformation(true);
  if (flags.Has("find_missing_tissue")) parsed.options.set_find_missing_tissue(true);
  if (flags.Has("error_limit_mm")) parsed.options.set_error_limit_mm(flags.Number("error_limit_mm", 0));
  parsed.fixed_mask = flags.String("fixed_mask");
  parsed.moving_mask = flags.String("moving_mask");
  parsed.fixed_weight = flags.String("fixed_weight");
  parsed.moving_weight = flags.String("moving_weight");
  parsed.initial = flags.String("initial");
  parsed.landmarks = flags.String("landmarks");
  parsed.unmoved_points = flags.String("unmoved_points");
  return parsed;
}

bool EndsIn(v1::Stage::MethodCase method, const v1::RegistrationOptions& options) {
  if (options.stages().empty()) return method == v1::Stage::kFfd;
  return options.stages(options.stages_size() - 1).method_case() == method;
}

absl::Status CheckFieldEncoding(const ParsedFlags& flags, const v1::RegistrationOptions& options) {
  if (flags.String("field_encoding") != "velocity" || EndsIn(v1::Stage::kLogDemons, options)) return absl::OkStatus();
  return absl::InvalidArgumentError("--field_encoding: only log-demons as the last stage has a velocity");
}

}  // namespace intrawarp::cli
