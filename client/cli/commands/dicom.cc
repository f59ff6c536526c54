// SPDX-License-Identifier: Apache-2.0
// intrawarp dicom list | send | get
#include "io/dicom/dicom.h"

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/commands/commands.h"
#include "client/cli/dicom_archive.h"
#include "engine/base/status_macros.h"
#include "io/dicomweb/archive.h"
#include "server/dimse/pdu.h"

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

absl::Status List(const ParsedFlags& flags, CommandContext&) {
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

// `archive`: the flag of the URL.
dicomweb::HttpOptions HttpOptionsOf(const ParsedFlags& flags, const std::string& archive) {
  dicomweb::HttpOptions http;
  http.base_url = flags.String(archive);
  http.authorities_file = flags.String("tls_ca");
  http.token_file = flags.String("token_file");
  http.allow_plain_text = flags.Has("plain");
  return http;
}

absl::Status CheckUnused(const ParsedFlags& flags, const std::vector<std::string>& names, const char* why) {
  for (const std::string& name : names) {
    if (flags.Has(name)) return UsageError(absl::InvalidArgumentError(absl::StrCat("--", name, ": ", why)));
  }
  return absl::OkStatus();
}

absl::StatusOr<StorePeer> StorePeerOf(const ParsedFlags& flags) {
  absl::StatusOr<StorePeer> peer = ParseStorePeer(flags.String("to"));
  if (!peer.ok()) return UsageError(Annotate(peer.status(), "--to"));
  peer->calling_ae = flags.String("ae_title", "INTRAWARP");
  peer->tls_ca = flags.String("tls_ca");
  peer->tls_cert = flags.String("tls_cert");
  peer->tls_key = flags.String("tls_key");
  if (!dimse::IsAeTitle(peer->calling_ae)) {
    return UsageError(absl::InvalidArgumentError("--ae_title: must be 1 to 16 letters, digits, '_', '-' and '.'"));
  }
  if (peer->tls_cert.empty() != peer->tls_key.empty()) {
    return UsageError(absl::InvalidArgumentError("--tls_cert and --tls_key: each needs the other"));
  }
  if (peer->tls_ca.empty() && !peer->tls_cert.empty()) {
    return UsageError(absl::InvalidArgumentError("--tls_cert: needs --tls_ca"));
  }
  const bool is_plain = peer->tls_ca.empty() && !IsLoopback(peer->host);
  if (is_plain && !flags.Has("plain")) {
    return UsageError(absl::InvalidArgumentError("--to: needs --tls_ca, or --plain for images in plain text"));
  }
  return peer;
}

// A wrong command line before any file is read.
absl::StatusOr<std::function<absl::Status(const std::vector<DicomFile>&, dicomweb::StoredInstances&)>> SenderOf(
    const ParsedFlags& flags) {
  const std::string to = flags.String("to");
  if (absl::StrContains(to, "://")) {
    INTRAWARP_RETURN_IF_ERROR(
        CheckUnused(flags, {"ae_title", "tls_cert", "tls_key"}, "is for --to=AE_TITLE@HOST:PORT"));
    const dicomweb::HttpOptions http = HttpOptionsOf(flags, "to");
    const absl::Status address = dicomweb::CheckAddress(http);
    if (!address.ok()) return UsageError(Annotate(address, "--to"));
    return [http](const auto& files, auto& stored) { return SendByStow(http, files, stored); };
  }
  INTRAWARP_RETURN_IF_ERROR(CheckUnused(flags, {"token_file"}, "is for --to=https://HOST/PATH"));
  INTRAWARP_ASSIGN_OR_RETURN(const StorePeer peer, StorePeerOf(flags));
  return [peer](const auto& files, auto& stored) { return SendByStore(peer, files, stored); };
}

absl::Status Send(const ParsedFlags& flags, CommandContext&) {
  INTRAWARP_ASSIGN_OR_RETURN(const auto send, SenderOf(flags));
  INTRAWARP_ASSIGN_OR_RETURN(const DicomFiles found, FindDicomFiles(flags.Positional(0)));
  dicomweb::StoredInstances stored;
  const absl::Status sent = send(found.files, stored);
  const int64_t count = static_cast<int64_t>(found.files.size());
  if (!sent.ok()) {
    return absl::Status(sent.code(),
                        absl::StrCat(sent.message(), "; ", stored.stored, " of ", count, " instances were stored"));
  }
  INTRAWARP_RETURN_IF_ERROR(dicomweb::StoreStatus(stored, count));
  std::printf("stored: %d, with a warning %d; files not sent, which are not instances: %d\n",
              static_cast<int>(stored.stored), static_cast<int>(stored.with_warning), static_cast<int>(found.others));
  return absl::OkStatus();
}

absl::Status GetSeries(const ParsedFlags& flags, CommandContext&) {
  const dicomweb::HttpOptions http = HttpOptionsOf(flags, "from");
  const absl::Status address = dicomweb::CheckAddress(http);
  if (!address.ok()) return UsageError(Annotate(address, "--from"));
  for (const char* flag : {"study", "series"}) {
    if (!dicomweb::IsUid(flags.String(flag))) {
      return UsageError(absl::InvalidArgumentError(absl::StrCat("--", flag, ": is no UID")));
    }
  }
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t files,
                             FetchSeries(http, flags.String("study"), flags.String("series"), flags.String("out")));
  std::printf("files: %d\n", static_cast<int>(files));
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
      {.name = "dicom send",
       .summary = "send DICOM files to an archive, by STOW-RS or C-STORE",
       .syntax = {.flags = {{.name = "to",
                             .placeholder = "ARCHIVE",
                             .help = "https://HOST[:PORT]/PATH (DICOMweb), or AE_TITLE@HOST:PORT, HOST numeric",
                             .required = true},
                            {.name = "token_file", .placeholder = "PATH", .help = "DICOMweb: holds a bearer token"},
                            {.name = "ae_title",
                             .placeholder = "AE_TITLE",
                             .help = "C-STORE: how this machine calls itself (INTRAWARP)"},
                            {.name = "tls_ca",
                             .placeholder = "PATH",
                             .help = "the authorities (PEM) of the archive's certificate; for https the system's "
                                     "without it, for C-STORE plain text"},
                            {.name = "tls_cert", .placeholder = "PATH", .help = "C-STORE: a certificate chain (PEM)"},
                            {.name = "tls_key", .placeholder = "PATH", .help = "C-STORE: its private key (PEM)"},
                            {.name = "plain",
                             .type = FlagType::kSwitch,
                             .placeholder = "",
                             .help = "images may cross a network in plain text; a token may not"}},
                  .positionals = {"PATH"}},
       .needs_server = false,
       .run = Send,
       .notes = "PATH is a file or a folder, which is searched with all below it; files that are not DICOM, and\n"
                "DICOMDIRs, are passed over. Files go as they are, without a change of their transfer syntax. The\n"
                "command fails when the archive does not store all of them, with their number and its reasons.\n"},
      {.name = "dicom get",
       .summary = "bring a series from a DICOMweb archive (WADO-RS) into a folder",
       .syntax = {.flags = {{.name = "from",
                             .placeholder = "URL",
                             .help = "https://HOST[:PORT]/PATH, the base of the archive's services",
                             .required = true},
                            {.name = "study", .placeholder = "UID", .help = "StudyInstanceUID", .required = true},
                            {.name = "series", .placeholder = "UID", .help = "SeriesInstanceUID", .required = true},
                            {.name = "out",
                             .placeholder = "FOLDER",
                             .help = "new or empty; it appears once the series is whole",
                             .required = true},
                            {.name = "token_file", .placeholder = "PATH", .help = "holds a bearer token"},
                            {.name = "tls_ca",
                             .placeholder = "PATH",
                             .help = "the authorities (PEM) of the archive's certificate; the system's without it"},
                            {.name = "plain",
                             .type = FlagType::kSwitch,
                             .placeholder = "",
                             .help = "images may cross a network in plain text; a token may not"}}},
       .needs_server = false,
       .run = GetSeries,
       .notes = "Files keep the transfer syntax in which the archive holds them.\n"},
  };
}

}  // namespace intrawarp::cli
