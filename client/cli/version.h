// SPDX-License-Identifier: Apache-2.0
// What was built.
#ifndef INTRAWARP_CLIENT_CLI_VERSION_H_
#define INTRAWARP_CLIENT_CLI_VERSION_H_

namespace intrawarp::cli {

// MAJOR.MINOR.PATCH, and what git called the revision when this was built.
extern const char* const kVersion;
extern const char* const kRevision;

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_VERSION_H_
