// SPDX-License-Identifier: Apache-2.0
#include "server/options.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "engine/base/checked.h"
#include "engine/base/host_port.h"
#include "engine/base/status_macros.h"
#include "server/audit/audit_chain.h"
#include "server/config_file.h"
#include "server/dimse/pdu.h"
#include "server/identity/exposure.h"
#include "server/monitor/log_levels.h"
#include "server/monitor/metrics.h"
#include "server/pacs/dicom_node.h"
#include "server/rpc/access_control.h"

namespace intrawarp::server {
namespace {

struct Flag {
  const char* name;
  const char* value;  // what stands after '=' in the help; nullptr: a switch
  const char* help;
  std::function<absl::Status(absl::string_view value, CommandLine& to)> set;
};

absl::Status ParseAddress(absl::string_view value, std::string* to) {
  INTRAWARP_RETURN_IF_ERROR(ParseHostPort(value).status());
  *to = std::string(value);
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

template <typename Count>
absl::Status ParseCount(absl::string_view value, Count* to) {
  int32_t number = 0;
  if (!absl::SimpleAtoi(value, &number) || number <= 0) return absl::InvalidArgumentError("must be a positive number");
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

// Larger chunks delay other calls on the connection. Chunks of 1 MiB every client may send without asking.
absl::Status ParseChunkBytes(absl::string_view value, int64_t* to) {
  INTRAWARP_RETURN_IF_ERROR(ParseBytes(value, to));
  if (*to < (int64_t{1} << 20) || *to > (int64_t{16} << 20)) return absl::InvalidArgumentError("must be 1MiB to 16MiB");
  return absl::OkStatus();
}

// A flag that names a file.
Flag FileFlag(const char* name, const char* help, std::string AccessFiles::*to) {
  return {name, "PATH", help, [to](absl::string_view v, CommandLine& c) {
            c.options.access.*to = std::string(v);
            return v.empty() ? absl::InvalidArgumentError("must name a file") : absl::OkStatus();
          }};
}

// A flag that names a file or folder of the DICOM side.
Flag DicomPathFlag(const char* name, const char* help, std::string NodeOptions::*to) {
  return {name, "PATH", help, [to](absl::string_view v, CommandLine& c) {
            c.options.dicom.*to = std::string(v);
            return v.empty() ? absl::InvalidArgumentError("must name a file or folder") : absl::OkStatus();
          }};
}

absl::Status ParseLimit(absl::string_view text, int* to) {
  int32_t number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < 0) {
    return absl::InvalidArgumentError("must be a number that is not negative");
  }
  *to = number;
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

// A flag with a limit of calls, where 0 means none.
Flag CallLimitFlag(const char* name, const char* help, int CallLimitOptions::*to) {
  return {name, "N", help,
          [to](absl::string_view v, CommandLine& c) { return ParseLimit(v, &(c.options.call_limits.*to)); }};
}

// The same for messages.
Flag MessageLimitFlag(const char* name, const char* help, int MessageLimitOptions::*to) {
  return {name, "N", help,
          [to](absl::string_view v, CommandLine& c) { return ParseLimit(v, &(c.options.message_limits.*to)); }};
}

// The limits of one identity: a flag for each resource of the ledger, and for the jobs that wait.
struct OwnerBytes {
  const char* name;
  const char* help;
  int64_t ServerLimits::*to;
};
constexpr std::array<OwnerBytes, 4> kOwnerBytes = {
    {{"max_owner_bytes", "resident memory of the objects of one identity (half)", &ServerLimits::owner_resident_bytes},
     {"max_owner_workspace_bytes", "memory for the jobs of one identity (half)", &ServerLimits::owner_workspace_bytes},
     {"max_owner_pinned_bytes", "host memory for the transfers and sessions of one identity (half)",
      &ServerLimits::owner_pinned_bytes},
     {"max_owner_upload_bytes", "memory of the unfinished uploads of one identity (half)",
      &ServerLimits::owner_uploading_bytes}}};
struct OwnerCount {
  const char* name;
  const char* help;
  int ServerLimits::*to;
};
constexpr std::array<OwnerCount, 6> kOwnerCounts = {
    {{"max_owner_transforms", "stored transforms of one identity (half)", &ServerLimits::owner_transforms},
     {"max_owner_streams", "bulk streams, registrations and products of one identity under way (half)",
      &ServerLimits::owner_streams},
     {"max_owner_uploads", "unfinished uploads of one identity (half)", &ServerLimits::owner_uploads},
     {"max_owner_sessions", "navigation sessions of one identity that are open (half)", &ServerLimits::owner_sessions},
     {"max_owner_operations", "operations of one identity that have not ended (half)", &ServerLimits::owner_operations},
     {"max_owner_jobs", "jobs of one identity and class that wait (half)", &ServerLimits::owner_jobs}}};
static_assert(kOwnerBytes.size() + kOwnerCounts.size() == kResources + 1, "every resource has a limit for its owner");

Flag OwnerBytesFlag(int i) {
  return {kOwnerBytes[i].name, "BYTES", kOwnerBytes[i].help,
          [i](absl::string_view v, CommandLine& c) { return ParseBytes(v, &(c.options.limits.*kOwnerBytes[i].to)); }};
}
Flag OwnerCountFlag(int i) {
  return {kOwnerCounts[i].name, "N", kOwnerCounts[i].help,
          [i](absl::string_view v, CommandLine& c) { return ParseCount(v, &(c.options.limits.*kOwnerCounts[i].to)); }};
}

const std::vector<Flag>& Flags() {
  static const auto* const flags = new std::vector<Flag>{
      {"listen", "HOST:PORT", "where gRPC is served (127.0.0.1:50051); port 0 takes a free one",
       [](absl::string_view v, CommandLine& c) { return ParseAddress(v, &c.options.listen); }},
      {"http", "HOST:PORT", "where /metrics and /healthz are served (127.0.0.1:9464)",
       [](absl::string_view v, CommandLine& c) { return ParseAddress(v, &c.options.http); }},
      FileFlag("tls_cert", "the server's certificate chain (PEM), read again when it changes", &AccessFiles::tls_cert),
      FileFlag("tls_key", "its private key (PEM)", &AccessFiles::tls_key),
      FileFlag("tls_client_ca", "the authorities (PEM) that certificates of clients come from",
               &AccessFiles::tls_client_ca),
      FileFlag("identities", "the callers by their certificates: lines of NAME ROLES SUBJECT (docs/operate/security.md)",
               &AccessFiles::identities),
      FileFlag("tokens", "the callers by their tokens: lines as `intrawarp token new` prints them",
               &AccessFiles::tokens),
      {"insecure_no_identity_any_address", nullptr,
       "serve whoever connects, also in plain text, on an address that is not a loopback one",
       [](absl::string_view, CommandLine& c) {
         c.options.allow_no_identity = true;
         return absl::OkStatus();
       }},
      CallLimitFlag("max_connection_calls", "calls of one connection under way (512; 0: no limit)",
                    &CallLimitOptions::connection_calls),
      CallLimitFlag("max_identity_calls", "calls of one identity under way (512; 0: no limit)",
                    &CallLimitOptions::identity_calls),
      CallLimitFlag("max_identity_rate", "calls a second of one identity (0: no limit)",
                    &CallLimitOptions::identity_rate),
      MessageLimitFlag("max_connection_message_rate",
                       "messages a second on the streams of one connection (20000; 0: no limit)",
                       &MessageLimitOptions::connection_rate),
      MessageLimitFlag("max_identity_message_rate", "messages a second on the streams of one identity (0: no limit)",
                       &MessageLimitOptions::identity_rate),
      OwnerBytesFlag(0), OwnerBytesFlag(1), OwnerBytesFlag(2), OwnerBytesFlag(3), OwnerCountFlag(0), OwnerCountFlag(1),
      OwnerCountFlag(2), OwnerCountFlag(3), OwnerCountFlag(4), OwnerCountFlag(5),
      {"device", "auto|cpu|cuda[:N[,M...]]",
       "what computes (auto: the first GPU that works, else the CPU); cuda:0,1 serves two GPUs",
       [](absl::string_view v, CommandLine& c) {
         c.options.device = std::string(v);
         return ParseDevices(v).status();
       }},
      {"state_dir", "DIR",
       "an existing folder where volumes, matrices, transforms, open sessions and DICOM images that are not volumes yet "
       "are kept over a restart (none)",
       [](absl::string_view v, CommandLine& c) {
         c.options.state_dir = std::string(v);
         return v.empty() ? absl::InvalidArgumentError("must name a folder") : absl::OkStatus();
       }},
      {"audit_dir", "DIR", "an existing folder where every call and frame is recorded (none; docs/operate/audit.md)",
       [](absl::string_view v, CommandLine& c) {
         c.options.audit_dir = std::string(v);
         return v.empty() ? absl::InvalidArgumentError("must name a folder") : absl::OkStatus();
       }},
      {"audit_key", "FILE", "the key that makes the audit log unforgeable (none)",
       [](absl::string_view v, CommandLine& c) {
         c.options.audit_key = std::string(v);
         return v.empty() ? absl::InvalidArgumentError("must name a file") : absl::OkStatus();
       }},
      {"shared_memory", "PATH",
       "share memory with clients on this host; PATH: the unix-domain socket where they fetch it (none)",
       [](absl::string_view v, CommandLine& c) {
         c.options.shared_memory.socket = std::string(v);
         return v.empty() ? absl::InvalidArgumentError("must name a socket") : absl::OkStatus();
       }},
      {"shared_memory_uids", "N[,N...]", "users, besides the server's own, who may fetch it (none)",
       [](absl::string_view v, CommandLine& c) { return ParseUsers(v, &c.options.shared_memory.users); }},
      {"dicom_listen", "HOST:PORT", "where images are received by DICOM (C-STORE; none; docs/use/dicom.md)",
       [](absl::string_view v, CommandLine& c) { return ParseAddress(v, &c.options.dicom.listen); }},
      {"dicom_ae_title", "NAME", "the server's DICOM application entity (INTRAWARP)",
       [](absl::string_view v, CommandLine& c) {
         c.options.dicom.ae_title = std::string(v);
         return dimse::IsAeTitle(v) ? absl::OkStatus()
                                    : absl::InvalidArgumentError("must be 1 to 16 letters, digits, '_', '-' or '.'");
       }},
      DicomPathFlag("dicom_peers", "who may send images: lines of AE_TITLE HOST OWNER and limits",
                    &NodeOptions::peers),
      DicomPathFlag("dicom_remotes",
                    "archives to import from: lines of NAME get|move AE_TITLE HOST:PORT tls|plain, or NAME dicomweb "
                    "URL, and options",
                    &NodeOptions::remotes),
      DicomPathFlag("dicom_tls_cert", "the DICOM port's certificate chain (PEM), read at the start",
                    &NodeOptions::tls_cert),
      DicomPathFlag("dicom_tls_key", "its private key (PEM)", &NodeOptions::tls_key),
      DicomPathFlag("dicom_tls_ca", "the authorities (PEM) that certificates of DICOM peers come from",
                    &NodeOptions::tls_ca),
      {"dicom_insecure_any_address", nullptr,
       "receive DICOM in plain text, or without certificates, on an address that is not a loopback one",
       [](absl::string_view, CommandLine& c) {
         c.options.dicom.allow_insecure = true;
         return absl::OkStatus();
       }},
      DicomPathFlag("dicom_spool",
                    "an existing folder, for nothing else, for images that are not volumes yet (in --state_dir, or a "
                    "temporary one)",
                    &NodeOptions::spool),
      {"dicom_spool_bytes", "BYTES", "what that folder may hold (8GiB)",
       [](absl::string_view v, CommandLine& c) { return ParseBytes(v, &c.options.dicom.spool_bytes); }},
      {"dicom_max_associations", "N", "DICOM associations that are open (32)",
       [](absl::string_view v, CommandLine& c) { return ParseCount(v, &c.options.dicom.max_associations); }},
      {"dicom_timeout", "DURATION", "a DICOM peer that does not send the rest, or is slower than 16 KiB/s, is ended (30s)",
       [](absl::string_view v, CommandLine& c) { return ParsePositiveDuration(v, &c.options.dicom.timeout); }},
      {"dicom_idle_timeout", "DURATION", "a DICOM association without a message is ended after this (1m)",
       [](absl::string_view v, CommandLine& c) { return ParsePositiveDuration(v, &c.options.dicom.idle_timeout); }},
      {"dicom_quiet", "DURATION",
       "a series that does not say how many images it has becomes volumes after this time without one (30s)",
       [](absl::string_view v, CommandLine& c) { return ParsePositiveDuration(v, &c.options.dicom.quiet); }},
      {"resident_bytes", "BYTES",
       "memory of each device for resident objects (60 % of a GPU's, 35 % of the host's on the CPU)",
       [](absl::string_view v, CommandLine& c) { return ParseBytes(v, &c.options.limits.resident_capacity_bytes); }},
      {"pinned_bytes", "BYTES", "host memory for transfers (12 % of the host's, at most 8GiB)",
       [](absl::string_view v, CommandLine& c) { return ParseBytes(v, &c.options.limits.pinned_capacity_bytes); }},
      {"max_volume_bytes", "BYTES", "largest volume, as uploaded (4GiB)",
       [](absl::string_view v, CommandLine& c) { return ParseBytes(v, &c.options.limits.max_volume_bytes); }},
      {"max_matrix_bytes", "BYTES", "largest sparse matrix, as uploaded (4GiB)",
       [](absl::string_view v, CommandLine& c) { return ParseBytes(v, &c.options.limits.max_matrix_bytes); }},
      {"max_chunk_bytes", "BYTES", "largest chunk (1MiB)",
       [](absl::string_view v, CommandLine& c) { return ParseChunkBytes(v, &c.options.limits.max_chunk_bytes); }},
      {"max_transforms", "N", "stored transforms (4096)",
       [](absl::string_view v, CommandLine& c) { return ParseCount(v, &c.options.limits.max_transforms); }},
      {"max_uploads", "N", "unfinished uploads (64)",
       [](absl::string_view v, CommandLine& c) { return ParseCount(v, &c.options.limits.max_uploads); }},
      {"max_streams", "N", "bulk streams, registrations and products under way (64)",
       [](absl::string_view v, CommandLine& c) { return ParseCount(v, &c.options.limits.max_streams); }},
      {"max_queued_jobs", "N", "jobs of each class that wait for the device (64)",
       [](absl::string_view v, CommandLine& c) { return ParseCount(v, &c.options.limits.max_queued_jobs); }},
      {"upload_ttl", "DURATION", "an upload that nobody resumes is dropped after this (5m)",
       [](absl::string_view v, CommandLine& c) { return ParseDuration(v, &c.options.limits.upload_ttl); }},
      {"max_operations", "N", "operations, which go on without a call, that have not ended (64)",
       [](absl::string_view v, CommandLine& c) { return ParseCount(v, &c.options.limits.max_operations); }},
      {"max_run_time", "DURATION",
       "a registration, frame or product without a budget ends after it has computed for so long (10m; 0s: never)",
       [](absl::string_view v, CommandLine& c) { return ParseDuration(v, &c.options.limits.max_run_time); }},
      {"max_session_idle", "DURATION", "the longest time without a frame that a navigation session may ask for (1h)",
       [](absl::string_view v, CommandLine& c) { return ParsePositiveDuration(v, &c.options.limits.max_session_idle); }},
      {"max_sessions", "N", "navigation sessions that are open (8)",
       [](absl::string_view v, CommandLine& c) { return ParseCount(v, &c.options.limits.max_sessions); }},
      {"workspace_bytes", "BYTES", "memory of each device for the work of jobs",
       [](absl::string_view v, CommandLine& c) { return ParseBytes(v, &c.options.limits.workspace_capacity_bytes); }},
      {"result_ttl", "DURATION",
       "a registration's result whose request asks for no time of its own ends after this (24h)",
       [](absl::string_view v, CommandLine& c) { return ParseDuration(v, &c.options.limits.result_ttl); }},
      {"operation_ttl", "DURATION", "an operation that has ended is remembered for this long (24h)",
       [](absl::string_view v, CommandLine& c) { return ParseDuration(v, &c.options.limits.operation_ttl); }},
      {"max_connections", "N",
       "connections of known callers to the gRPC port (256); one more is closed; strangers have half as many",
       [](absl::string_view v, CommandLine& c) { return ParseCount(v, &c.options.limits.max_connections); }},
      {"max_calls", "N", "calls of all kinds under way (1024), besides as many that only ask for health or information",
       [](absl::string_view v, CommandLine& c) { return ParseCount(v, &c.options.limits.max_calls); }},
      {"stream_idle_timeout", "DURATION",
       "a stream whose client does not read, or not send the rest, is ended after this (30s; 0s: never)",
       [](absl::string_view v, CommandLine& c) { return ParseDuration(v, &c.options.limits.stream_idle_timeout); }},
      {"watchdog_timeout", "DURATION",
       "health turns off when a job does not check in, or the device not answer, for so long (30s; 0s: never)",
       [](absl::string_view v, CommandLine& c) { return ParseDuration(v, &c.options.watchdog.timeout); }},
      {"watchdog_exit", "DURATION",
       "exit with status 3 when the device hangs or is lost for so long after that (0s: never)",
       [](absl::string_view v, CommandLine& c) { return ParseDuration(v, &c.options.watchdog.exit_after); }},
      {"drain_timeout", "DURATION", "a stop waits so long for calls under way (10s)",
       [](absl::string_view v, CommandLine& c) { return ParseDuration(v, &c.options.drain_timeout); }},
      {"log_level", "debug|info|warning|error",
       "the least severity of the log's lines (info); `intrawarp server log_level` changes it in a running server",
       [](absl::string_view v, CommandLine& c) {
         const std::optional<Severity> level = ParseSeverity(v);
         if (!level) return absl::InvalidArgumentError("must be debug, info, warning or error");
         c.options.log_level = *level;
         return absl::OkStatus();
       }},
      {"reflection", nullptr, "serve gRPC reflection",
       [](absl::string_view, CommandLine& c) {
         c.options.reflection = true;
         return absl::OkStatus();
       }},
      {"config", "FILE", "read flags from FILE, one a line as NAME = VALUE; the command line wins over it (none)",
       [](absl::string_view v, CommandLine& c) {
         c.config_file = std::string(v);
         return v.empty() ? absl::InvalidArgumentError("must name a file") : absl::OkStatus();
       }},
      {"check_config", nullptr, "check the configuration and exit with 0 or 1; opens no port",
       [](absl::string_view, CommandLine& c) {
         c.check_config = true;
         return absl::OkStatus();
       }},
      {"version", nullptr, "print the version and exit",
       [](absl::string_view, CommandLine& c) {
         c.version = true;
         return absl::OkStatus();
       }},
      {"help", nullptr, "print this and exit",
       [](absl::string_view, CommandLine& c) {
         c.help = true;
         return absl::OkStatus();
       }},
  };
  return *flags;
}

// Null when there is none.
const Flag* FindFlag(absl::string_view name) {
  const auto found =
      std::find_if(Flags().begin(), Flags().end(), [name](const Flag& flag) { return name == flag.name; });
  return found == Flags().end() ? nullptr : &*found;
}

absl::Status SetFlag(absl::string_view argument, CommandLine& to) {
  absl::string_view name = argument;
  if (!absl::ConsumePrefix(&name, "--")) return absl::InvalidArgumentError(absl::StrCat(argument, ": is not a flag"));
  const size_t equals = name.find('=');
  const bool has_value = equals != absl::string_view::npos;
  const absl::string_view value = has_value ? name.substr(equals + 1) : absl::string_view();
  name = name.substr(0, equals);
  const Flag* const flag = FindFlag(name);
  if (flag == nullptr) return absl::InvalidArgumentError(absl::StrCat("--", name, ": there is no such flag"));
  if (has_value != (flag->value != nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat("--", name, has_value ? ": takes no value" : ": needs =VALUE"));
  }
  const absl::Status status = flag->set(value, to);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("--", name, ": ", status.message()));
}

// Only a command line can say these.
bool IsForCommandLine(absl::string_view name) {
  return name == "config" || name == "check_config" || name == "version" || name == "help";
}

absl::Status SetEntry(const ConfigEntry& entry, CommandLine& to) {
  const Flag* const flag = FindFlag(entry.key);
  if (flag == nullptr) return absl::InvalidArgumentError("there is no such flag");
  if (IsForCommandLine(entry.key)) return absl::InvalidArgumentError("stands on the command line alone");
  if (flag->value != nullptr) return flag->set(entry.value, to);
  if (entry.value == "true") return flag->set("", to);
  return entry.value == "false" ? absl::OkStatus() : absl::InvalidArgumentError("must be true or false");
}

absl::Status SetFromFile(const std::string& path, CommandLine& to) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<ConfigEntry> entries, ReadConfigFile(path));
  for (const ConfigEntry& entry : entries) {
    const absl::Status status = SetEntry(entry, to);
    if (status.ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": line ", entry.line, ": ", entry.key, ": ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseDevices(absl::string_view value) {
  if (value.empty()) return absl::InvalidArgumentError("must not be empty");
  absl::string_view list = value;
  if (!absl::ConsumePrefix(&list, "cuda:") || !absl::StrContains(list, ",")) {
    return std::vector<std::string>{std::string(value)};
  }
  std::vector<std::string> devices;
  for (const absl::string_view number : absl::StrSplit(list, ',')) {
    int ordinal = 0;
    if (!absl::SimpleAtoi(number, &ordinal) || ordinal < 0) {
      return absl::InvalidArgumentError("must be cuda: and numbers of GPUs, as cuda:0,1");
    }
    std::string device = absl::StrCat("cuda:", ordinal);
    if (std::find(devices.begin(), devices.end(), device) != devices.end()) {
      return absl::InvalidArgumentError(absl::StrCat("names ", device, " twice"));
    }
    devices.push_back(std::move(device));
  }
  return devices;
}

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments) {
  CommandLine given;
  for (const std::string& argument : arguments) INTRAWARP_RETURN_IF_ERROR(SetFlag(argument, given));
  if (given.config_file.empty()) return given;
  // The file first, then the command line over it.
  CommandLine command_line;
  INTRAWARP_RETURN_IF_ERROR(SetFromFile(given.config_file, command_line));
  for (const std::string& argument : arguments) INTRAWARP_RETURN_IF_ERROR(SetFlag(argument, command_line));
  return command_line;
}

namespace {

absl::Status CheckFolder(const char* flag, const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    return absl::FailedPreconditionError(absl::StrCat("--", flag, ": must be a folder that exists"));
  }
  if (access(path.c_str(), R_OK | W_OK | X_OK) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("--", flag, ": must be readable and writable"));
}

absl::Status CheckAudit(const ServerOptions& options) {
  INTRAWARP_RETURN_IF_ERROR(CheckFolder("audit_dir", options.audit_dir));
  if (options.audit_key.empty()) return absl::OkStatus();
  if (options.audit_dir.empty()) return absl::InvalidArgumentError("--audit_key: needs --audit_dir");
  const absl::Status read = audit::ReadKey(*options.audit_files, options.audit_key).status();
  return read.ok() ? read : absl::Status(read.code(), absl::StrCat("--audit_key: ", read.message()));
}

// The files say who may call, and no address is open to everybody by oversight.
absl::Status CheckAccess(const ServerOptions& options) {
  INTRAWARP_RETURN_IF_ERROR(CheckExposure(options.access, options.listen, options.allow_no_identity));
  INTRAWARP_RETURN_IF_ERROR(CheckIdentityLimits(options));
  Metrics metrics(BuildInfo(), {"none"}, {}, options.seams.system_now());
  return AccessControl(options.access, options.call_limits, metrics, options.seams).Load();
}

}  // namespace

absl::Status CheckIdentityLimits(const ServerOptions& options) {
  if (options.access.has_identities()) return absl::OkStatus();
  const ServerLimits none;
  std::vector<std::pair<const char*, bool>> given = {
      {"max_identity_calls", options.call_limits.identity_calls != CallLimitOptions().identity_calls},
      {"max_identity_rate", options.call_limits.identity_rate != CallLimitOptions().identity_rate},
      {"max_identity_message_rate", options.message_limits.identity_rate != MessageLimitOptions().identity_rate}};
  for (const OwnerBytes& limit : kOwnerBytes) {
    given.emplace_back(limit.name, options.limits.*limit.to != none.*limit.to);
  }
  for (const OwnerCount& limit : kOwnerCounts) {
    given.emplace_back(limit.name, options.limits.*limit.to != none.*limit.to);
  }
  for (const auto& [flag, set] : given) {
    if (set) return absl::InvalidArgumentError(absl::StrCat("--", flag, ": needs --tokens or --identities"));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const ServerOptions& options) {
  if (options.listen == options.http && !absl::EndsWith(options.listen, ":0")) {
    return absl::FailedPreconditionError("--http: must be another address than --listen");
  }
  INTRAWARP_RETURN_IF_ERROR(CheckAccess(options));
  INTRAWARP_RETURN_IF_ERROR(CheckFolder("state_dir", options.state_dir));
  INTRAWARP_RETURN_IF_ERROR(CheckAudit(options));
  INTRAWARP_RETURN_IF_ERROR(CheckSharedMemoryOptions(options.shared_memory));
  INTRAWARP_RETURN_IF_ERROR(CheckNodeOptions(options.dicom, options.access.has_identities()));
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<std::string> specs, ParseDevices(options.device));
  for (const std::string& spec : specs) {
    const absl::StatusOr<std::unique_ptr<Device>> device = options.open_device(spec);
    if (!device.ok()) {
      return absl::Status(device.status().code(), absl::StrCat("--device: ", device.status().message()));
    }
  }
  return absl::OkStatus();
}

std::string CommandLineHelp() {
  std::string help = "intrawarpd: registration of medical images over gRPC\n\n";
  for (const Flag& flag : Flags()) {
    std::string left = absl::StrCat("  --", flag.name, flag.value == nullptr ? "" : "=");
    if (flag.value != nullptr) absl::StrAppend(&left, flag.value);
    left.resize(std::max<size_t>(left.size() + 2, 30), ' ');
    absl::StrAppend(&help, left, flag.help, "\n");
  }
  return help;
}

}  // namespace intrawarp::server
