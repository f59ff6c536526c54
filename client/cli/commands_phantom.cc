// SPDX-License-Identifier: Apache-2.0
// intrawarp phantom: a pair of images with a known deformation, as files.
#include <array>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "client/phantom/phantom.h"
#include "engine/base/status_macros.h"
#include "io/file.h"
#include "io/matrix_text.h"
#include "io/nifti.h"
#include "io/points.h"

namespace intrawarp::cli {
namespace {

// "160x160x120", "160,160,120", or one number for all three axes.
absl::StatusOr<std::array<double, 3>> ParseTriple(const ParsedFlags& flags, const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(flags.String(name), absl::ByAnyChar("x,"));
  std::array<double, 3> triple{};
  bool valid = parts.size() == 3 || parts.size() == 1;
  for (size_t i = 0; valid && i < 3; ++i) valid = absl::SimpleAtod(parts[parts.size() == 1 ? 0 : i], &triple[i]);
  if (valid) return triple;
  return UsageError(absl::InvalidArgumentError(
      absl::StrCat("--", name, ": needs three numbers, as in --", name, "=1x2x3: ", flags.String(name))));
}

absl::Status SetSize(const ParsedFlags& flags, Int3* size) {
  if (!flags.Has("size")) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(const auto triple, ParseTriple(flags, "size"));
  for (int i = 0; i < 3; ++i) {
    const double n = triple[static_cast<size_t>(i)];
    if (!(n >= 1 && n <= kMaxAxis && n == static_cast<int>(n))) {
      return UsageError(absl::InvalidArgumentError(absl::StrCat("--size: must be whole numbers from 1 to ", kMaxAxis)));
    }
    (*size)[i] = static_cast<int>(n);
  }
  return absl::OkStatus();
}

// Fewer voxels are larger ones: the anatomy, and with it the amplitude that it takes, stay. A slice is as thick as
// before.
void SetSpacing(const Int3& size, phantom::PhantomOptions* options) {
  const phantom::PhantomOptions whole;
  for (int a = 0; a < (size.z == 1 ? 2 : 3); ++a) {
    options->spacing[a] = whole.spacing[a] * whole.size[a] / size[a];
  }
}

absl::StatusOr<phantom::PhantomOptions> ParseOptions(const ParsedFlags& flags) {
  phantom::PhantomOptions options;
  INTRAWARP_RETURN_IF_ERROR(SetSize(flags, &options.size));
  SetSpacing(options.size, &options);
  if (flags.Has("spacing")) {
    INTRAWARP_ASSIGN_OR_RETURN(const auto triple, ParseTriple(flags, "spacing"));
    options.spacing = {triple[0], triple[1], triple[2]};
  }
  options.seed = static_cast<uint32_t>(flags.Integer("seed", options.seed));
  options.amplitude_mm = flags.Number("amplitude_mm", options.amplitude_mm);
  options.invert_intensities = flags.Has("invert");
  if (flags.Has("affine")) {
    const absl::StatusOr<AffineMap> affine = io::ReadMatrix(flags.String("affine"));
    if (!affine.ok()) return Annotate(affine.status(), flags.String("affine"));
    options.affine = *affine;
  }
  return options;
}

absl::Status WriteAll(const phantom::Phantom& phantom, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Annotate(io::FileError("cannot be created", error.value()), folder);
  const auto path = [&](const char* name) { return absl::StrCat(folder, "/", name); };
  const std::pair<const char*, absl::Status> written[] = {
      {"fixed.nii.gz", io::WriteNifti(path("fixed.nii.gz"), phantom.fixed)},
      {"moving.nii.gz", io::WriteNifti(path("moving.nii.gz"), phantom.moving)},
      {"mask.nii.gz", io::WriteNifti(path("mask.nii.gz"), phantom.body_mask)},
      {"field.nii.gz", io::WriteField(path("field.nii.gz"), phantom.field)},
      {"landmarks_fixed.csv", io::WritePoints(path("landmarks_fixed.csv"), phantom.fixed_landmarks)},
      {"landmarks_moving.csv", io::WritePoints(path("landmarks_moving.csv"), phantom.moving_landmarks)},
  };
  for (const auto& [name, status] : written) INTRAWARP_RETURN_IF_ERROR(Annotate(status, path(name)));
  for (const auto& [name, status] : written) std::printf("%s\n", path(name).c_str());
  return absl::OkStatus();
}

absl::Status MakePhantomFiles(const ParsedFlags& flags, Session&) {
  INTRAWARP_ASSIGN_OR_RETURN(const phantom::PhantomOptions options, ParseOptions(flags));
  const absl::StatusOr<phantom::Phantom> phantom = phantom::MakePhantom(options);
  if (absl::IsInvalidArgument(phantom.status())) return UsageError(Annotate(phantom.status(), "phantom"));
  INTRAWARP_RETURN_IF_ERROR(phantom.status());
  return WriteAll(*phantom, flags.String("out"));
}

}  // namespace

std::vector<Command> PhantomCommands() {
  return {
      {.name = "phantom",
       .summary = "make a liver-like pair with a known deformation; needs no server",
       .syntax =
           {.flags = {{.name = "out", .placeholder = "DIR", .help = "where the files go", .required = true},
                      {.name = "size", .placeholder = "NXxNYxNZ", .help = "voxels; default 160x160x120; NZ 1: a slice"},
                      {.name = "spacing",
                       .placeholder = "DXxDYxDZ",
                       .help = "mm between voxels; default: a field of view of 320x320x240 mm, 2x2x2 for 160x160x120"},
                      {.name = "seed",
                       .type = FlagType::kInteger,
                       .placeholder = "N",
                       .help = "of texture, vessels and noise; default 1",
                       .minimum = 0,
                       .maximum = 4294967295.0},
                      {.name = "amplitude_mm",
                       .type = FlagType::kNumber,
                       .placeholder = "MM",
                       .help = "how far the abdominal wall moves; default 30",
                       .minimum = 0},
                      {.name = "affine", .placeholder = "MATRIX.txt", .help = "fixed to moving, after the deformation"},
                      {.name = "invert",
                       .type = FlagType::kSwitch,
                       .placeholder = "",
                       .help = "invert and rescale the moving image's intensities"}}},
       .needs_server = false,
       .run = MakePhantomFiles,
       .notes = "Writes fixed.nii.gz, moving.nii.gz, mask.nii.gz (the body), field.nii.gz (the true displacement,\n"
                "fixed to moving, LPS mm), landmarks_fixed.csv and landmarks_moving.csv.\n"},
  };
}

}  // namespace intrawarp::cli
