// SPDX-License-Identifier: Apache-2.0
// The montage of a registration, from what the command line was given. Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_REGISTRATION_MONTAGE_H_
#define INTRAWARP_CLIENT_CLI_REGISTRATION_MONTAGE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/command_context.h"
#include "client/cpp/grid_data.h"
#include "engine/geometry/vec.h"
#include "intrawarp/v1/registration.pb.h"
#include "io/picture/montage.h"
#include "io/picture/png.h"

namespace intrawarp::cli {

struct FetchedImage {
  io::HostImage image;
  // A defined term of DICOM's Modality; empty: unknown.
  std::string modality;
};

// The intensities of volumes/ID, downloaded, or of a file.
absl::StatusOr<FetchedImage> FetchImage(const std::string& x, CommandContext& context);

struct MontageInputs {
  FetchedImage fixed, moving;
  // On the fixed grid.
  client::GridData warped, field;
  // Where the slices go through, LPS mm (io::MontageOptions).
  std::optional<Vec3d> at;
};

// The report gives verdict, reasons, predicted error, versions and times; no name of a file or person is in the
// picture.
absl::StatusOr<io::Picture> RenderRegistration(MontageInputs inputs, const std::string& method,
                                               const v1::Report& report);

// The options of the montage that follow from the report and the modalities.
io::MontageOptions MontageOptionsOf(const std::string& fixed_modality, const std::string& moving_modality,
                                    const std::string& method, const v1::Report& report);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_REGISTRATION_MONTAGE_H_
