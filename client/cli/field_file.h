// SPDX-License-Identifier: Apache-2.0
// Fields as the server sends them, into files. Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_FIELD_FILE_H_
#define INTRAWARP_CLIENT_CLI_FIELD_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "client/cpp/grid_data.h"
#include "intrawarp/v1/common.pb.h"

namespace intrawarp::cli {

// A file of displacements, in the format of its suffix, or, when that is what was asked for, of velocities (NIfTI),
// with the affine part of their transform. The path is in the message of an error.
absl::Status WriteFieldFile(const std::string& path, v1::FieldEncoding encoding, const v1::AffineMap& affine_part,
                            const client::GridData& field);

// INVALID_ARGUMENT (a wrong command line) for a velocity that would go into another format than NIfTI. `flag` names the
// path.
absl::Status CheckFieldFormat(const v1::FieldRequest& field, const std::string& flag, const std::string& path);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_FIELD_FILE_H_
