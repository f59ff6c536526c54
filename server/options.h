// SPDX-License-Identifier: Apache-2.0
// The configuration of a server, and the command line that sets it.
#ifndef INTRAWARP_SERVER_OPTIONS_H_
#define INTRAWARP_SERVER_OPTIONS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/device/device.h"
#include "engine/schedule/scheduling_policy.h"
#include "server/base/names.h"
#include "server/base/seams.h"
#include "server/context/limits.h"
#include "server/context/server_context.h"
#include "server/identity/call_limits.h"
#include "server/identity/exposure.h"
#include "server/identity/message_limits.h"
#include "server/monitor/log.h"
#include "server/monitor/watchdog.h"
#include "server/pacs/node_options.h"
#include "server/page/page_options.h"
#include "server/session/shared_memory.h"
#include "server/state/file_layer.h"

namespace intrawarp::server {

struct ServerOptions {
  // HOST:PORT; port 0 takes a free one.
  std::string listen = "127.0.0.1:50051";
  std::string http = "127.0.0.1:9464";
  // Who may call, and what a caller may have under way.
  AccessFiles access;
  CallLimitOptions call_limits;
  MessageLimitOptions message_limits;
  // A connection on which nobody made a call in this time is closed.
  std::chrono::milliseconds first_call_timeout{10000};
  // A connection that brought more than belongs to its calls, for so long, is closed, too.
  std::chrono::milliseconds unaccounted_timeout{2000};
  // Serves callers without an identity, also in plain text, on an address that is not a loopback one.
  bool allow_no_identity = false;
  // A value that ParseDevices takes.
  std::string device = "auto";
  // The folder of durable objects; empty: none are durable.
  std::string state_dir;
  // The files of that folder. A test can put others in their place.
  state::FileLayer* state_files = &state::PosixFiles();
  // The folder of the audit log; empty: there is none.
  std::string audit_dir;
  // The file of its key; empty: it has none.
  std::string audit_key;
  // The files of that folder, and the key's. A test can put others in their place.
  state::FileLayer* audit_files = &state::PosixFiles();
  // The memory that the server shares with clients on its host; none without a socket.
  SharedMemoryOptions shared_memory;
  // The page; none without an address.
  PageOptions page;
  // The DICOM port; none without an address.
  NodeOptions dicom;
  // Capacities that are 0 are chosen from the device's and the host's memory.
  ServerLimits limits;
  bool reflection = false;
  // The log level of the process; Server takes no notice of it.
  Severity log_level = Severity::kInfo;
  // How long a stop waits for calls under way.
  std::chrono::milliseconds drain_timeout{10000};
  WatchdogOptions watchdog;
  Seams seams = SystemSeams();
  // Opens one device. A test can put another one in its place.
  std::function<absl::StatusOr<std::unique_ptr<Device>>(absl::string_view spec)> open_device = OpenDevice;
  // The jobs that have started; empty: the scheduler's.
  Watchdog::RunningJobs running_jobs;
  // Called on the housekeeping thread when a hang or a loss has lasted for watchdog.exit_after. May be empty.
  std::function<void()> give_up;
  // Lanes, slots and shares, not the capacities; unset: what suits the device.
  std::optional<SchedulingOptions> scheduling;
};

// The devices that a value of --device names, each as OpenDevice takes it: "cuda:0,1,2" names three, any other value is
// one by itself. INVALID_ARGUMENT for an empty value, and for a list that holds anything but different numbers.
absl::StatusOr<std::vector<std::string>> ParseDevices(absl::string_view value);

struct CommandLine {
  ServerOptions options;
  // The path that --config names; empty: none.
  std::string config_file;
  // Only to look whether a server could start with these options.
  bool check_config = false;
  // Only to print a configuration file that shows every flag.
  bool print_config = false;
  bool help = false;
  bool version = false;
};

// Arguments without the program's name, as --name=value; a size takes a suffix KiB, MiB, GiB or TiB, a duration a unit
// (500ms, 30s, 5m). --config=FILE reads a file of flags first (config_file.h), so that the command line wins.
// INVALID_ARGUMENT, naming the flag and for the file its line, for what it does not understand; errors of reading FILE.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments);

// INVALID_ARGUMENT names a limit for each identity that a server without identities would never apply.
absl::Status CheckIdentityLimits(const ServerOptions& options);

// Whether a server could start with these options, without opening a port or touching the state: the devices open, the
// state directory is a folder that may be written to, the two addresses differ. FAILED_PRECONDITION or OpenDevice's
// error, naming the flag.
absl::Status CheckOptions(const ServerOptions& options);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_OPTIONS_H_
