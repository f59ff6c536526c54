// SPDX-License-Identifier: Apache-2.0
// intrawarp volume put | list | show | get | delete
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/commands/commands.h"
#include "client/cli/files.h"
#include "client/cli/message_json.h"
#include "client/cli/registration_flags.h"
#include "client/cli/volume_file.h"
#include "engine/base/status_macros.h"
#include "io/format/grid_files.h"

namespace intrawarp::cli {
namespace {

// Digits of a hash in lists, the same number as in those of `dicom list`.
constexpr size_t kShortHash = 16;

absl::Status Put(const ParsedFlags& flags, CommandContext& context) {
  const std::string path = flags.Positional(0);
  const VolumeFileOptions options = {.series = flags.String("series"), .resample = flags.Has("resample")};
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<const LoadedVolume> volume, context.Load(path, options));
  INTRAWARP_ASSIGN_OR_RETURN(const v1::UploadResponse uploaded,
                             context.Upload(*volume, path, flags.String("id"), flags.Has("pinned")));
  std::printf("%s\n", uploaded.volume().name().c_str());
  return absl::OkStatus();
}

std::string Sizes(const v1::Geometry& geometry) {
  std::string text;
  for (int64_t n : geometry.size()) absl::StrAppend(&text, text.empty() ? "" : "x", n);
  return text;
}

std::string Spacings(const v1::Geometry& geometry) {
  std::string text;
  for (double mm : geometry.spacing()) absl::StrAppend(&text, text.empty() ? "" : "x", mm);
  return text;
}

std::string PixelTypeName(v1::PixelType type) {
  std::string name = v1::PixelType_Name(type);
  const std::string prefix = "PIXEL_TYPE_";
  if (name.rfind(prefix, 0) == 0) name = name.substr(prefix.size());
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

std::string ResidencyName(const v1::Volume& volume) {
  switch (volume.residency()) {
    case v1::RESIDENCY_SPOOLED:
      return "spooled";
    case v1::RESIDENCY_LOADING:
      return "loading";
    case v1::RESIDENCY_FAILED:
      return "failed";
    default:
      return volume.pinned() ? "pinned" : "resident";
  }
}

// A volume that failed has nothing but its name.
std::string Row(const v1::Volume& volume) {
  std::string row = volume.name();
  if (volume.residency() != v1::RESIDENCY_FAILED) {
    absl::StrAppend(&row, "\t", Sizes(volume.geometry()), "\t", Spacings(volume.geometry()), " mm\t",
                    PixelTypeName(volume.pixel_type()), "\t", volume.resident_bytes(), " bytes");
  }
  absl::StrAppend(&row, "\t", ResidencyName(volume), OwnerColumn(volume.owner()),
                  volume.provisional() ? "\tprovisional" : "");
  return row;
}

// "file", "dicom", "storage", "retrieved"; a value of a later version is "other".
std::string SourceName(v1::ProvenanceSource source) {
  const std::string prefix = "PROVENANCE_SOURCE_";
  const std::string name = v1::ProvenanceSource_Name(source);
  if (source == v1::PROVENANCE_SOURCE_UNSPECIFIED) return "";
  return absl::StartsWith(name, prefix) ? absl::AsciiStrToLower(name.substr(prefix.size())) : "other";
}

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

std::string ShortHash(const std::string& hash) { return OrDash(absl::BytesToHexString(hash).substr(0, kShortHash)); }

// The columns of --provenance.
std::string ProvenanceRow(const v1::Volume& volume) {
  const v1::Provenance& from = volume.provenance();
  return absl::StrJoin({volume.name(), OrDash(SourceName(from.source())), OrDash(from.modality()),
                        ShortHash(from.series_hash()), ShortHash(from.frame_of_reference_hash())},
                       "\t");
}

absl::Status List(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<v1::Volume> volumes, context.client().ListVolumes(context.call()));
  if (flags.Has("json")) {
    context.PrintJson(ListToJson(volumes));
    return absl::OkStatus();
  }
  for (const v1::Volume& volume : volumes) {
    std::printf("%s\n", (flags.Has("provenance") ? ProvenanceRow(volume) : Row(volume)).c_str());
  }
  return absl::OkStatus();
}

void PrintLine(const char* what, const std::string& text) {
  if (!text.empty()) std::printf("%s\t%s\n", what, text.c_str());
}

absl::Status Show(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const v1::Volume volume, context.client().GetVolume(flags.Positional(0), context.call()));
  if (flags.Has("json")) {
    context.PrintJson(MessageToJson(volume));
    return absl::OkStatus();
  }
  PrintLine("name", volume.name());
  PrintLine("state", ResidencyName(volume));
  PrintLine("owner", volume.owner());
  // Nothing else is known of one that failed.
  if (volume.residency() == v1::RESIDENCY_FAILED) return absl::OkStatus();
  PrintLine("size", Sizes(volume.geometry()));
  PrintLine("spacing_mm", Spacings(volume.geometry()));
  PrintLine("pixel_type", PixelTypeName(volume.pixel_type()));
  PrintLine("minimum", absl::StrCat(volume.minimum()));
  PrintLine("maximum", absl::StrCat(volume.maximum()));
  PrintLine("provisional", volume.provisional() ? "more images of its series may come" : "");
  PrintLine("resident_bytes", absl::StrCat(volume.resident_bytes()));
  PrintLine("digest", absl::BytesToHexString(volume.digest()));
  const v1::Provenance& from = volume.provenance();
  PrintLine("source", SourceName(from.source()));
  PrintLine("modality", from.modality());
  PrintLine("series_hash", absl::BytesToHexString(from.series_hash()));
  PrintLine("frame_of_reference_hash", absl::BytesToHexString(from.frame_of_reference_hash()));
  return absl::OkStatus();
}

absl::Status Get(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "out", io::GridSuffixes()));
  client::GridData data;
  INTRAWARP_RETURN_IF_ERROR(
      context.client().DownloadVolume(flags.Positional(0), client::SinkInto(&data), context.call()).status());
  const std::string out = flags.String("out");
  return Annotate(io::WriteVolumeFile(out, data.geometry, data.values.data()), out);
}

absl::Status Delete(const ParsedFlags& flags, CommandContext& context) {
  return context.client().DeleteVolume(flags.Positional(0), context.call());
}

}  // namespace

std::vector<Command> VolumeCommands() {
  return {
      {.name = "volume put",
       .summary = "upload a volume, where it stays resident; prints volumes/ID",
       .syntax = {.flags = {{.name = "id", .placeholder = "ID", .help = "the wanted id; default: the server's choice"},
                            {.name = "pinned",
                             .type = FlagType::kSwitch,
                             .placeholder = "",
                             .help = "the volume stays on the device, also where memory is short"},
                            {.name = "series",
                             .placeholder = "SERIES",
                             .help = "which DICOM volume: its index or series, as dicom list shows them"},
                            {.name = "resample",
                             .type = FlagType::kSwitch,
                             .placeholder = "",
                             .help = "interpolate missing, uneven and sheared DICOM slices instead of refusing them"},
                            OrientationFlagSpec()},
                  .positionals = {"PATH"}},
       .reach = Reach::kPlaced,
       .placed_by = {{""}},
       .run = Put,
       .notes = "PATH is a NIfTI, NRRD or MetaImage file, a DICOM folder, a DICOMDIR or a DICOM file.\n"},
      {.name = "volume list",
       .summary = "list volumes: name, size, spacing, pixel type, device memory, where the voxels are, owner",
       .syntax = {.flags = {{.name = "provenance",
                             .type = FlagType::kSwitch,
                             .placeholder = "",
                             .help = "name, source, modality and hashes of series and frame of reference instead"},
                            JsonFlagSpec()}},
       .reach = Reach::kEach,
       .run = List},
      {.name = "volume show",
       .summary = "all that is known of a volume, also where it comes from; a line for each",
       .syntax = {.flags = {JsonFlagSpec()}, .positionals = {"volumes/ID"}},
       .reach = Reach::kPlaced,
       .placed_by = {{""}},
       .run = Show},
      {.name = "volume get",
       .summary = "download a volume as float32",
       .syntax = {.flags = {{.name = "out",
                             .placeholder = "PATH",
                             .help = ".nii[.gz], .nrrd, .nhdr, .mha or .mhd",
                             .required = true}},
                  .positionals = {"volumes/ID"}},
       .reach = Reach::kPlaced,
       .placed_by = {{""}},
       .run = Get},
      {.name = "volume delete",
       .summary = "delete a volume",
       .syntax = {.flags = {}, .positionals = {"volumes/ID"}},
       .reach = Reach::kPlaced,
       .placed_by = {{""}},
       .run = Delete},
  };
}

}  // namespace intrawarp::cli
