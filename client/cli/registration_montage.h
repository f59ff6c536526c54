// SPDX-License-Identifier: Apache-2.0
// What the montage of a registration shows, fetched from the server. Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_REGISTRATION_MONTAGE_H_
#define INTRAWARP_CLIENT_CLI_REGISTRATION_MONTAGE_H_

#include <string>

#include "absl/status/status.h"
#include "client/cli/session.h"
#include "client/cpp/grid_data.h"

namespace intrawarp {

struct MontageInputs {
  GridData fixed;
  // The moving image on the fixed grid before the registration: through `initial`, or as the headers place it.
  GridData start;
};

// `fixed` and `moving` as on the command line; `initial` is transforms/ID, a matrix file, or empty.
absl::Status FetchMontageInputs(const std::string& fixed, const std::string& moving, const std::string& initial,
                                Session& session, Temporaries& temporaries, MontageInputs* inputs);

absl::Status WriteMontageFile(const std::string& path, const MontageInputs& inputs, const GridData& warped,
                              const GridData& field);

}  // namespace intrawarp

#endif  // INTRAWARP_CLIENT_CLI_REGISTRATION_MONTAGE_H_
