// SPDX-License-Identifier: Apache-2.0
// LowerPriority: the calling thread computes when no frame wants its core. For threads that work for viewers.
#ifndef INTRAWARP_SERVER_PAGE_LOW_PRIORITY_H_
#define INTRAWARP_SERVER_PAGE_LOW_PRIORITY_H_

#include <sys/resource.h>
#include <unistd.h>

namespace intrawarp::server {

// On Linux the nice value of a thread is its own. A refusal leaves the thread as it was.
inline void LowerPriority() {
  constexpr int kNice = 10;
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_LOW_PRIORITY_H_
