// SPDX-License-Identifier: Apache-2.0
#include "client/cli/version.h"

#include "revision.h"

namespace intrawarp::cli {

const char* const kVersion = INTRAWARP_VERSION;
const char* const kRevision = INTRAWARP_REVISION;

}  // namespace intrawarp::cli
