// SPDX-License-Identifier: Apache-2.0
// What was built.
#ifndef INTRAWARP_SERVER_BASE_VERSION_H_
#define INTRAWARP_SERVER_BASE_VERSION_H_

#include "server/monitor/metrics.h"

namespace intrawarp::server {

BuildInfo ThisBuild();

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BASE_VERSION_H_
