// SPDX-License-Identifier: Apache-2.0
// intrawarp dicom list
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "engine/base/status_macros.h"
#include "io/dicom/dicom.h"

namespace intrawarp::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShortHash = 16;

Json ToJson(const Vec3d& v) { return {v.x, v.y, v.z}; }

Json GeometryJson(const Geometry& g) {
  Json direction = Json::array();
  for (const auto& row : g.direction) direction.push_back({row[0], row[1], row[2]});
  return {{"size", {g.size.x, g.size.y, g.size.z}},
          {"spacing_mm", ToJson(g.spacing)},
          {"origin_mm", ToJson(g.origin)},
          {"direction", direction}};
}

Json EntryJson(const io::DicomEntry& entry, size_t index) {
  Json json = {{"index", index},
               {"modality", entry.provenance.modality},
               {"series", entry.provenance.series},
               {"frame_of_reference", entry.provenance.frame_of_reference},
               {"files", entry.files},
               {"frames", entry.frames},
               {"status", absl::StatusCodeToString(entry.status.code())},
               {"message", std::string(entry.status.message())},
               {"notes", entry.notes}};
  if (entry.status.ok()) json["geometry"] = GeometryJson(entry.geometry);
  return json;
}

Json ListingJson(const io::DicomListing& listing) {
  Json volumes = Json::array();
  for (size_t i = 0; i < listing.volumes.size(); ++i) volumes.push_back(EntryJson(listing.volumes[i], i + 1));
  return {{"volumes", volumes},
          {"files", listing.files},
          {"files_without_image", listing.not_images},
          {"files_not_dicom", listing.not_dicom},
          {"files_broken_of_unknown_series", listing.broken}};
}

std::string EntryLine(const io::DicomEntry& entry, size_t index) {
  const std::string what =
      entry.status.ok() ? absl::StrFormat("%s\t%.4gx%.4gx%.4g mm", SizeString(entry.geometry), entry.geometry.spacing.x,
                                          entry.geometry.spacing.y, entry.geometry.spacing.z)
                        : absl::StrCat(absl::StatusCodeToString(entry.status.code()), ": ", entry.status.message());
  const std::string series = entry.provenance.series.empty() ? "-" : entry.provenance.series.substr(0, kShortHash);
  return absl::StrFormat("%d\t%s\t%s\t%d files\t%s%s\n", index,
                         entry.provenance.modality.empty() ? "-" : entry.provenance.modality, series, entry.files, what,
                         entry.notes.empty() ? "" : absl::StrCat("\t", absl::StrJoin(entry.notes, "; ")));
}

absl::Status List(const ParsedFlags& flags, Session&) {
  io::DicomOptions options;
  options.resample = flags.Has("resample");
  const std::string path = flags.Positional(0);
  const absl::StatusOr<io::DicomListing> listing = io::ListDicom(path, options);
  if (!listing.ok()) return Annotate(listing.status(), path);
  if (flags.Has("json")) {
    std::printf("%s\n", ListingJson(*listing).dump(2).c_str());
    return absl::OkStatus();
  }
  for (size_t i = 0; i < listing->volumes.size(); ++i) {
    std::fputs(EntryLine(listing->volumes[i], i + 1).c_str(), stdout);
  }
  std::printf("files: %d, without an image %d, not DICOM %d, broken and of unknown series %d\n",
              static_cast<int>(listing->files), static_cast<int>(listing->not_images),
              static_cast<int>(listing->not_dicom), static_cast<int>(listing->broken));
  return absl::OkStatus();
}

}  // namespace

std::vector<Command> DicomCommands() {
  return {
      {.name = "dicom list",
       .summary = "list the volumes that DICOM files make: index, modality, series, files, size and spacing or why not",
       .syntax = {.flags = {{.name = "json",
                             .type = FlagType::kSwitch,
                             .placeholder = "",
                             .help = "as JSON, with the whole geometry"},
                            {.name = "resample",
                             .type = FlagType::kSwitch,
                             .placeholder = "",
                             .help = "as if missing, uneven and sheared slices were interpolated"}},
                  .positionals = {"PATH"}},
       .needs_server = false,
       .run = List,
       .notes = "PATH is a folder, which is searched with all below it, a DICOMDIR or a file. Series and frames of\n"
                "reference are shown as hashes of their UIDs; names, numbers and dates are not shown.\n"},
  };
}

}  // namespace intrawarp::cli
