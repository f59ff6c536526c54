// SPDX-License-Identifier: Apache-2.0
#include "server/base/version.h"

#include "revision.h"

namespace intrawarp::server {

BuildInfo ThisBuild() { return {INTRAWARP_VERSION, INTRAWARP_REVISION, INTRAWARP_CUDA_VERSION, ""}; }

}  // namespace intrawarp::server
