// SPDX-License-Identifier: Apache-2.0
// Fields as the server sends them, into files. Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_FIELD_FILE_H_
#define INTRAWARP_CLIENT_CLI_FIELD_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "client/cpp/grid_data.h"
#include "intrawarp/v1/common.pb.h"

namespace intrawarp::cli {

// A .nii or .nii.gz file of displacements or, when that is what was asked for, of velocities, with the affine part
// (`matrix`) of their transform. The path is in the message of an error.
absl::Status WriteFieldFile(const std::string& path, v1::FieldEncoding encoding, const v1::AffineMap& affine_part,
                            const client::GridData& field);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_FIELD_FILE_H_
