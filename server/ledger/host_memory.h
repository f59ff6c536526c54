// SPDX-License-Identifier: Apache-2.0
// The host memory that this process may use.
#ifndef INTRAWARP_SERVER_LEDGER_HOST_MEMORY_H_
#define INTRAWARP_SERVER_LEDGER_HOST_MEMORY_H_

#include <cstdint>
#include <string>

namespace intrawarp::server {

// Where the kernel shows control groups; tests put files of their own there.
struct ControlGroupPaths {
  std::string mount = "/sys/fs/cgroup";
  std::string membership = "/proc/self/cgroup";
};

// The least of the physical memory and of the memory limits of the control groups around this process (memory.max of
// version 2, memory.limit_in_bytes of version 1). A limit that is "max", unreadable or malformed counts as none.
// Thread-safe.
int64_t HostMemoryLimit(const ControlGroupPaths& paths = {});

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_LEDGER_HOST_MEMORY_H_
