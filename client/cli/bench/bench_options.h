// SPDX-License-Identifier: Apache-2.0
// The options of intrawarp bench, and how flags become them. Plain values, thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_BENCH_BENCH_OPTIONS_H_
#define INTRAWARP_CLIENT_CLI_BENCH_BENCH_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/flags.h"
#include "intrawarp/v1/registration.pb.h"

namespace intrawarp::cli::bench {

enum class LoadKind { kNavigate, kRegister, kNone };

// The registrations of one load: of frames, or single ones.
struct Task {
  // Voxels along each axis.
  int size = 0;
  // The value of --method of register: "affine,ffd".
  std::string method;
  v1::RegistrationOptions options;
};

struct LoadOptions {
  LoadKind kind = LoadKind::kNavigate;
  int clients = 1;
  // "none", or the word of an encoding.
  std::string encoding;
  v1::FieldRequest field;
  // Each client calls so often; 0: the next call begins when the last one is answered.
  double rate_hz = 0;
  // A call that is answered later than this after it was due is late; 0: none is.
  double limit_ms = 0;
  // The server's deadline for a frame; 0: none.
  int64_t deadline_ms = 0;
  bool latest_wins = false;
  // Frames and fields go through memory that the server shares; a session without it does not begin.
  bool shared_memory = false;

  bool wants_field() const { return encoding != "none"; }
};

// Clients that work without pause, of each kind; 0: none.
struct FloodOptions {
  int fem_products = 0;
  int random_products = 0;
  int64_t matrix_rows = 0;
  int uploads = 0;
  int64_t upload_bytes = 0;
  int registrations = 0;
  std::string registration_method;
  v1::RegistrationOptions registration;

  bool any() const { return fem_products + random_products + uploads + registrations > 0; }
};

struct CapacityOptions {
  int max_sessions = 0;
  // The frames that may be late, in percent of those that were due.
  double late_percent = 0;
};

struct BenchOptions {
  LoadOptions load;
  FloodOptions floods;
  double seconds = 0;
  // Floods run for so long before the load begins.
  double warmup = 0;
  // How long answers are waited for after the end.
  double grace = 0;
  uint32_t seed = 0;
  bool find_capacity = false;
  CapacityOptions capacity;
  // One; with find_capacity one for each size and method, sizes first.
  std::vector<Task> tasks;
};

std::vector<FlagSpec> BenchFlagSpecs();

// INVALID_ARGUMENT (a wrong command line) names the flag: for values that are none, for flags that nothing uses, and
// for a load of more calls or images than this program holds.
absl::StatusOr<BenchOptions> ParseBenchFlags(const ParsedFlags& flags);

// INVALID_ARGUMENT (a wrong command line) for a server that is not on this machine, unless --any_address is given.
absl::Status CheckTarget(const ParsedFlags& flags, const std::string& target);
// True for "localhost:PORT", a loopback address, and a socket of this machine ("unix:PATH").
bool IsOnThisMachine(absl::string_view target);

}  // namespace intrawarp::cli::bench

#endif  // INTRAWARP_CLIENT_CLI_BENCH_BENCH_OPTIONS_H_
