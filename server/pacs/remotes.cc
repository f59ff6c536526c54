// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/remotes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "engine/base/host_port.h"
#include "engine/base/status_macros.h"
#include "server/context/limits.h"
#include "server/dimse/pdu.h"
#include "server/pacs/dicomweb_remote.h"

namespace intrawarp::server {
namespace {

constexpr size_t kMaxRemotes = 256;
constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr int kAssociations = 4;

absl::Status Wrong(absl::string_view why) { return absl::InvalidArgumentError(why); }

bool IsRemoteName(absl::string_view name) {
  return !name.empty() && name.size() <= 32 && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
}

absl::Status ParseAddress(absl::string_view text, Remote& to) {
  const absl::StatusOr<HostPort> address = ParseHostPort(text);
  if (!address.ok()) return Wrong(absl::StrCat("the address ", address.status().message()));
  if (address->port == 0) return Wrong("the address must have a port of 1 to 65535");
  to.port = address->port;
  INTRAWARP_ASSIGN_OR_RETURN(to.host, ParseNumericHost(address->host));
  return absl::OkStatus();
}

absl::Status ParseOption(absl::string_view text, Remote& to) {
  if (!absl::ConsumePrefix(&text, "patients=")) return ParsePeerLimit(text, to.limits);
  if (text == "none") {
    to.patients = Roles();
  } else if (text == "admin") {
    to.patients = Role::kAdmin;
  } else if (text == "stage") {
    to.patients = Roles(Role::kAdmin) | Role::kStage;
  } else {
    return Wrong("patients must be none, admin or stage");
  }
  return absl::OkStatus();
}

// The words behind get or move.
absl::Status ParseDimse(absl::Span<const absl::string_view> words, Remote& to) {
  if (words.size() < 3) return Wrong("must be NAME get|move AE_TITLE HOST:PORT tls|plain and options");
  to.ae_title = std::string(words[0]);
  if (!dimse::IsAeTitle(to.ae_title)) return Wrong("the third word is no AE title");
  INTRAWARP_RETURN_IF_ERROR(ParseAddress(words[1], to));
  if (words[2] != "tls" && words[2] != "plain") return Wrong("the fifth word must be tls or plain");
  to.tls = words[2] == "tls";
  for (const absl::string_view word : words.subspan(3)) INTRAWARP_RETURN_IF_ERROR(ParseOption(word, to));
  return absl::OkStatus();
}

// The words behind dicomweb.
absl::Status ParseDicomweb(absl::Span<const absl::string_view> words, Remote& to) {
  std::vector<absl::string_view> others;
  INTRAWARP_ASSIGN_OR_RETURN(to.http, ParseDicomwebRemote(words, others));
  to.tls = absl::StartsWithIgnoreCase(to.http.base_url, "https:");
  for (const absl::string_view word : others) {
    if (absl::StartsWith(word, "associations=")) return Wrong("dicomweb has no associations");
    INTRAWARP_RETURN_IF_ERROR(ParseOption(word, to));
  }
  return absl::OkStatus();
}

absl::StatusOr<Remote> ParseRemote(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  Remote remote;
  remote.name = std::string(words[0]);
  if (!IsRemoteName(remote.name)) return Wrong("begins with no name");
  remote.limits.ae_title = absl::StrCat("remote/", remote.name);
  remote.limits.max_associations = kAssociations;
  const absl::string_view kind = words.size() > 1 ? words[1] : "";
  const absl::Span<const absl::string_view> others =
      absl::MakeConstSpan(words).subspan(std::min<size_t>(2, words.size()));
  if (kind == "dicomweb") {
    remote.kind = RemoteKind::kDicomweb;
    INTRAWARP_RETURN_IF_ERROR(ParseDicomweb(others, remote));
    return remote;
  }
  if (kind != "get" && kind != "move") return Wrong("the second word must be get, move or dicomweb");
  remote.kind = kind == "get" ? RemoteKind::kGet : RemoteKind::kMove;
  INTRAWARP_RETURN_IF_ERROR(ParseDimse(others, remote));
  return remote;
}

}  // namespace

absl::StatusOr<std::vector<Remote>> ParseRemotes(absl::string_view text) {
  if (text.size() > kMaxFileBytes) return Wrong("is too large");
  std::vector<Remote> remotes;
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty() || line[0] == '#') continue;
    absl::StatusOr<Remote> remote = ParseRemote(line);
    const bool is_known = remote.ok() && std::any_of(remotes.begin(), remotes.end(),
                                                     [&](const Remote& r) { return r.name == remote->name; });
    if (is_known) remote = Wrong("gives a name for the second time");
    if (remote.ok() && remotes.size() >= kMaxRemotes) remote = Wrong("is one too many");
    if (!remote.ok()) return Wrong(absl::StrCat("line ", number, ": ", remote.status().message()));
    remotes.push_back(*std::move(remote));
  }
  return remotes;
}

absl::Status CheckMoves(const std::vector<Remote>& remotes, bool has_port, const DicomPeers& peers) {
  for (size_t i = 0; i < remotes.size(); ++i) {
    if (remotes[i].kind != RemoteKind::kMove) continue;
    if (!has_port) return Wrong(absl::StrCat("archive ", i + 1, ": move needs --dicom_listen"));
    if (peers.Find(remotes[i].ae_title) == nullptr) {
      return Wrong(absl::StrCat("archive ", i + 1, ": move needs a line of its AE title in --dicom_peers"));
    }
  }
  return absl::OkStatus();
}

}  // namespace intrawarp::server
