// SPDX-License-Identifier: Apache-2.0
// The options that register and navigate share, and how they become stages. Thread-safe functions, plain values.
#ifndef INTRAWARP_CLIENT_CLI_REGISTRATION_FLAGS_H_
#define INTRAWARP_CLIENT_CLI_REGISTRATION_FLAGS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/flags.h"
#include "intrawarp/v1/registration.pb.h"

namespace intrawarp::cli {

// --method, --metric, --levels, --iterations, flags of ffd and log-demons, masks, weights, --initial, --budget_ms,
// --best_effort, --keep_deformation, --find_missing_tissue, --landmarks, --unmoved_points, --error_limit_mm. Without
// --method it is auto.
std::vector<FlagSpec> RegistrationFlagSpecs();

// Whether this flag of RegistrationFlagSpecs names an image, a transform or a file of points: a program that makes its
// images itself has no use for it.
bool NamesAnInput(const std::string& flag);

// --require_ok, of register and navigate.
FlagSpec RequireOkFlagSpec();

// --assume_orientation, of the commands that read volumes (CommandContext::AssumeOrientation).
FlagSpec OrientationFlagSpec();

struct RegistrationFlags {
  // The words as given, "affine,ffd"; "auto" without any.
  std::string method;
  // Stages (none for auto), budget, best_effort, keep_deformation and error_limit_mm are filled in; masks, weights, the
  // start and the landmarks are resources and files that are read later.
  v1::RegistrationOptions options;
  std::string fixed_mask;
  std::string moving_mask;
  std::string fixed_weight;
  std::string moving_weight;
  std::string initial;
  std::string landmarks;
  std::string unmoved_points;
};

// Options govern the last stage. A rigid or affine stage before it uses SSD when the last stage does, and NGF, which
// serves unlike intensities best, otherwise. INVALID_ARGUMENT (a wrong command line) for a method that does not exist
// and for an option that no stage uses.
absl::StatusOr<RegistrationFlags> ParseRegistrationFlags(const ParsedFlags& flags);

// True when the last stage is of that method; that of auto is ffd.
bool EndsIn(v1::Stage::MethodCase method, const v1::RegistrationOptions& options);

// INVALID_ARGUMENT (a wrong command line) for a --field_encoding that the last stage has not.
absl::Status CheckFieldEncoding(const ParsedFlags& flags, const v1::RegistrationOptions& options);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_REGISTRATION_FLAGS_H_
