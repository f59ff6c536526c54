// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/bench_options.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/cli/bench/breath.h"
#include "client/cli/registration_flags.h"
#include "engine/base/status_macros.h"
#include "server/identity/exposure.h"

namespace intrawarp::cli::bench {
namespace {

constexpr int kMinSize = 16, kMaxSize = 512;
constexpr int kMaxClients = 64, kMaxFloodClients = 32;
constexpr double kMaxSeconds = 3600, kMaxRate = 1000;
// A load has no more calls; a record takes some 130 bytes.
constexpr double kMaxCalls = 2e6;
constexpr int64_t kMaxImageBytes = int64_t{16} << 30;

constexpr char kDefaultMethod[] = "affine";
constexpr char kDefaultFloodMethod[] = "affine,ffd";

absl::Status Wrong(const std::string& flag, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", what));
}

// The flags of register that are of use here. A load makes its images itself.
std::vector<FlagSpec> TaskFlagSpecs() {
  std::vector<FlagSpec> specs;
  for (FlagSpec& spec : RegistrationFlagSpecs()) {
    if (NamesAnInput(spec.name)) continue;
    if (spec.name == "method") spec.help = "as register takes it: auto, or stages in order; default affine";
    specs.push_back(std::move(spec));
  }
  return specs;
}

// The options of a method, with the other flags of registrations where `with_flags` is set.
absl::StatusOr<v1::RegistrationOptions> OptionsOf(const std::string& method, bool with_flags,
                                                  const ParsedFlags& flags) {
  std::vector<std::string> arguments = {absl::StrCat("--method=", method)};
  for (const FlagSpec& spec : TaskFlagSpecs()) {
    if (!with_flags || spec.name == "method" || !flags.Has(spec.name)) continue;
    const bool is_switch = spec.type == FlagType::kSwitch;
    arguments.push_back(absl::StrCat("--", spec.name, is_switch ? "" : "=", flags.String(spec.name)));
  }
  INTRAWARP_ASSIGN_OR_RETURN(const ParsedFlags task, ParseFlags({.flags = TaskFlagSpecs()}, arguments));
  INTRAWARP_ASSIGN_OR_RETURN(RegistrationFlags parsed, ParseRegistrationFlags(task));
  return std::move(parsed.options);
}

absl::Status CheckUsed(const ParsedFlags& flags, const std::vector<std::string>& names, bool used,
                       const std::string& by) {
  for (const std::string& name : names) {
    if (flags.Has(name) && !used) return Wrong(name, absl::StrCat("only ", by, " uses it"));
  }
  return absl::OkStatus();
}

absl::Status CheckAllUsed(const ParsedFlags& flags, const BenchOptions& options) {
  const bool capacity = options.find_capacity;
  const bool loaded = options.load.kind != LoadKind::kNone;
  const FloodOptions& floods = options.floods;
  std::vector<std::string> of_registrations = {"method", "field_encoding"};
  for (const FlagSpec& spec : TaskFlagSpecs()) of_registrations.push_back(spec.name);
  const struct {
    std::vector<std::string> names;
    bool used;
    const char* by;
  } rules[] = {
      {{"sizes", "methods", "max_sessions", "late_percent"}, capacity, "--find_capacity"},
      {{"size", "method", "sessions", "plot"}, !capacity, "a run without --find_capacity"},
      {{"deadline_ms", "latest", "shared_memory"}, options.load.kind == LoadKind::kNavigate, "--load=navigate"},
      {{"latest"}, options.load.rate_hz > 0, "a load with --rate"},
      {{"sessions", "rate", "limit_ms", "plot"}, loaded, "a load of registrations"},
      {of_registrations, loaded, "a load of registrations"},
      {{"size"}, loaded || floods.registrations > 0, "a load of registrations, or --registrations,"},
      {{"matrix_rows"}, floods.fem_products + floods.random_products > 0, "--fem_products or --random_products"},
      {{"upload_mb"}, floods.uploads > 0, "--uploads"},
      {{"registration_method"}, floods.registrations > 0, "--registrations"},
      {{"warmup"}, floods.any(), "a flood"},
  };
  for (const auto& rule : rules) INTRAWARP_RETURN_IF_ERROR(CheckUsed(flags, rule.names, rule.used, rule.by));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> ParseSizes(const std::string& list) {
  std::vector<int> sizes;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(list, ','))) {
    int size = 0;
    if (!absl::SimpleAtoi(word, &size) || size < kMinSize || size > kMaxSize) {
      return Wrong("sizes", absl::StrCat("must be whole numbers from ", kMinSize, " to ", kMaxSize, ": '", word, "'"));
    }
    sizes.push_back(size);
  }
  return sizes;
}

absl::Status AddTasks(const ParsedFlags& flags, BenchOptions* options) {
  std::vector<int> sizes = {static_cast<int>(flags.Integer("size", 96))};
  std::vector<std::string> methods = {flags.String("method", kDefaultMethod)};
  if (options->find_capacity) {
    INTRAWARP_ASSIGN_OR_RETURN(sizes, ParseSizes(flags.String("sizes", "96")));
    methods =
        absl::StrSplit(absl::StrReplaceAll(flags.String("methods", kDefaultMethod), {{",", "\n"}, {"+", ","}}), '\n');
  }
  for (const int size : sizes) {
    for (const std::string& method : methods) {
      absl::StatusOr<v1::RegistrationOptions> task = OptionsOf(method, /*with_flags=*/true, flags);
      if (!task.ok() && options->find_capacity) return Wrong("methods", std::string(task.status().message()));
      INTRAWARP_RETURN_IF_ERROR(task.status());
      options->tasks.push_back({size, method, *std::move(task)});
    }
  }
  return absl::OkStatus();
}

absl::Status SetField(const ParsedFlags& flags, BenchOptions* options) {
  static const auto* const encodings = new std::vector<std::pair<std::string, v1::FieldEncoding>>{
      {"float32", v1::FIELD_ENCODING_FLOAT32},   {"float16", v1::FIELD_ENCODING_FLOAT16},
      {"int16", v1::FIELD_ENCODING_INT16},       {"control_points", v1::FIELD_ENCODING_CONTROL_POINTS},
      {"velocity", v1::FIELD_ENCODING_VELOCITY},
  };
  LoadOptions& load = options->load;
  load.encoding = flags.String("field_encoding", "none");
  for (const auto& [word, encoding] : *encodings) {
    if (word == load.encoding) load.field.set_encoding(encoding);
  }
  for (const Task& task : options->tasks) {
    if (load.encoding == "velocity" && !EndsIn(v1::Stage::kLogDemons, task.options)) {
      return Wrong("field_encoding", "only log-demons as the last stage has a velocity");
    }
    if (load.encoding == "control_points" && !EndsIn(v1::Stage::kFfd, task.options)) {
      return Wrong("field_encoding", "only ffd as the last stage has control points");
    }
  }
  return absl::OkStatus();
}

void SetLoad(const ParsedFlags& flags, LoadOptions* load) {
  const std::string kind = flags.String("load", "navigate");
  load->kind = kind == "register" ? LoadKind::kRegister : kind == "none" ? LoadKind::kNone : LoadKind::kNavigate;
  load->clients = load->kind == LoadKind::kNone ? 0 : static_cast<int>(flags.Integer("sessions", 1));
  load->rate_hz = flags.Number("rate", 0);
  load->deadline_ms = flags.Integer("deadline_ms", 0);
  load->latest_wins = flags.Has("latest");
  load->shared_memory = flags.Has("shared_memory");
  const double period_ms = load->rate_hz > 0 ? 1e3 / load->rate_hz : 0;
  load->limit_ms = flags.Number("limit_ms", load->deadline_ms > 0 ? static_cast<double>(load->deadline_ms) : period_ms);
}

absl::Status SetFloods(const ParsedFlags& flags, FloodOptions* floods) {
  floods->fem_products = static_cast<int>(flags.Integer("fem_products", 0));
  floods->random_products = static_cast<int>(flags.Integer("random_products", 0));
  floods->matrix_rows = flags.Integer("matrix_rows", 24000);
  floods->uploads = static_cast<int>(flags.Integer("uploads", 0));
  floods->upload_bytes = flags.Integer("upload_mb", 64) * 1000000;
  floods->registrations = static_cast<int>(flags.Integer("registrations", 0));
  floods->registration_method = flags.String("registration_method", kDefaultFloodMethod);
  const absl::StatusOr<v1::RegistrationOptions> options =
      OptionsOf(floods->registration_method, /*with_flags=*/false, flags);
  if (!options.ok()) return Wrong("registration_method", std::string(options.status().message()));
  floods->registration = *options;
  return absl::OkStatus();
}

absl::Status CheckAmount(const BenchOptions& options) {
  const int clients = options.find_capacity ? options.capacity.max_sessions : options.load.clients;
  const std::string flag = options.find_capacity ? "max_sessions" : "sessions";
  if (options.load.rate_hz * options.seconds * clients > kMaxCalls) {
    return Wrong("seconds",
                 absl::StrCat("with --rate and --", flag, ", there would be more than ", kMaxCalls, " calls"));
  }
  for (const Task& task : options.tasks) {
    if (Breath::Bytes(task.size) * clients > kMaxImageBytes) {
      return Wrong(flag, absl::StrCat("the images of ", clients, " clients, ", task.size,
                                      " voxels along each axis, take more than ", kMaxImageBytes >> 30, " GiB"));
    }
  }
  return absl::OkStatus();
}

FlagSpec Word(const std::string& name, const std::string& placeholder, const std::string& help,
              std::vector<std::string> choices = {}) {
  return {.name = name, .placeholder = placeholder, .help = help, .choices = std::move(choices)};
}
FlagSpec Switch(const std::string& name, const std::string& help) {
  return {.name = name, .type = FlagType::kSwitch, .placeholder = "", .help = help};
}
FlagSpec Integer(const std::string& name, const std::string& help, double minimum, double maximum) {
  return {.name = name,
          .type = FlagType::kInteger,
          .placeholder = "N",
          .help = help,
          .minimum = minimum,
          .maximum = maximum};
}
FlagSpec Number(const std::string& name, const std::string& placeholder, const std::string& help, double minimum,
                double maximum) {
  return {.name = name,
          .type = FlagType::kNumber,
          .placeholder = placeholder,
          .help = help,
          .minimum = minimum,
          .maximum = maximum};
}

std::vector<FlagSpec> LoadFlagSpecs() {
  return {
      Word("load", "navigate|register|none", "sessions of frames (default), single registrations, or floods alone",
           {"navigate", "register", "none"}),
      Integer("sessions", "sessions, or clients that register; default 1", 1, kMaxClients),
      Integer("size", "voxels along each axis; default 96", kMinSize, kMaxSize),
      Word("field_encoding", "E", "none (default), float32, float16, int16, velocity, control_points",
           {"none", "float32", "float16", "int16", "velocity", "control_points"}),
      Number("rate", "HZ", "open loop: frames a second of each session; without it the next follows the last answer",
             0.01, kMaxRate),
      Number("limit_ms", "MS",
             "an answer later than this after its frame was due is late; default: --deadline_ms, or a period", 0.1,
             1e7),
      Integer("deadline_ms", "the server's deadline for each frame", 1, 86400000),
      Switch("latest", "with --rate: a newer frame supersedes one that waits"),
      Switch("shared_memory", "frames and fields through memory that a server on this host shares"),
      Number("seconds", "S", "how long the load runs; default 10", 0.1, kMaxSeconds),
      Number("grace", "S", "how long answers are waited for after that; default 15", 0.1, 600),
      Integer("seed", "of the first session's phantom, and of everything random; default 1", 0, 4e9),
  };
}

std::vector<FlagSpec> FloodFlagSpecs() {
  return {
      Integer("fem_products", "clients that square a finite-element matrix without pause", 0, kMaxFloodClients),
      Integer("random_products", "clients that square a random matrix", 0, kMaxFloodClients),
      Integer("matrix_rows", "of these matrices; default 24000", 3, 1e6),
      Integer("uploads", "clients that upload and delete volumes", 0, kMaxFloodClients),
      Integer("upload_mb", "megabytes of such a volume; default 64", 1, 4000),
      Integer("registrations", "clients that register single pairs of --size", 0, kMaxFloodClients),
      Word("registration_method", "M[,M...]", "their method; default affine,ffd"),
      Number("warmup", "S", "how long floods run before the load begins; default 1", 0, 60),
  };
}

std::vector<FlagSpec> CapacityFlagSpecs() {
  return {
      Switch("find_capacity", "one more session each time until a frame is late; prints a table in Markdown"),
      Word("sizes", "N[,N...]", "its rows; default 96"),
      Word("methods", "M[,M...]", "its rows; + between the stages of one: affine+ffd; default affine"),
      Integer("max_sessions", "where it stops at the latest; default 16", 1, kMaxClients),
      Number("late_percent", "P", "frames of a hundred that may be late; default 0", 0, 50),
  };
}

}  // namespace

std::vector<FlagSpec> BenchFlagSpecs() {
  std::vector<FlagSpec> specs = LoadFlagSpecs();
  for (const std::vector<FlagSpec>& more : {FloodFlagSpecs(), CapacityFlagSpecs()}) {
    specs.insert(specs.end(), more.begin(), more.end());
  }
  specs.push_back(Switch("any_address", "load a server that is not on this machine"));
  specs.push_back(Word("json", "OUT.json", "all figures, and every call"));
  specs.push_back(Word("plot", "OUT.svg", "latency over time, and its distribution"));
  for (FlagSpec& spec : TaskFlagSpecs()) specs.push_back(std::move(spec));
  return specs;
}

absl::StatusOr<BenchOptions> ParseBenchFlags(const ParsedFlags& flags) {
  BenchOptions options;
  options.seconds = flags.Number("seconds", 10);
  options.grace = flags.Number("grace", 15);
  options.seed = static_cast<uint32_t>(flags.Integer("seed", 1));
  options.find_capacity = flags.Has("find_capacity");
  options.capacity.max_sessions = static_cast<int>(flags.Integer("max_sessions", 16));
  options.capacity.late_percent = flags.Number("late_percent", 0);
  SetLoad(flags, &options.load);
  INTRAWARP_RETURN_IF_ERROR(SetFloods(flags, &options.floods));
  options.warmup = options.floods.any() ? flags.Number("warmup", 1) : 0;
  INTRAWARP_RETURN_IF_ERROR(CheckAllUsed(flags, options));
  if (options.load.kind == LoadKind::kNone && !options.floods.any()) return Wrong("load", "none needs a flood");
  if (options.find_capacity && options.load.kind != LoadKind::kNavigate) {
    return Wrong("find_capacity", "needs --load=navigate");
  }
  if (options.find_capacity && options.load.rate_hz == 0) return Wrong("find_capacity", "needs --rate");
  INTRAWARP_RETURN_IF_ERROR(AddTasks(flags, &options));
  INTRAWARP_RETURN_IF_ERROR(SetField(flags, &options));
  INTRAWARP_RETURN_IF_ERROR(CheckAmount(options));
  return options;
}

bool IsOnThisMachine(absl::string_view target) {
  return absl::StartsWith(target, "unix:") || server::IsLoopback(target);
}

absl::Status CheckTarget(const ParsedFlags& flags, const std::string& target) {
  if (flags.Has("any_address") || IsOnThisMachine(target)) return absl::OkStatus();
  return Wrong("any_address", absl::StrCat("is needed for a load on a server that is not on this machine: ", target));
}

}  // namespace intrawarp::cli::bench
