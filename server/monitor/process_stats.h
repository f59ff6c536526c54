// SPDX-License-Identifier: Apache-2.0
// ProcessStats: what the kernel knows of this process, for the metrics process_*.
#ifndef INTRAWARP_SERVER_MONITOR_PROCESS_STATS_H_
#define INTRAWARP_SERVER_MONITOR_PROCESS_STATS_H_

#include <cstdint>

namespace intrawarp::server {

struct ProcessStats {
  double cpu_seconds = 0;  // in user and in kernel mode, of all threads
  int64_t virtual_bytes = 0;
  int64_t resident_bytes = 0;
  int64_t threads = 0;
  int64_t open_fds = 0;
  int64_t max_fds = 0;
};

// Reads /proc; figures that it does not give are 0. Safe for concurrent use.
ProcessStats ReadProcessStats();

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_MONITOR_PROCESS_STATS_H_
