// SPDX-License-Identifier: Apache-2.0
#include "server/options.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/flags.h"
#include "engine/base/status_macros.h"
#include "io/file/config_file.h"
#include "server/audit/audit_chain.h"
#include "server/flags.h"
#include "server/identity/exposure.h"
#include "server/job/admission_metrics.h"
#include "server/pacs/dicom_node.h"
#include "server/rpc/access_control.h"
#include "server/rpc/rpc_metrics.h"

namespace intrawarp::server {
namespace {

// The value of a flag that the syntax knows.
absl::Status SetFlag(const std::string& argument, CommandLine& to) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(argument.substr(2), absl::MaxSplits('=', 1));
  const auto& [name, value] = parts;
  const absl::Status status = FindFlag(name)->member.set(value, to);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("--", name, ": ", status.message()));
}

absl::Status SetFlags(const std::vector<std::string>& arguments, CommandLine& to) {
  for (const std::string& argument : arguments) INTRAWARP_RETURN_IF_ERROR(SetFlag(argument, to));
  return absl::OkStatus();
}

absl::Status SetEntry(const io::ConfigEntry& entry, CommandLine& to) {
  const Flag* const flag = FindFlag(entry.key);
  if (flag == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("there is no such flag", NearestFlag(ServerSyntax(), entry.key)));
  }
  if (flag->is_command) return absl::InvalidArgumentError("can only be given on the command line");
  if (flag->value != nullptr) return flag->member.set(entry.value, to);
  if (entry.value == "true") return flag->member.set("", to);
  return entry.value == "false" ? absl::OkStatus() : absl::InvalidArgumentError("must be true or false");
}

absl::Status SetFromFile(const std::string& path, CommandLine& to) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<io::ConfigEntry> entries, io::ReadConfigFile(path));
  for (const io::ConfigEntry& entry : entries) {
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
  INTRAWARP_RETURN_IF_ERROR(ParseFlags(ServerSyntax(), arguments).status());
  CommandLine given;
  INTRAWARP_RETURN_IF_ERROR(SetFlags(arguments, given));
  if (given.config_file.empty()) return given;
  // The file first, then the command line over it.
  CommandLine command_line;
  INTRAWARP_RETURN_IF_ERROR(SetFromFile(given.config_file, command_line));
  INTRAWARP_RETURN_IF_ERROR(SetFlags(arguments, command_line));
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
  INTRAWARP_RETURN_IF_ERROR(CheckPageExposure(options.page, options.access, options.allow_no_identity));
  INTRAWARP_RETURN_IF_ERROR(CheckIdentityLimits(options));
  // Nobody reads them.
  Registry registry;
  const RpcMetrics metrics(registry, {});
  const AdmissionMetrics admission(registry, {});
  return AccessControl(options.access, options.call_limits, metrics, admission, options.seams).Load();
}

}  // namespace

absl::Status CheckIdentityLimits(const ServerOptions& options) {
  if (options.access.has_identities()) return absl::OkStatus();
  for (const FlagSection& section : FlagSections()) {
    for (const Flag& flag : section.flags) {
      if (!flag.needs_identities || !flag.member.is_changed(options)) continue;
      return absl::InvalidArgumentError(absl::StrCat("--", flag.name, ": needs --tokens or --identities"));
    }
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

}  // namespace intrawarp::server
