// SPDX-License-Identifier: Apache-2.0
// intrawarp phantom: a pair of images with a known deformation, as files.
#include <array>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "client/cli/commands/commands.h"
#include "client/phantom/surgery.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"
#include "io/format/matrix_text.h"
#include "io/format/nifti.h"
#include "io/format/points.h"

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

absl::Status SetPair(const ParsedFlags& flags, phantom::PhantomOptions* options) {
  INTRAWARP_RETURN_IF_ERROR(SetSize(flags, &options->size));
  SetSpacing(options->size, options);
  if (flags.Has("spacing")) {
    INTRAWARP_ASSIGN_OR_RETURN(const auto triple, ParseTriple(flags, "spacing"));
    options->spacing = {triple[0], triple[1], triple[2]};
  }
  options->seed = static_cast<uint32_t>(flags.Integer("seed", options->seed));
  options->amplitude_mm = flags.Number("amplitude_mm", options->amplitude_mm);
  options->invert_intensities = flags.Has("invert");
  if (flags.Has("affine")) {
    const absl::StatusOr<AffineMap> affine = io::ReadMatrix(flags.String("affine"));
    if (!affine.ok()) return Annotate(affine.status(), flags.String("affine"));
    options->affine = *affine;
  }
  return absl::OkStatus();
}

absl::StatusOr<phantom::SurgeryOptions> ParseOptions(const ParsedFlags& flags) {
  phantom::SurgeryOptions options;
  if (flags.Has("kind")) {
    const auto kind = phantom::ParseSurgeryKind(flags.String("kind"));
    if (!kind.ok()) return UsageError(Annotate(kind.status(), "--kind"));
    options = phantom::DefaultSurgeryOptions(*kind);
  }
  INTRAWARP_RETURN_IF_ERROR(SetPair(flags, &options.pair));
  options.intact = flags.Has("intact");
  const std::pair<const char*, std::optional<double>*> sizes[] = {
      {"hole_mm", &options.hole_mm}, {"tumour_mm", &options.tumour_mm}, {"collapse_mm", &options.collapse_mm}};
  for (const auto& [name, size] : sizes) {
    if (flags.Has(name)) *size = flags.Number(name, 0);
  }
  options.rods = static_cast<int>(flags.Integer("rods", 0));
  if (flags.Has("padding")) options.padding = static_cast<int>(flags.Integer("padding", 0));
  if (flags.Has("outliers_in")) {
    const auto where = phantom::ParseOutliersIn(flags.String("outliers_in"));
    if (!where.ok()) return UsageError(Annotate(where.status(), "--outliers_in"));
    options.outliers_in = *where;
  }
  return options;
}

absl::Status WriteAll(const phantom::SurgeryPhantom& made, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Annotate(io::FileError("cannot be created", error.value()), folder);
  const auto path = [&](const char* name) { return absl::StrCat(folder, "/", name); };
  const phantom::Phantom& pair = made.pair;
  std::vector<std::pair<const char*, absl::Status>> written = {
      {"fixed.nii.gz", io::WriteNifti(path("fixed.nii.gz"), pair.fixed)},
      {"moving.nii.gz", io::WriteNifti(path("moving.nii.gz"), pair.moving)},
      {"mask.nii.gz", io::WriteNifti(path("mask.nii.gz"), pair.body_mask)},
      {"field.nii.gz", io::WriteField(path("field.nii.gz"), pair.field)},
      {"landmarks_fixed.csv", io::WritePoints(path("landmarks_fixed.csv"), pair.fixed_landmarks)},
      {"landmarks_moving.csv", io::WritePoints(path("landmarks_moving.csv"), pair.moving_landmarks)},
  };
  const std::pair<const char*, const std::optional<io::HostVolume>*> masks[] = {
      {"hole.nii.gz", &made.hole}, {"hole_moving.nii.gz", &made.hole_moving}, {"regions.nii.gz", &made.regions}};
  for (const auto& [name, mask] : masks) {
    if (*mask) written.emplace_back(name, io::WriteNifti(path(name), **mask));
  }
  for (const auto& [name, status] : written) INTRAWARP_RETURN_IF_ERROR(Annotate(status, path(name)));
  for (const auto& [name, status] : written) std::printf("%s\n", path(name).c_str());
  return absl::OkStatus();
}

absl::Status MakePhantomFiles(const ParsedFlags& flags, CommandContext&) {
  INTRAWARP_ASSIGN_OR_RETURN(const phantom::SurgeryOptions options, ParseOptions(flags));
  const absl::StatusOr<phantom::SurgeryPhantom> made = phantom::MakeSurgeryPhantom(options);
  if (absl::IsInvalidArgument(made.status())) return UsageError(Annotate(made.status(), "phantom"));
  INTRAWARP_RETURN_IF_ERROR(made.status());
  return WriteAll(*made, flags.String("out"));
}

// The flags of pairs of an operation.
std::vector<FlagSpec> SurgeryFlags() {
  return {{.name = "kind",
           .placeholder = "KIND",
           .help = "plain (default), resection, ablation, sliding, needle, gas or truncation"},
          {.name = "intact",
           .type = FlagType::kSwitch,
           .placeholder = "",
           .help = "the motion of the kind without hole, instruments, bubbles or end, to compare with"},
          {.name = "hole_mm",
           .type = FlagType::kNumber,
           .placeholder = "MM",
           .help = "width of the cavity or ablation zone; default 40",
           .minimum = 0},
          {.name = "tumour_mm",
           .type = FlagType::kNumber,
           .placeholder = "MM",
           .help = "width of the tumour; default 30",
           .minimum = 0},
          {.name = "collapse_mm",
           .type = FlagType::kNumber,
           .placeholder = "MM",
           .help = "how far the wall of the cavity has moved inwards; default 4",
           .minimum = 0},
          {.name = "rods",
           .type = FlagType::kInteger,
           .placeholder = "N",
           .help = "rods of 80 x 3 mm with 20 times the largest intensity; default 0",
           .minimum = 0,
           .maximum = 64},
          {.name = "outliers_in",
           .placeholder = "IMAGE",
           .help = "fixed, moving or both: which has rods, bubbles (default both) or an end"},
          {.name = "padding",
           .type = FlagType::kInteger,
           .placeholder = "HU",
           .help = "truncation: the value beyond the end; default -1024",
           .minimum = -32768,
           .maximum = 32767}};
}

std::vector<FlagSpec> PhantomFlags() {
  std::vector<FlagSpec> flags = {
      {.name = "out", .placeholder = "DIR", .help = "where the files go", .required = true},
      {.name = "size", .placeholder = "NXxNYxNZ", .help = "voxels; default 160x160x120; NZ 1: a slice"},
      {.name = "spacing",
       .placeholder = "DXxDYxDZ",
       .help = "mm between voxels; default: a field of view of 320x320x240 mm, 2x2x2 for 160x160x120"},
      {.name = "seed",
       .type = FlagType::kInteger,
       .placeholder = "N",
       .help = "of texture, vessels, noise and places; default 1",
       .minimum = 0,
       .maximum = 4294967295.0},
      {.name = "amplitude_mm",
       .type = FlagType::kNumber,
       .placeholder = "MM",
       .help = "how far the abdominal wall moves (default 30, resection 10, ablation 0), the organs slide (15) or\n"
               "the retractor pushes (12)",
       .minimum = 0},
      {.name = "affine", .placeholder = "MATRIX.txt", .help = "fixed to moving, after the deformation"},
      {.name = "invert",
       .type = FlagType::kSwitch,
       .placeholder = "",
       .help = "invert and rescale the moving image's intensities"}};
  for (FlagSpec& flag : SurgeryFlags()) flags.push_back(std::move(flag));
  return flags;
}

}  // namespace

std::vector<Command> PhantomCommands() {
  return {
      {.name = "phantom",
       .summary = "make a liver-like pair with a known deformation; needs no server",
       .syntax = {.flags = PhantomFlags()},
       .needs_server = false,
       .run = MakePhantomFiles,
       .notes =
           "Writes fixed.nii.gz, moving.nii.gz, mask.nii.gz (the body), field.nii.gz (the true displacement,\n"
           "fixed to moving, LPS mm), landmarks_fixed.csv and landmarks_moving.csv. The pairs of an operation have\n"
           "hole.nii.gz and hole_moving.nii.gz as well (1 where a voxel of the fixed, of the moving grid has no\n"
           "counterpart in the other image); inside a hole the true displacement goes on as smoothly as around\n"
           "it. sliding has regions.nii.gz instead: 0 air, 1 the wall that stays, 2 the organs that slide.\n"},
  };
}

}  // namespace intrawarp::cli
