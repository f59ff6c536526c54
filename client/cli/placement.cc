// SPDX-License-Identifier: Apache-2.0
#include "client/cli/placement.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/cli/matrix_files.h"
#include "engine/base/status_macros.h"
#include "io/file/digest.h"
#include "io/file/file.h"

namespace intrawarp::cli {
namespace {

bool IsResource(const std::string& x) { return IsVolumeName(x) || IsTransformName(x) || IsMatrixName(x); }

// The digest of a resource's bytes, "" where the server gives none; NOT_FOUND.
absl::StatusOr<std::string> DigestAt(client::Client& client, const std::string& name, const client::CallOptions& call) {
  if (IsTransformName(name)) {
    INTRAWARP_RETURN_IF_ERROR(client.GetTransform(name, call).status());
    return std::string();
  }
  if (IsMatrixName(name)) {
    INTRAWARP_RETURN_IF_ERROR(client.GetSparseMatrix(WireMatrixName(name), call).status());
    return std::string();
  }
  INTRAWARP_ASSIGN_OR_RETURN(const v1::Volume volume, client.GetVolume(name, call));
  return absl::BytesToHexString(volume.digest());
}

absl::StatusOr<client::Route> Locate(const std::string& name, CommandContext& context) {
  const std::vector<std::string> addresses = context.servers().addresses();
  size_t silent = 0;
  for (const std::string& address : addresses) {
    INTRAWARP_RETURN_IF_ERROR(context.CheckInterrupt());
    absl::StatusOr<std::string> digest = absl::UnavailableError("is not well");
    if (context.servers().IsWell(address, context.call())) {
      INTRAWARP_RETURN_IF_ERROR(context.Use(address));
      digest = DigestAt(context.client(), name, context.call());
    }
    if (digest.ok()) return client::Route{*std::move(digest), address};
    if (client::IsBroken(digest.status())) {
      ++silent;
    } else if (!absl::IsNotFound(digest.status())) {
      return Annotate(digest.status(), address);
    }
  }
  if (silent == addresses.size()) {
    return absl::UnavailableError(absl::StrCat("none of ", silent, " servers answers"));
  }
  return absl::NotFoundError(absl::StrCat(name, " is on none of the ", addresses.size() - silent,
                                          " servers that answer; ", silent, " do not"));
}

absl::StatusOr<std::string> FileDigest(const std::string& path) {
  const absl::StatusOr<io::RegularFile> file = io::OpenRegularFile(path);
  if (!file.ok()) return Annotate(file.status(), path);
  const auto closer = absl::MakeCleanup([&file] { close(file->descriptor); });
  io::Sha256 hash;
  std::vector<char> buffer(1 << 20);
  while (true) {
    const ssize_t bytes = read(file->descriptor, buffer.data(), buffer.size());
    if (bytes < 0) return Annotate(io::FileError("cannot be read", errno), path);
    if (bytes == 0) return absl::BytesToHexString(hash.Finish());
    hash.Update(buffer.data(), static_cast<size_t>(bytes));
  }
}

absl::StatusOr<std::string> VolumeFileDigest(const std::string& path, const ParsedFlags& flags,
                                             CommandContext& context) {
  const VolumeFileOptions options = {.series = flags.String("series"), .resample = flags.Has("resample")};
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<const LoadedVolume> loaded, context.Load(path, options));
  const std::vector<uint8_t>& pixels = loaded->volume.pixels;
  return client::VolumeDigest({reinterpret_cast<const char*>(pixels.data()), pixels.size()});
}

absl::Status RunOnEach(const Command& command, const ParsedFlags& flags, CommandContext& context) {
  const std::vector<std::string> addresses = context.servers().addresses();
  absl::Status first;
  int failed = 0;
  if (flags.Has("json")) context.BeginJson();
  for (const std::string& address : addresses) {
    INTRAWARP_RETURN_IF_ERROR(context.CheckInterrupt());
    if (!flags.Has("json")) std::printf("server %s\n", address.c_str());
    INTRAWARP_RETURN_IF_ERROR(context.Use(address));
    const absl::Status status = context.servers().IsWell(address, context.call())
                                    ? command.run(flags, context)
                                    : absl::UnavailableError("the server is not serving");
    if (IsUsageError(status)) return status;
    if (!status.ok() && failed++ == 0) first = Annotate(status, address);
  }
  if (flags.Has("json")) context.EndJson();
  if (failed == 0) return absl::OkStatus();
  return Annotate(first, absl::StrCat(failed, " of ", addresses.size(), " servers failed, the first"));
}

absl::Status RunPlaced(const Command& command, const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const client::Route route, RouteOf(command.placed_by, flags, context));
  absl::Status broken;
  return context.servers().Run(route, context.call(), [&](client::Client&, const std::string& address) {
    INTRAWARP_RETURN_IF_ERROR(context.Use(address));
    absl::Status status = command.run(flags, context);
    if (status.ok() || IsUsageError(status)) return status;
    // What lay on the server that failed is not to be had elsewhere.
    if (!broken.ok() && absl::IsNotFound(status)) {
      return absl::FailedPreconditionError(absl::StrCat(broken.message(), "; then ", address, ": ", status.message()));
    }
    if (client::IsServersFault(status)) {
      broken = Annotate(status, address);
      return status;
    }
    return Annotate(status, address);
  });
}

}  // namespace

absl::StatusOr<client::Route> RouteOf(const std::vector<PlacedBy>& placed_by, const ParsedFlags& flags,
                                      CommandContext& context) {
  client::Route route{context.routing_key()};
  if (!context.servers().has_several()) return route;
  const PlacedBy* file = nullptr;
  const auto value = [&flags](const PlacedBy& by) {
    return by.flag.empty() ? flags.Positional(0) : flags.String(by.flag);
  };
  for (const PlacedBy& by : placed_by) {
    const std::string name = value(by);
    if (IsResource(name)) {
      INTRAWARP_ASSIGN_OR_RETURN(client::Route found, Locate(name, context));
      if (route.key.empty()) route.key = std::move(found.key);
      route.first = std::move(found.first);
      return route;
    }
    if (file == nullptr && !name.empty()) file = &by;
  }
  if (!route.key.empty() || file == nullptr) return route;
  INTRAWARP_ASSIGN_OR_RETURN(
      route.key, file->is_volume ? VolumeFileDigest(value(*file), flags, context) : FileDigest(value(*file)));
  return route;
}

absl::Status RunOnServers(const Command& command, const ParsedFlags& flags, CommandContext& context) {
  const std::vector<std::string> addresses = context.servers().addresses();
  context.AssumeOrientation(flags.String("assume_orientation"));
  if (addresses.size() == 1 || command.reach == Reach::kOwn) {
    INTRAWARP_RETURN_IF_ERROR(context.Use(addresses.front()));
    return command.run(flags, context);
  }
  switch (command.reach) {
    case Reach::kEach:
      return RunOnEach(command, flags, context);
    case Reach::kPlaced:
      return RunPlaced(command, flags, context);
    default:
      return UsageError(absl::InvalidArgumentError(
          absl::StrCat("--server: names several servers, and ", command.name, " takes one")));
  }
}

}  // namespace intrawarp::cli
