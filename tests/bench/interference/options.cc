// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/interference/options.h"

#include <algorithm>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"

namespace intrawarp::bench {
namespace {

constexpr int kMinSize = 16, kMaxSize = 512;

absl::Status Wrong(const std::string& flag, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", what));
}

std::vector<std::string> Words(const ParsedFlags& flags, const std::string& name, const std::string& otherwise) {
  return absl::StrSplit(flags.String(name, otherwise), ',', absl::SkipEmpty());
}

// Words with one word or more.
absl::StatusOr<std::vector<std::string>> List(const ParsedFlags& flags, const std::string& name,
                                              const std::string& otherwise) {
  std::vector<std::string> words = Words(flags, name, otherwise);
  if (words.empty()) return Wrong(name, "is empty");
  return words;
}

absl::StatusOr<double> Positive(const std::string& name, const std::string& word) {
  double number = 0;
  if (!absl::SimpleAtod(word, &number) || !(number > 0) || number > 1e6) {
    return Wrong(name, absl::StrCat(word, " is not a number above 0"));
  }
  return number;
}

// 0 for "max".
absl::StatusOr<std::vector<double>> Rates(const ParsedFlags& flags) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<std::string> words, List(flags, "rates", "10"));
  std::vector<double> rates;
  for (const std::string& word : words) {
    if (word == "max") {
      rates.push_back(0);
      continue;
    }
    INTRAWARP_ASSIGN_OR_RETURN(rates.emplace_back(), Positive("rates", word));
  }
  return rates;
}

absl::StatusOr<std::vector<double>> Percents(const ParsedFlags& flags) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<std::string> words, List(flags, "percents", "50,100,150,300"));
  std::vector<double> percents;
  for (const std::string& word : words) {
    INTRAWARP_ASSIGN_OR_RETURN(percents.emplace_back(), Positive("percents", word));
  }
  return percents;
}

absl::StatusOr<std::vector<int>> Sizes(const ParsedFlags& flags, const std::string& otherwise) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<std::string> words, List(flags, "sizes", otherwise));
  std::vector<int> sizes;
  for (const std::string& word : words) {
    int size = 0;
    if (!absl::SimpleAtoi(word, &size) || size < kMinSize || size > kMaxSize) {
      return Wrong("sizes", absl::StrCat(word, " is not a whole number from ", kMinSize, " to ", kMaxSize));
    }
    sizes.push_back(size);
  }
  return sizes;
}

FlagSpec Text(const std::string& name, const std::string& placeholder, const std::string& help) {
  return {.name = name, .placeholder = placeholder, .help = help};
}
FlagSpec Integer(const std::string& name, const std::string& help, double minimum, double maximum) {
  return {.name = name,
          .type = FlagType::kInteger,
          .placeholder = "N",
          .help = help,
          .minimum = minimum,
          .maximum = maximum};
}
FlagSpec Number(const std::string& name, const std::string& help, double maximum) {
  return {.name = name, .type = FlagType::kNumber, .placeholder = "V", .help = help, .minimum = 0, .maximum = maximum};
}

absl::Status ParseLists(const ParsedFlags& flags, BenchOptions* options) {
  const std::string& scenario = options->scenario;
  options->server_flags = absl::StrSplit(flags.String("server", ""), ' ', absl::SkipEmpty());
  options->floods = Words(flags, "floods", "fem,rmat,uploads,registrations,all");
  INTRAWARP_ASSIGN_OR_RETURN(options->methods,
                             List(flags, "methods", scenario == "overload" ? "affine" : "affine,log-demons"));
  INTRAWARP_ASSIGN_OR_RETURN(options->encodings, List(flags, "encodings", "none,native,int16,float16,float32"));
  INTRAWARP_ASSIGN_OR_RETURN(options->rates, Rates(flags));
  INTRAWARP_ASSIGN_OR_RETURN(options->percents, Percents(flags));
  INTRAWARP_ASSIGN_OR_RETURN(options->sizes, Sizes(flags, scenario == "capacity" ? "128" : "128,256"));
  return absl::OkStatus();
}

// The kinds of clients in all floods of the scenario.
std::set<std::string> KindsOfFloods(const BenchOptions& options) {
  std::set<std::string> kinds;
  if (options.scenario != "frames") return kinds;
  for (const std::string& flood : options.floods) {
    for (const std::string& kind : FloodsOf(flood)) kinds.insert(kind);
  }
  return kinds;
}

absl::Status CheckAllUsed(const ParsedFlags& flags, const BenchOptions& options) {
  const auto is = [&](const std::string& scenario) { return options.scenario == scenario; };
  const std::set<std::string> floods = KindsOfFloods(options);
  const auto has = [&](const std::string& kind) { return floods.count(kind) > 0; };
  const struct {
    std::vector<std::string> names;
    bool used;
    const char* by;
  } rules[] = {
      {{"size"}, is("frames") || is("overload") || is("soak"), "frames, overload and soak use"},
      {{"sizes"}, is("capacity") || is("overhead"), "capacity and overhead use"},
      {{"methods"}, is("frames") || is("capacity") || is("overload"), "frames, capacity and overload use"},
      {{"encodings"}, is("overhead"), "overhead uses"},
      {{"rates"}, is("frames") || is("capacity"), "frames and capacity use"},
      {{"floods"}, is("frames"), "frames uses"},
      {{"fem"}, is("soak") || has("fem"), "soak and the flood fem use"},
      {{"rmat"}, has("rmat"), "the flood rmat uses"},
      {{"products"}, has("fem") || has("rmat"), "the floods fem and rmat use"},
      {{"upload_mb"}, has("uploads"), "the flood uploads uses"},
      {{"warmup"}, is("overload") || is("soak") || !floods.empty(), "overload, soak and floods use"},
      {{"max_sessions"}, is("capacity"), "capacity uses"},
      {{"percents", "call_deadline_ms"}, is("overload"), "overload uses"},
      {{"soak_clients", "plant_leak"}, is("soak"), "soak uses"},
      {{"seed"},
       is("capacity") || is("overload") || is("soak") || has("uploads"),
       "capacity, overload, soak and the flood uploads use"},
  };
  for (const auto& rule : rules) {
    for (const std::string& name : rule.names) {
      if (flags.Has(name) && !rule.used) return Wrong(name, absl::StrCat("only ", rule.by, " it"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLists(const BenchOptions& options) {
  for (const std::string& flood : options.floods) {
    for (const std::string& kind : FloodsOf(flood)) {
      if (kind != "fem" && kind != "rmat" && kind != "uploads" && kind != "registrations") {
        return Wrong("floods", "there is no " + kind);
      }
    }
  }
  if (options.scenario == "overload" && options.methods.size() > 1) return Wrong("methods", "overload takes one");
  const bool has_max = std::count(options.rates.begin(), options.rates.end(), 0) > 0;
  if (options.scenario == "capacity" && has_max) return Wrong("rates", "with max no frame is late");
  return absl::OkStatus();
}

}  // namespace

CommandSyntax Syntax() {
  FlagSpec scenario = Text("scenario", "S", "what is measured");
  scenario.required = true;
  scenario.choices = {"frames", "capacity", "overload", "overhead", "soak"};
  FlagSpec products = Text("products", "P", "whether products stay on the server or are sent; kept");
  products.choices = {"kept", "sent"};
  return {
      {scenario,
       Text("device", "D", "as intrawarpd takes it; auto"),
       Text("server", "FLAGS", "more flags of intrawarpd, with spaces between them"),
       Integer("size", "edge of frames and volumes in voxels; 128", kMinSize, kMaxSize),
       Text("sizes", "N,N", "edges for capacity and overhead; 128 and 128,256"),
       Text("methods", "M,M", "affine,log-demons; of overload, one: affine"),
       Text("encodings", "E,E", "for the overhead; none,native,int16,float16,float32"),
       Text("rates", "HZ,HZ", "frames a second; max, but for capacity: the next one as soon as one is answered; 10"),
       Text("floods", "F,F", "fem,rmat,uploads,registrations,all"),
       Text("fem", "NAME", "matrix of a generator; fem27x3_25"),
       Text("rmat", "NAME", "matrix of a generator; rmat_500k"),
       products,
       Integer("upload_mb", "bytes of an uploaded volume, in MB; 256", 1, 4000),
       Number("seconds", "of each measurement; 20", 1e5),
       Number("warmup", "seconds before each measurement that are not counted; 3", 1e4),
       Integer("max_sessions", "16", 1, 64),
       Text("percents", "P,P", "of the capacity; 50,100,150,300"),
       Number("call_deadline_ms", "of each call in overload; 0 (also the default): ten times a call by itself", 1e6),
       Integer("soak_clients", "8", 1, 64),
       Integer("plant_leak", "bytes that the server loses with every id it makes, as the control of a soak; 0", 0,
               1 << 20),
       Integer("seed", "of everything random; 1", 0, 1e9),
       Text("json", "PATH", "rows are appended to this file as JSON lines")}};
}

absl::StatusOr<BenchOptions> ParseOptions(const std::vector<std::string>& arguments) {
  INTRAWARP_ASSIGN_OR_RETURN(const ParsedFlags flags, ParseFlags(Syntax(), arguments));
  BenchOptions options;
  options.scenario = flags.String("scenario");
  INTRAWARP_RETURN_IF_ERROR(ParseLists(flags, &options));
  options.device = flags.String("device", "auto");
  options.size = static_cast<int>(flags.Integer("size", 128));
  options.fem = flags.String("fem", "fem27x3_25");
  options.rmat = flags.String("rmat", "rmat_500k");
  options.products_sent = flags.String("products", "kept") == "sent";
  options.upload_bytes = flags.Integer("upload_mb", 256) * 1000000;
  options.seconds = flags.Number("seconds", 20);
  options.warmup = flags.Number("warmup", 3);
  options.max_sessions = static_cast<int>(flags.Integer("max_sessions", 16));
  options.call_deadline_ms = flags.Number("call_deadline_ms", 0);
  options.soak_clients = static_cast<int>(flags.Integer("soak_clients", 8));
  options.leak_bytes = flags.Integer("plant_leak", 0);
  options.seed = static_cast<uint32_t>(flags.Integer("seed", 1));
  options.json = flags.String("json");
  INTRAWARP_RETURN_IF_ERROR(CheckAllUsed(flags, options));
  INTRAWARP_RETURN_IF_ERROR(CheckLists(options));
  return options;
}

std::vector<std::string> FloodsOf(const std::string& names) {
  return absl::StrSplit(names == "all" ? "fem+rmat+uploads+registrations" : names, '+');
}

}  // namespace intrawarp::bench
