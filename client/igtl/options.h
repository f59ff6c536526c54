// SPDX-License-Identifier: Apache-2.0
// The options of intrawarp-igtl: flags of its command line and, with the same names, lines of its configuration file
// (io/file/config_file.h). Plain values; thread-safe functions.
#ifndef INTRAWARP_CLIENT_IGTL_OPTIONS_H_
#define INTRAWARP_CLIENT_IGTL_OPTIONS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cpp/client.h"
#include "client/igtl/codec/image.h"
#include "client/igtl/link_loop.h"
#include "engine/base/flags.h"
#include "engine/base/host_port.h"
#include "intrawarp/v1/registration.pb.h"

namespace intrawarp::igtl {

struct BridgeOptions {
  std::string server;
  client::ClientOptions client;
  std::optional<HostPort> listen;
  std::vector<HostPort> devices;
  std::vector<HostPort> consumers;
  std::optional<HostPort> metrics;
  LinkOptions link;

  // "volumes/ID"; and whether it is the fixed image, so that frames are the moving ones.
  std::string volume;
  bool is_volume_fixed = false;
  std::string method = "auto";
  bool starts_at_once = true;
  bool shares_memory = false;
  int frame_deadline_ms = 0;
  double error_limit_mm = 0;
  bool uses_review = false;
  int max_field_age_ms = 2000;
  int field_points = 100000;

  // The IMAGE that frames are taken of; empty: any.
  std::string image_device;
  // The TRANSFORM that the grid of an image is moved by; empty: none.
  std::string pose_device;
  // Poses and points that are mapped; empty: all.
  std::vector<std::string> tools;
  std::string mapped_suffix = "Mapped";
  std::string device_prefix = "Intrawarp";
  Coordinates coordinates = Coordinates::kRas;
  uint16_t header_version = 2;
  bool sends_field = true;
  bool sends_warped = false;
  int status_interval_ms = 200;
  int tracking_interval_ms = 0;
};

CommandSyntax BridgeSyntax();

// The options of a command line with the options of the file that its --config names; the command line counts.
// INVALID_ARGUMENT, naming the flag or the line; errors of ReadConfigFile.
absl::StatusOr<BridgeOptions> ParseOptions(absl::Span<const std::string> arguments);

// "auto", or names of stages with commas between them: rigid, affine, search, ffd, log-demons. INVALID_ARGUMENT.
absl::StatusOr<v1::RegistrationOptions> StagesOfMethod(absl::string_view method);

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_OPTIONS_H_
