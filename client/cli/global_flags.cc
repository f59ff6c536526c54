// SPDX-License-Identifier: Apache-2.0
#include "client/cli/global_flags.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"
#include "wire/trace_context.h"

namespace intrawarp::cli {
namespace {

constexpr size_t kMaxConfigBytes = 64 << 10;

bool Names(const CommandSyntax& syntax, const std::string& name) {
  return std::any_of(syntax.flags.begin(), syntax.flags.end(), [&](const FlagSpec& spec) { return spec.name == name; });
}

std::string TextOf(const char* text) { return text == nullptr ? "" : text; }

struct ConfigFile {
  std::string path;  // empty: none is read
  bool must_exist = false;
};

ConfigFile FindConfigFile(const Environment& environment) {
  if (const char* named = environment("INTRAWARP_CONFIG")) return {named, true};
  const std::string folder = TextOf(environment("XDG_CONFIG_HOME")), home = TextOf(environment("HOME"));
  if (!folder.empty()) return {folder + "/intrawarp/config"};
  return {home.empty() ? "" : home + "/.config/intrawarp/config"};
}

absl::StatusOr<std::pair<std::string, std::string>> ParseLine(absl::string_view line) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits('=', 1));
  const std::string name(absl::StripAsciiWhitespace(parts.first));
  const std::string value(absl::StripAsciiWhitespace(parts.second));
  if (!absl::StrContains(line, "=")) return absl::InvalidArgumentError("must be NAME = VALUE");
  if (Names(GlobalSyntax(), name)) return std::pair(name, value);
  std::vector<std::string> known;
  for (const FlagSpec& spec : GlobalSyntax().flags) known.push_back(spec.name);
  return absl::InvalidArgumentError(absl::StrCat(name, ": unknown option", Suggestion(name, known)));
}

absl::StatusOr<std::map<std::string, std::string>> ReadConfig(const ConfigFile& config) {
  std::map<std::string, std::string> values;
  if (config.path.empty()) return values;
  const absl::StatusOr<std::string> text = io::ReadSmallFile(config.path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status()) && !config.must_exist) return values;
  if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat(config.path, ": ", text.status().message()));
  int number = 0;
  for (const absl::string_view each : absl::StrSplit(*text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(each);
    if (line.empty() || line.front() == '#') continue;
    const auto parsed = ParseLine(line);
    const bool is_new = parsed.ok() && values.insert(*parsed).second;
    if (is_new) continue;
    return absl::InvalidArgumentError(absl::StrCat(config.path, ", line ", number, ": ",
                                                   parsed.ok() ? "given more than once" : parsed.status().message()));
  }
  return values;
}

// The schemes that gRPC resolves by itself.
bool HasScheme(absl::string_view target) {
  for (const char* scheme : {"unix:", "unix-abstract:", "ipv4:", "ipv6:", "dns:", "vsock:"}) {
    if (absl::StartsWith(target, scheme)) return true;
  }
  return false;
}

bool HasPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port)) return false;
  const absl::string_view host = address.substr(0, colon);
  const bool is_bracketed = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  return port >= 1 && port <= 65535 && !host.empty() && (is_bracketed || !absl::StrContains(host, ":"));
}

}  // namespace

CommandSyntax GlobalSyntax() {
  return {{{.name = "server", .placeholder = "HOST:PORT", .help = "the server; default 127.0.0.1:50051"},
           {.name = "tls_ca", .placeholder = "PATH", .help = "the authorities (PEM) of the server's certificate"},
           {.name = "tls_cert", .placeholder = "PATH", .help = "the client's certificate chain (PEM)"},
           {.name = "tls_key", .placeholder = "PATH", .help = "its private key (PEM)"},
           {.name = "token_file", .placeholder = "PATH", .help = "a file that holds a token (intrawarp token new)"},
           {.name = "routing_key", .placeholder = "KEY", .help = "which of several servers: takes a digest's place"},
           {.name = "traceparent",
            .placeholder = "TRACE",
            .help = "the trace of the calls, as in W3C Trace Context; in the server's log"}}};
}

CommandSyntax WithGlobalFlags(CommandSyntax syntax) {
  const CommandSyntax own = syntax;
  for (FlagSpec& spec : GlobalSyntax().flags) {
    if (!Names(own, spec.name)) syntax.flags.push_back(std::move(spec));
  }
  return syntax;
}

std::string VariableOf(const std::string& flag) { return absl::StrCat("INTRAWARP_", absl::AsciiStrToUpper(flag)); }

absl::StatusOr<GlobalFlags> GlobalFlags::Resolve(const ParsedFlags& before, const ParsedFlags& after,
                                                 const Environment& environment) {
  INTRAWARP_ASSIGN_OR_RETURN(const auto file, ReadConfig(FindConfigFile(environment)));
  GlobalFlags flags;
  for (const FlagSpec& spec : GlobalSyntax().flags) {
    if (before.Has(spec.name) && after.Has(spec.name)) {
      return absl::InvalidArgumentError(absl::StrCat("--", spec.name, ": given more than once"));
    }
    const char* variable = environment(VariableOf(spec.name).c_str());
    const auto line = file.find(spec.name);
    std::string& value = flags.values_[spec.name];
    if (before.Has(spec.name)) {
      value = before.String(spec.name);
    } else if (after.Has(spec.name)) {
      value = after.String(spec.name);
    } else if (variable != nullptr) {
      value = variable;
    } else if (line != file.end()) {
      value = line->second;
    }
  }
  if (flags.values_["server"].empty()) flags.values_["server"] = kDefaultServer;
  INTRAWARP_RETURN_IF_ERROR(CheckServer(flags.values_["server"]));
  const std::string& trace = flags.values_["traceparent"];
  if (trace.empty() || TraceIdIn(trace)) return flags;
  return absl::InvalidArgumentError(
      "--traceparent: must be VERSION-TRACE-PARENT-FLAGS in lower-case hexadecimal digits");
}

std::string GlobalFlags::String(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? "" : found->second;
}

absl::Status CheckServer(const std::string& target) {
  // A list of servers is looked at by what routes among them.
  if (HasScheme(target) || absl::StrContains(target, ",")) return absl::OkStatus();
  if (absl::StrContains(target, "://")) {
    return absl::InvalidArgumentError(absl::StrCat("--server: must be HOST:PORT, without a scheme: ", target));
  }
  if (HasPort(target)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--server: must be HOST:PORT, as 127.0.0.1:50051, or [::1]:50051 for an IPv6 address: '", target, "'"));
}

}  // namespace intrawarp::cli
