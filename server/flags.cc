// SPDX-License-Identifier: Apache-2.0
#include "server/flags.h"

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "engine/base/checked.h"
#include "engine/base/host_port.h"
#include "engine/base/status_macros.h"
#include "server/dimse/pdu.h"
#include "server/monitor/log_levels.h"

namespace intrawarp::server {
namespace {

absl::Status ParseText(absl::string_view value, std::string* to) {
  *to = std::string(value);
  return absl::OkStatus();
}

absl::Status ParseAddress(absl::string_view value, std::string* to) {
  INTRAWARP_RETURN_IF_ERROR(ParseHostPort(value).status());
  return ParseText(value, to);
}

absl::Status ParseDeviceList(absl::string_view value, std::string* to) {
  INTRAWARP_RETURN_IF_ERROR(ParseDevices(value).status());
  return ParseText(value, to);
}

absl::Status ParseAeTitle(absl::string_view value, std::string* to) {
  if (!dimse::IsAeTitle(value)) {
    return absl::InvalidArgumentError("must be 1 to 16 letters, digits, '_', '-' or '.'");
  }
  return ParseText(value, to);
}

absl::Status ParseLogLevel(absl::string_view value, Severity* to) {
  const std::optional<Severity> level = ParseSeverity(value);
  if (!level) return absl::InvalidArgumentError("must be debug, info, warning or error");
  *to = *level;
  return absl::OkStatus();
}

absl::Status ParseBytes(absl::string_view value, int64_t* to) {
  int64_t unit = 1;
  constexpr const char* kSuffixes[] = {"KiB", "MiB", "GiB", "TiB"};
  for (int i = 0; i < 4; ++i) {
    if (absl::ConsumeSuffix(&value, kSuffixes[i])) {
      unit = int64_t{1} << (10 * (i + 1));
      break;
    }
  }
  int64_t number = 0;
  if (!absl::SimpleAtoi(value, &number) || number <= 0) {
    return absl::InvalidArgumentError("must be a positive number of bytes, KiB, MiB, GiB or TiB");
  }
  INTRAWARP_ASSIGN_OR_RETURN(*to, CheckedMultiply(number, unit));
  return absl::OkStatus();
}

// Larger chunks delay other calls on the connection. Chunks of 1 MiB every client may send without asking.
absl::Status ParseChunkBytes(absl::string_view value, int64_t* to) {
  INTRAWARP_RETURN_IF_ERROR(ParseBytes(value, to));
  if (*to < (int64_t{1} << 20) || *to > (int64_t{16} << 20)) return absl::InvalidArgumentError("must be 1MiB to 16MiB");
  return absl::OkStatus();
}

template <typename Count>
absl::Status ParseCount(absl::string_view value, Count* to) {
  int32_t number = 0;
  if (!absl::SimpleAtoi(value, &number) || number <= 0) return absl::InvalidArgumentError("must be a positive number");
  *to = number;
  return absl::OkStatus();
}

// 0 means that there is no limit.
absl::Status ParseLimit(absl::string_view value, int* to) {
  int32_t number = 0;
  if (!absl::SimpleAtoi(value, &number) || number < 0) {
    return absl::InvalidArgumentError("must be a number that is not negative");
  }
  *to = number;
  return absl::OkStatus();
}

template <typename Duration>
absl::Status ParseDuration(absl::string_view value, Duration* to) {
  absl::Duration duration;
  if (!absl::ParseDuration(value, &duration) || duration < absl::ZeroDuration() || duration > absl::Hours(24 * 365)) {
    return absl::InvalidArgumentError("must be a duration such as 500ms, 30s or 5m");
  }
  *to = std::chrono::duration_cast<Duration>(absl::ToChronoNanoseconds(duration));
  return absl::OkStatus();
}

// For what would end at once, or never begin, with 0s.
template <typename Duration>
absl::Status ParsePositiveDuration(absl::string_view value, Duration* to) {
  Duration duration{0};
  INTRAWARP_RETURN_IF_ERROR(ParseDuration(value, &duration));
  if (duration < std::chrono::milliseconds(1)) return absl::InvalidArgumentError("must be at least 1ms");
  *to = duration;
  return absl::OkStatus();
}

// Numbers of users.
absl::Status ParseUsers(absl::string_view value, std::vector<uid_t>* to) {
  to->clear();
  for (const absl::string_view number : absl::StrSplit(value, ',')) {
    uint32_t user = 0;
    if (!absl::SimpleAtoi(number, &user)) return absl::InvalidArgumentError("must be numbers of users, as 1000,1001");
    to->push_back(user);
  }
  return absl::OkStatus();
}

// The part of the options that has this type.
template <typename Part, typename Options>
auto& PartOf(Options& options) {
  if constexpr (std::is_same_v<Part, ServerOptions>) {
    return options;
  } else if constexpr (std::is_same_v<Part, AccessFiles>) {
    return options.access;
  } else if constexpr (std::is_same_v<Part, CallLimitOptions>) {
    return options.call_limits;
  } else if constexpr (std::is_same_v<Part, MessageLimitOptions>) {
    return options.message_limits;
  } else if constexpr (std::is_same_v<Part, SharedMemoryOptions>) {
    return options.shared_memory;
  } else if constexpr (std::is_same_v<Part, PageOptions>) {
    return options.page;
  } else if constexpr (std::is_same_v<Part, NodeOptions>) {
    return options.dicom;
  } else if constexpr (std::is_same_v<Part, WatchdogOptions>) {
    return options.watchdog;
  } else {
    static_assert(std::is_same_v<Part, ServerLimits>);
    return options.limits;
  }
}

// A member that one of the parsers above reads.
template <typename Part, typename Member>
FlagMember With(absl::Status (*parse)(absl::string_view, Member*), Member Part::*to) {
  return {[=](absl::string_view value, CommandLine& line) { return parse(value, &(PartOf<Part>(line.options).*to)); },
          [=](const ServerOptions& options) { return PartOf<Part>(options).*to != Part().*to; }};
}
template <typename Part>
FlagMember Text(std::string Part::*to) {
  return With(ParseText, to);
}
absl::Status ParseSwitch(absl::string_view, bool* to) {
  *to = true;
  return absl::OkStatus();
}
template <typename Part>
FlagMember Switch(bool Part::*to) {
  return With(ParseSwitch, to);
}
template <typename Part>
FlagMember Bytes(int64_t Part::*to) {
  return With(ParseBytes, to);
}
template <typename Part, typename Member>
FlagMember Count(Member Part::*to) {
  return With(ParseCount<Member>, to);
}
template <typename Part>
FlagMember Limit(int Part::*to) {
  return With(ParseLimit, to);
}
template <typename Part, typename Member>
FlagMember Duration(Member Part::*to) {
  return With(ParseDuration<Member>, to);
}
template <typename Part, typename Member>
FlagMember PositiveDuration(Member Part::*to) {
  return With(ParsePositiveDuration<Member>, to);
}

// The share of one identity.
Flag ShareFlag(const char* name, const char* value, const char* help, FlagMember member, const char* example) {
  return {.name = name,
          .value = value,
          .fallback = "half of what there is",
          .help = help,
          .member = std::move(member),
          .example = example,
          .needs_identities = true};
}

// A flag that only a command line can have.
template <typename Member>
Flag CommandFlag(const char* name, const char* value, const char* help,
                 absl::Status (*parse)(absl::string_view, Member*), Member CommandLine::*to) {
  return {.name = name,
          .value = value,
          .fallback = value == nullptr ? "off" : "none",
          .help = help,
          .member = {[=](absl::string_view text, CommandLine& line) { return parse(text, &(line.*to)); }, nullptr},
          .is_command = true};
}

FlagSection AddressFlags() {
  return {
      "Addresses",
      {{"listen", "HOST:PORT", "127.0.0.1:50051",
        "where gRPC is served; port 0 takes a free one; without identities only a loopback address is served",
        With(ParseAddress, &ServerOptions::listen)},
       {"http", "HOST:PORT", "127.0.0.1:9464",
        "where /metrics and /healthz are served, without TLS and identities: keep it on a trusted network",
        With(ParseAddress, &ServerOptions::http)},
       {"page", "HOST:PORT", "none",
        "where the page for people is served, over TLS and for bearers of tokens where the server has these; without "
        "them only a loopback address is served (docs/use/page.md)",
        With(ParseAddress, &PageOptions::listen), "127.0.0.1:8080"},
       {"reflection", nullptr, "off", "serve gRPC reflection", Switch(&ServerOptions::reflection)}}};
}

FlagSection CallerFlags() {
  return {
      "Who may call (docs/operate/security.md)",
      {{"tls_cert", "PATH", "none", "the server's certificate chain (PEM), read again when it changes",
        Text(&AccessFiles::tls_cert), "/etc/intrawarp/server.pem"},
       {"tls_key", "PATH", "none", "its private key (PEM)", Text(&AccessFiles::tls_key), "/etc/intrawarp/server.key"},
       {"tls_client_ca", "PATH", "none", "the authorities (PEM) that certificates of clients come from",
        Text(&AccessFiles::tls_client_ca), "/etc/intrawarp/clients.pem"},
       {"identities", "PATH", "none", "the callers by their certificates: lines of NAME ROLES SUBJECT",
        Text(&AccessFiles::identities), "/etc/intrawarp/identities"},
       {"tokens", "PATH", "none", "the callers by their tokens: lines as `intrawarp token new` prints them",
        Text(&AccessFiles::tokens), "/etc/intrawarp/tokens"},
       {"insecure_no_identity_any_address", nullptr, "off",
        "serve whoever connects, also in plain text, on an address that is not a loopback one; the container's default "
        "command has it",
        Switch(&ServerOptions::allow_no_identity)}}};
}

FlagSection CallFlags() {
  const char* const identity_rate = "calls a second of one identity; 0: no limit";
  return {
      "Calls and connections",
      {{"max_connections", "N", "256",
        "connections of known callers to the gRPC port; one more is closed; strangers have half as many",
        Count(&ServerLimits::max_connections)},
       {"max_calls", "N", "1024",
        "calls of all kinds under way, besides as many that only ask for health or information",
        Count(&ServerLimits::max_calls)},
       {"max_connection_calls", "N", "512", "calls of one connection under way; 0: no limit",
        Limit(&CallLimitOptions::connection_calls)},
       {.name = "max_identity_calls",
        .value = "N",
        .fallback = "512",
        .help = "calls of one identity under way; 0: no limit",
        .member = Limit(&CallLimitOptions::identity_calls),
        .needs_identities = true},
       {.name = "max_identity_rate",
        .value = "N",
        .fallback = "0",
        .help = identity_rate,
        .member = Limit(&CallLimitOptions::identity_rate),
        .needs_identities = true},
       {"max_connection_message_rate", "N", "20000", "messages a second on the streams of one connection; 0: no limit",
        Limit(&MessageLimitOptions::connection_rate)},
       {.name = "max_identity_message_rate",
        .value = "N",
        .fallback = "0",
        .help = "messages a second on the streams of one identity; 0: no limit",
        .member = Limit(&MessageLimitOptions::identity_rate),
        .needs_identities = true},
       {"stream_idle_timeout", "DURATION", "30s",
        "a stream whose client does not read, or does not send the rest of an upload or a frame, is ended after "
        "this; 0s: never",
        Duration(&ServerLimits::stream_idle_timeout)},
       {"drain_timeout", "DURATION", "10s", "a stop waits so long for calls under way",
        Duration(&ServerOptions::drain_timeout)}}};
}

FlagSection ShareFlags() {
  return {
      "The share of one identity",
      {ShareFlag("max_owner_bytes", "BYTES", "resident memory of its objects",
                 Bytes(&ServerLimits::owner_resident_bytes), "8GiB"),
       ShareFlag("max_owner_workspace_bytes", "BYTES", "memory for its jobs",
                 Bytes(&ServerLimits::owner_workspace_bytes), "4GiB"),
       ShareFlag("max_owner_pinned_bytes", "BYTES", "host memory for its transfers and sessions",
                 Bytes(&ServerLimits::owner_pinned_bytes), "2GiB"),
       ShareFlag("max_owner_upload_bytes", "BYTES", "memory of its unfinished uploads",
                 Bytes(&ServerLimits::owner_uploading_bytes), "2GiB"),
       ShareFlag("max_owner_transforms", "N", "its stored transforms", Count(&ServerLimits::owner_transforms), "1024"),
       ShareFlag("max_owner_streams", "N", "its bulk streams, registrations and products under way",
                 Count(&ServerLimits::owner_streams), "16"),
       ShareFlag("max_owner_uploads", "N", "its unfinished uploads", Count(&ServerLimits::owner_uploads), "16"),
       ShareFlag("max_owner_sessions", "N", "its navigation sessions that are open",
                 Count(&ServerLimits::owner_sessions), "2"),
       ShareFlag("max_owner_operations", "N", "its operations that have not ended",
                 Count(&ServerLimits::owner_operations), "8"),
       ShareFlag("max_owner_jobs", "N", "its jobs of one class that wait", Count(&ServerLimits::owner_jobs), "16")}};
}

FlagSection MemoryFlags() {
  return {
      "Devices and memory",
      {{"device", "auto|cpu|cuda[:N[,M...]]", "auto",
        "what computes: auto is the first GPU that works, else the CPU; cuda:0,1 serves two GPUs",
        With(ParseDeviceList, &ServerOptions::device)},
       {"resident_bytes", "BYTES", "60 % of a GPU's memory, 35 % of the host's on the CPU",
        "memory of each device for volumes, matrices, fields, products and uploads under way; a volume or a matrix "
        "counts as 4 KiB at least, and there are at most 65536 of either",
        Bytes(&ServerLimits::resident_capacity_bytes), "8GiB"},
       {"workspace_bytes", "BYTES", "30 % of a GPU's memory, 25 % of the host's on the CPU",
        "memory of each device for the work of jobs; a quarter of it and of the pinned memory is only for navigation "
        "sessions",
        Bytes(&ServerLimits::workspace_capacity_bytes), "4GiB"},
       {"pinned_bytes", "BYTES", "12 % of the host's memory or the control group's, at most 8GiB",
        "host memory for transfers", Bytes(&ServerLimits::pinned_capacity_bytes), "2GiB"},
       {"max_volume_bytes", "BYTES", "4GiB", "the largest volume, as uploaded", Bytes(&ServerLimits::max_volume_bytes)},
       {"max_matrix_bytes", "BYTES", "4GiB", "the largest sparse matrix, as uploaded",
        Bytes(&ServerLimits::max_matrix_bytes)},
       {"max_chunk_bytes", "BYTES", "1MiB", "the largest chunk, at most 16MiB",
        With(ParseChunkBytes, &ServerLimits::max_chunk_bytes)}}};
}

FlagSection WorkFlags() {
  return {"Objects and work",
          {{"max_transforms", "N", "4096", "stored transforms", Count(&ServerLimits::max_transforms)},
           {"result_ttl", "DURATION", "24h",
            "the life of a registration's result whose request asks for none; 0s: until it is deleted",
            Duration(&ServerLimits::result_ttl)},
           {"max_uploads", "N", "64", "unfinished uploads", Count(&ServerLimits::max_uploads)},
           {"upload_ttl", "DURATION", "5m", "an upload that nobody resumes is dropped after this",
            Duration(&ServerLimits::upload_ttl)},
           {"max_streams", "N", "64", "bulk streams, registrations and products under way",
            Count(&ServerLimits::max_streams)},
           {"max_queued_jobs", "N", "64", "jobs of each class that wait for the device",
            Count(&ServerLimits::max_queued_jobs)},
           {"max_run_time", "DURATION", "10m",
            "a registration, frame or product without a budget ends after it has computed for so long; 0s: never",
            Duration(&ServerLimits::max_run_time)},
           {"max_operations", "N", "64", "operations, which go on without a call, that have not ended",
            Count(&ServerLimits::max_operations)},
           {"operation_ttl", "DURATION", "24h", "an operation that has ended is remembered for this long",
            Duration(&ServerLimits::operation_ttl)},
           {"max_sessions", "N", "8",
            "navigation sessions that are open; they have places of their own among streams and transforms",
            Count(&ServerLimits::max_sessions)},
           {"max_session_idle", "DURATION", "1h",
            "the longest time without a frame that a navigation session may ask for, at least 1ms",
            PositiveDuration(&ServerLimits::max_session_idle)}}};
}

FlagSection StateFlags() {
  return {
      "Disk and shared memory",
      {{"state_dir", "DIR", "none",
        "an existing folder where volumes, matrices, transforms, operations, open sessions and DICOM images that are "
        "not volumes yet outlive a restart",
        Text(&ServerOptions::state_dir), "/var/lib/intrawarp"},
       {"audit_dir", "DIR", "none",
        "an existing folder where every call and frame is recorded, in a chain of hashes (docs/operate/audit.md)",
        Text(&ServerOptions::audit_dir), "/var/lib/intrawarp/audit"},
       {"audit_key", "FILE", "none", "the key that makes the audit log unforgeable", Text(&ServerOptions::audit_key),
        "/etc/intrawarp/audit.key"},
       {"shared_memory", "PATH", "none",
        "frames and fields of clients on this host through shared memory; PATH: the unix-domain socket where they "
        "fetch it (docs/use/shared-memory.md)",
        Text(&SharedMemoryOptions::socket), "/run/intrawarp/segments"},
       {"shared_memory_uids", "N[,N...]", "none", "the numbers of users, besides the server's own, who may fetch it",
        With(ParseUsers, &SharedMemoryOptions::users), "1000"}}};
}

FlagSection DicomFlags() {
  return {
      "DICOM (docs/use/dicom.md)",
      {{"dicom_listen", "HOST:PORT", "none", "where known peers send images (C-STORE, C-ECHO), which become volumes",
        With(ParseAddress, &NodeOptions::listen), "0.0.0.0:11112"},
       {"dicom_ae_title", "NAME", "INTRAWARP", "the server's DICOM application entity",
        With(ParseAeTitle, &NodeOptions::ae_title)},
       {"dicom_peers", "PATH", "none", "who may send images: lines of AE_TITLE HOST OWNER and limits",
        Text(&NodeOptions::peers), "/etc/intrawarp/dicom_peers"},
       {"dicom_remotes", "PATH", "none",
        "archives to import from: lines of NAME get|move AE_TITLE HOST:PORT tls|plain, or NAME dicomweb URL, and "
        "options",
        Text(&NodeOptions::remotes), "/etc/intrawarp/dicom_remotes"},
       {"dicom_tls_cert", "PATH", "none", "the DICOM port's certificate chain (PEM), read at the start",
        Text(&NodeOptions::tls_cert), "/etc/intrawarp/dicom.crt"},
       {"dicom_tls_key", "PATH", "none", "its private key (PEM)", Text(&NodeOptions::tls_key),
        "/etc/intrawarp/dicom.key"},
       {"dicom_tls_ca", "PATH", "none", "the authorities (PEM) that certificates of DICOM peers come from",
        Text(&NodeOptions::tls_ca), "/etc/intrawarp/dicom-ca.crt"},
       {"dicom_insecure_any_address", nullptr, "off",
        "receive DICOM in plain text, or without certificates, on an address that is not a loopback one",
        Switch(&NodeOptions::allow_insecure)},
       {"dicom_spool", "PATH", "in --state_dir, else a temporary one",
        "an existing folder, for nothing else, for images that are not volumes yet", Text(&NodeOptions::spool),
        "/var/lib/intrawarp/dicom_spool"},
       {"dicom_spool_bytes", "BYTES", "8GiB", "what that folder may hold", Bytes(&NodeOptions::spool_bytes)},
       {"dicom_max_associations", "N", "32", "DICOM associations that are open", Count(&NodeOptions::max_associations)},
       {"dicom_timeout", "DURATION", "30s",
        "a DICOM peer that does not send the rest of a message for so long, or is slower than 16 KiB/s, is ended",
        PositiveDuration(&NodeOptions::timeout)},
       {"dicom_idle_timeout", "DURATION", "1m", "a DICOM association without a message is ended after this",
        PositiveDuration(&NodeOptions::idle_timeout)},
       {"dicom_quiet", "DURATION", "30s",
        "a series that does not say how many images it has becomes volumes after this time without one",
        PositiveDuration(&NodeOptions::quiet)}}};
}

FlagSection HealthFlags() {
  return {"Health and log",
          {{"watchdog_timeout", "DURATION", "30s",
            "health turns off when a job does not check in, or the device does not answer, for so long in which the "
            "process could have gone on; 0s: never",
            Duration(&WatchdogOptions::timeout)},
           {"watchdog_exit", "DURATION", "0s",
            "exit with status 3 when the device hangs or is lost for so long after that; 0s: never",
            Duration(&WatchdogOptions::exit_after)},
           {"log_level", "debug|info|warning|error", "info",
            "the least severity of the log's lines; `intrawarp server log_level` changes it in a running server",
            With(ParseLogLevel, &ServerOptions::log_level)}}};
}

FlagSection CommandFlags() {
  return {
      "Only on the command line",
      {CommandFlag("config", "FILE", "read flags from FILE, one a line as NAME = VALUE; the command line wins over it",
                   ParseText, &CommandLine::config_file),
       CommandFlag("print_config", nullptr, "print a configuration file that shows every flag, and exit", ParseSwitch,
                   &CommandLine::print_config),
       CommandFlag("check_config", nullptr, "check the configuration and exit with 0 or 1; opens no port", ParseSwitch,
                   &CommandLine::check_config),
       CommandFlag("version", nullptr, "print the version and exit", ParseSwitch, &CommandLine::version),
       CommandFlag("help", nullptr, "print this and exit", ParseSwitch, &CommandLine::help)}};
}

// A comment of a configuration file, in lines that a terminal shows whole.
std::string Comment(absl::string_view text) {
  constexpr size_t kColumns = 100;
  std::string comment = "#";
  size_t column = 1;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (column + 1 + word.size() > kColumns) {
      absl::StrAppend(&comment, "\n#");
      column = 1;
    }
    absl::StrAppend(&comment, " ", word);
    column += 1 + word.size();
  }
  return comment + "\n";
}

}  // namespace

const std::vector<FlagSection>& FlagSections() {
  static const auto* const sections =
      new std::vector<FlagSection>{AddressFlags(), CallerFlags(), CallFlags(),  ShareFlags(),  MemoryFlags(),
                                   WorkFlags(),    StateFlags(),  DicomFlags(), HealthFlags(), CommandFlags()};
  return *sections;
}

const Flag* FindFlag(absl::string_view name) {
  for (const FlagSection& section : FlagSections()) {
    for (const Flag& flag : section.flags) {
      if (name == flag.name) return &flag;
    }
  }
  return nullptr;
}

CommandSyntax ServerSyntax() {
  CommandSyntax syntax;
  // A script that starts the server adds to the flags of another one.
  syntax.last_wins = true;
  for (const FlagSection& section : FlagSections()) {
    for (const Flag& flag : section.flags) {
      syntax.flags.push_back({.name = flag.name,
                              .type = flag.value == nullptr ? FlagType::kSwitch : FlagType::kString,
                              .placeholder = flag.value == nullptr ? "" : flag.value,
                              .help = flag.help});
    }
  }
  return syntax;
}

std::string CommandLineHelp() {
  std::string help = "intrawarpd: registration of medical images over gRPC\n";
  for (const FlagSection& section : FlagSections()) {
    absl::StrAppend(&help, "\n", section.title, ":\n");
    for (const Flag& flag : section.flags) {
      std::string left = absl::StrCat("  --", flag.name, flag.value == nullptr ? "" : "=");
      if (flag.value != nullptr) absl::StrAppend(&left, flag.value);
      left.resize(std::max<size_t>(left.size() + 2, 30), ' ');
      absl::StrAppend(&help, left, flag.help);
      if (flag.value != nullptr) absl::StrAppend(&help, " (", flag.fallback, ")");
      absl::StrAppend(&help, "\n");
    }
  }
  return help;
}

std::string ConfigurationTemplate() {
  std::string file =
      "# The configuration of intrawarpd: a flag of the command line on each line (intrawarpd --help), without its "
      "dashes.\n# A line that begins with # and a name shows the default, or an example where the default is not a "
      "value.\n# Check: intrawarpd --config=FILE --check_config\n";
  for (const FlagSection& section : FlagSections()) {
    if (section.flags.front().is_command) continue;
    absl::StrAppend(&file, "\n# ---- ", section.title, " ----\n");
    for (const Flag& flag : section.flags) {
      const bool has_example = flag.example != nullptr;
      const char* const value = flag.value == nullptr ? "false" : has_example ? flag.example : flag.fallback;
      absl::StrAppend(&file,
                      Comment(absl::StrCat(flag.help, has_example ? absl::StrCat("; default: ", flag.fallback) : "")),
                      "#", flag.name, " = ", value, "\n");
    }
  }
  return file;
}

}  // namespace intrawarp::server
