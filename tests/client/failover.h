// SPDX-License-Identifier: Apache-2.0
// Three servers under a load of sessions and uploads, behind the client's own routing or behind nginx; the one with the
// most streams is killed and started anew. Tells what the clients saw.
#ifndef INTRAWARP_TESTS_CLIENT_FAILOVER_H_
#define INTRAWARP_TESTS_CLIENT_FAILOVER_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace intrawarp::client {

struct FailoverPlan {
  std::string intrawarpd;
  // Empty: the clients route by themselves. Otherwise nginx's program and the text of its configuration.
  std::string nginx;
  std::string nginx_conf;
  int sessions = 6;
  double rate_hz = 10;
  // Voxels along each edge of a volume.
  int side = 24;
  // The time of the load before the kill, from it to the new start, and after that.
  std::chrono::milliseconds before{2000}, without{3000}, after{2000};
  uint32_t seed = 1;
};

struct SessionOutcome {
  // Where it was and where it ended; the same address behind nginx.
  std::string from, to;
  // Answered well, and sent again since the stream broke before their answer.
  int frames = 0, resent = 0;
  // Frames that the server answered with an error.
  int failed = 0;
  // How often the session was resumed where it was, and opened anew; how often it was opened anew after an answer with
  // verdict ok, and how often it began with the whole transform.
  int resumed = 0, reopened = 0, reopened_after_ok = 0, whole_starts = 0;
  // Its frames are registered by ffd and sent as control points; those of the others are rigid, without fields.
  bool is_ffd = false;
  // Why its streams ended.
  std::vector<std::string> causes;
  // The longest time between two good answers, before the kill and after it.
  double gap_before_ms = 0, gap_after_ms = 0;
  // Since the kill: when the first break was noticed, the session open again, and its first frame answered well; below
  // 0: never.
  double noticed_ms = -1, open_ms = -1, whole_again_ms = -1;
  // The median time of a frame while no server was missing.
  double frame_ms = 0;
  // The farthest that a frame's map was from the truth at the middle of the volume.
  double worst_mm = 0;
  // Why it gave up.
  absl::Status end;
};

struct FailoverOutcome {
  std::vector<SessionOutcome> sessions;
  std::string killed;
  // Volumes whose upload was acknowledged, those among them that no server had with these bytes in the end, attempts
  // that failed by their cause, and uploads that were given up.
  int acknowledged = 0, lost = 0, given_up = 0;
  std::map<std::string, int> upload_errors;
  // Until the killed server served again.
  double restart_ms = 0;
};

// An error means that the scene could not be set up.
absl::StatusOr<FailoverOutcome> RunFailover(const FailoverPlan& plan);

}  // namespace intrawarp::client

#endif  // INTRAWARP_TESTS_CLIENT_FAILOVER_H_
