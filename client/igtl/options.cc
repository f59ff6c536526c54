// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/options.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"
#include "io/file/config_file.h"

namespace intrawarp::igtl {
namespace {

// After so long without a sign of the server it is asked for one, and after as long again the session is lost.
constexpr std::chrono::milliseconds kServerSilence{3000};

FlagSpec Text(const char* name, const char* placeholder, const char* help) {
  return {.name = name, .placeholder = placeholder, .help = help};
}
FlagSpec Choice(const char* name, std::vector<std::string> choices, const char* help) {
  return {.name = name, .placeholder = "WORD", .help = help, .choices = std::move(choices)};
}
FlagSpec Integer(const char* name, double minimum, double maximum, const char* help) {
  return {.name = name,
          .type = FlagType::kInteger,
          .placeholder = "N",
          .help = help,
          .minimum = minimum,
          .maximum = maximum};
}

std::vector<FlagSpec> ConnectionFlags() {
  return {
      Text("server", "HOST:PORT", "the server, intrawarpd (127.0.0.1:50051)"),
      Text("tls_ca", "PATH", "authorities (PEM) of the server's certificate; without it plain text"),
      Text("tls_cert", "PATH", "the bridge's certificate (PEM)"),
      Text("tls_key", "PATH", "its private key (PEM)"),
      Text("token_file", "PATH", "a file with the bridge's bearer token"),
      Text("listen", "HOST:PORT", "where OpenIGTLink peers may connect; every one of them is a consumer"),
      Text("devices", "HOST:PORT,...", "peers to connect to that only send (PLUS, a tracker)"),
      Text("consumers", "HOST:PORT,...", "peers to connect to that get all results, too (3D Slicer as a server)"),
      Text("metrics", "HOST:PORT", "where Prometheus finds /metrics, without TLS: keep it on a trusted network"),
      Integer("max_body_mib", 1, 4096, "the largest message in MiB (256)"),
      Choice("check_crc", {"true", "false"}, "false for devices whose checksums are wrong (true)"),
      Integer("max_peers", 1, 1000, "peers at once; one more is disconnected (16)"),
      Integer("stall_timeout_ms", 100, 600000,
              "a peer that stalls within a message for so long is disconnected (5000)"),
      Integer("header_version", 1, 2, "of the messages that are sent; 1 has no metadata, for old peers (2)"),
  };
}

std::vector<FlagSpec> RegistrationFlags() {
  return {
      Text("volume", "volumes/ID", "the resident volume; a command can choose another"),
      Choice("volume_role", {"fixed", "moving"}, "the volume's role; frames have the other one (moving)"),
      Text("method", "METHOD", "auto, or stages: rigid, affine, search, ffd, log-demons, with commas (auto)"),
      Choice("start", {"true", "false"}, "false waits for the command start (true)"),
      Choice("shared_memory", {"true", "false"}, "frames and fields through memory of a server on this host (false)"),
      Integer("frame_deadline_ms", 1, 86400000, "a frame without an answer by then fails (none)"),
      Integer("error_limit_mm", 1, 1000000, "the expected error above which a verdict is review (the server's)"),
      Choice("review_fields", {"hold", "use"}, "what to do with a result whose verdict is review (hold)"),
      Integer("max_field_age_ms", 1, 86400000, "poses and points are not mapped by an older field (2000)"),
      Integer("field_points", 8, 10000000, "the most nodes of the coarse field (100000)"),
  };
}

std::vector<FlagSpec> DeviceFlags() {
  return {
      Text("image_device", "NAME", "frames are the IMAGE messages of this device (any)"),
      Text("pose_device", "NAME", "a TRANSFORM that places images: image to reference (none)"),
      Text("tools", "NAME,...", "devices whose poses and points are mapped (all)"),
      Text("mapped_suffix", "TEXT", "ends the device name of a mapped message (Mapped)"),
      Text("device_prefix", "TEXT", "begins the names of the bridge's own devices (Intrawarp)"),
      Choice("coordinates", {"ras", "lps"}, "of poses, points and results on the wire (ras)"),
      Choice("send_field", {"true", "false"}, "whether the field is sent as an IMAGE (true)"),
      Choice("send_warped", {"true", "false"}, "whether the volume, warped to the frame, is sent as an IMAGE (false)"),
      Integer("status_interval_ms", 10, 60000, "how often STATUS is sent (200)"),
      Integer("tracking_interval_ms", 1, 60000, "asks devices for TDATA by STT_TDATA, so often (does not ask)"),
  };
}

absl::Status Invalid(absl::string_view flag, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", what));
}

absl::StatusOr<std::optional<HostPort>> OneAddress(const ParsedFlags& flags, const std::string& name) {
  if (!flags.Has(name)) return std::nullopt;
  const absl::StatusOr<HostPort> address = ParseHostPort(flags.String(name));
  if (!address.ok()) return Invalid(name, address.status().message());
  return *address;
}

absl::StatusOr<std::vector<HostPort>> Addresses(const ParsedFlags& flags, const std::string& name) {
  std::vector<HostPort> addresses;
  for (const absl::string_view each : absl::StrSplit(flags.String(name), ',', absl::SkipEmpty())) {
    const absl::StatusOr<HostPort> address = ParseHostPort(absl::StripAsciiWhitespace(each));
    if (!address.ok()) return Invalid(name, address.status().message());
    addresses.push_back(*address);
  }
  return addresses;
}

absl::StatusOr<ParsedFlags> WithFile(absl::Span<const std::string> arguments) {
  const CommandSyntax syntax = BridgeSyntax();
  INTRAWARP_ASSIGN_OR_RETURN(const ParsedFlags given, ParseFlags(syntax, arguments));
  if (!given.Has("config")) return given;
  INTRAWARP_ASSIGN_OR_RETURN(const auto entries, io::ReadConfigFile(given.String("config")));
  std::vector<std::string> all;
  for (const io::ConfigEntry& entry : entries) {
    const std::string argument = absl::StrCat("--", entry.key, "=", entry.value);
    const absl::Status status = ParseFlags(syntax, {argument}).status();
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("line ", entry.line, ": ", status.message()));
    if (!given.Has(entry.key)) all.push_back(argument);
  }
  all.insert(all.end(), arguments.begin(), arguments.end());
  return ParseFlags(syntax, all);
}

void SetRegistration(const ParsedFlags& flags, BridgeOptions& options) {
  options.volume = flags.String("volume");
  options.is_volume_fixed = flags.String("volume_role", "moving") == "fixed";
  options.method = flags.String("method", "auto");
  options.starts_at_once = flags.String("start", "true") == "true";
  options.shares_memory = flags.String("shared_memory", "false") == "true";
  options.frame_deadline_ms = static_cast<int>(flags.Integer("frame_deadline_ms"));
  options.error_limit_mm = static_cast<double>(flags.Integer("error_limit_mm"));
  options.uses_review = flags.String("review_fields", "hold") == "use";
  options.max_field_age_ms = static_cast<int>(flags.Integer("max_field_age_ms", 2000));
  options.field_points = static_cast<int>(flags.Integer("field_points", 100000));
}

void SetDevices(const ParsedFlags& flags, BridgeOptions& options) {
  options.image_device = flags.String("image_device");
  options.pose_device = flags.String("pose_device");
  options.tools = absl::StrSplit(flags.String("tools"), ',', absl::SkipEmpty());
  options.mapped_suffix = flags.String("mapped_suffix", "Mapped");
  options.device_prefix = flags.String("device_prefix", "Intrawarp");
  options.coordinates = flags.String("coordinates", "ras") == "ras" ? Coordinates::kRas : Coordinates::kLps;
  options.sends_field = flags.String("send_field", "true") == "true";
  options.sends_warped = flags.String("send_warped", "false") == "true";
  options.status_interval_ms = static_cast<int>(flags.Integer("status_interval_ms", 200));
  options.tracking_interval_ms = static_cast<int>(flags.Integer("tracking_interval_ms", 0));
}

void SetLink(const ParsedFlags& flags, BridgeOptions& options) {
  options.server = flags.String("server", "127.0.0.1:50051");
  options.client.security = {flags.String("tls_ca"), flags.String("tls_cert"), flags.String("tls_key"),
                             flags.String("token_file")};
  options.client.session_stall_timeout = kServerSilence;
  options.link.limits.max_body_bytes = static_cast<uint64_t>(flags.Integer("max_body_mib", 256)) << 20;
  options.link.limits.check_crc = flags.String("check_crc", "true") == "true";
  options.link.max_peers = static_cast<int>(flags.Integer("max_peers", 16));
  options.link.stall_timeout = std::chrono::milliseconds(flags.Integer("stall_timeout_ms", 5000));
  options.header_version = static_cast<uint16_t>(flags.Integer("header_version", 2));
}

}  // namespace

CommandSyntax BridgeSyntax() {
  CommandSyntax syntax;
  syntax.last_wins = true;
  syntax.flags.push_back(Text("config", "PATH", "a file with these options, a line NAME = VALUE each"));
  for (auto family : {ConnectionFlags, RegistrationFlags, DeviceFlags}) {
    for (FlagSpec& spec : family()) syntax.flags.push_back(std::move(spec));
  }
  return syntax;
}

absl::StatusOr<BridgeOptions> ParseOptions(absl::Span<const std::string> arguments) {
  INTRAWARP_ASSIGN_OR_RETURN(const ParsedFlags flags, WithFile(arguments));
  BridgeOptions options;
  SetLink(flags, options);
  SetRegistration(flags, options);
  SetDevices(flags, options);
  INTRAWARP_ASSIGN_OR_RETURN(options.listen, OneAddress(flags, "listen"));
  INTRAWARP_ASSIGN_OR_RETURN(options.metrics, OneAddress(flags, "metrics"));
  INTRAWARP_ASSIGN_OR_RETURN(options.devices, Addresses(flags, "devices"));
  INTRAWARP_ASSIGN_OR_RETURN(options.consumers, Addresses(flags, "consumers"));
  if (!options.listen && options.devices.empty() && options.consumers.empty()) {
    return Invalid("listen", "neither this nor --devices nor --consumers names a peer");
  }
  if (options.starts_at_once && options.volume.empty()) return Invalid("volume", "is needed unless --start=false");
  if (options.sends_warped && options.is_volume_fixed) {
    return Invalid("send_warped", "needs --volume_role=moving, since the volume is what is warped");
  }
  // "Affine" and "Status" follow it in 20 characters.
  if (options.device_prefix.size() > 13) return Invalid("device_prefix", "must have at most 13 characters");
  if (options.mapped_suffix.size() > 13) return Invalid("mapped_suffix", "must have at most 13 characters");
  const absl::Status method = StagesOfMethod(options.method).status();
  if (!method.ok()) return Invalid("method", method.message());
  return options;
}

absl::StatusOr<v1::RegistrationOptions> StagesOfMethod(absl::string_view method) {
  v1::RegistrationOptions options;
  if (method == "auto") return options;
  for (const absl::string_view name : absl::StrSplit(method, ',')) {
    v1::Stage& stage = *options.add_stages();
    if (name == "rigid") {
      stage.mutable_rigid();
    } else if (name == "affine") {
      stage.mutable_affine();
    } else if (name == "search") {
      stage.mutable_search();
    } else if (name == "ffd") {
      stage.mutable_ffd();
    } else if (name == "log-demons") {
      stage.mutable_log_demons();
    } else {
      return absl::InvalidArgumentError(
          "a stage is rigid, affine, search, ffd or log-demons; auto stands without others");
    }
  }
  return options;
}

}  // namespace intrawarp::igtl
