// SPDX-License-Identifier: Apache-2.0
// The montage of a registration, from what the command line was given. Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_REGISTRATION_MONTAGE_H_
#define INTRAWARP_CLIENT_CLI_REGISTRATION_MONTAGE_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/session.h"
#include "client/cpp/grid_data.h"
#include "io/montage.h"
#include "io/png.h"

namespace intrawarp::cli {

// The intensities of volumes/ID, downloaded, or of a file.
absl::StatusOr<io::HostImage> FetchImage(const std::string& x, Session& session);

// `warped` and `field` lie on the fixed grid.
absl::StatusOr<io::Picture> RenderRegistration(const io::HostImage& fixed, const io::HostImage& moving,
                                               client::GridData warped, client::GridData field);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_REGISTRATION_MONTAGE_H_
