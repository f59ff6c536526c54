// SPDX-License-Identifier: Apache-2.0
// What was built.
#ifndef INTRAWARP_SERVER_VERSION_H_
#define INTRAWARP_SERVER_VERSION_H_

#include "server/metrics.h"

namespace intrawarp {

BuildInfo ThisBuild();

}  // namespace intrawarp

#endif  // INTRAWARP_SERVER_VERSION_H_
