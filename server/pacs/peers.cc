// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/peers.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/checked.h"
#include "engine/base/status_macros.h"
#include "server/dimse/pdu.h"
#include "server/identity/identity.h"

namespace intrawarp::server {
namespace {

constexpr size_t kMaxPeers = 1024;
constexpr size_t kMaxFileBytes = size_t{1} << 20;

absl::Status Wrong(absl::string_view why) { return absl::InvalidArgumentError(why); }

bool IsNumeric(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

// The text that getnameinfo makes of the same address.
std::string Canonical(const std::string& host) {
  in6_addr address;
  char text[INET6_ADDRSTRLEN] = "";
  if (inet_pton(AF_INET6, host.c_str(), &address) != 1) return host;
  return inet_ntop(AF_INET6, &address, text, sizeof(text)) == nullptr ? host : text;
}

absl::StatusOr<int64_t> ParseAmount(absl::string_view text) {
  int64_t unit = 1, number = 0;
  for (const auto& [suffix, bytes] : {std::pair{"KiB", int64_t{1} << 10},
                                      {"MiB", int64_t{1} << 20},
                                      {"GiB", int64_t{1} << 30},
                                      {"TiB", int64_t{1} << 40}}) {
    if (absl::ConsumeSuffix(&text, suffix)) unit = bytes;
  }
  if (!absl::SimpleAtoi(text, &number) || number <= 0) return Wrong("a limit must be a positive number");
  return CheckedMultiply(number, unit);
}

absl::StatusOr<DicomPeer> ParsePeer(absl::string_view line, bool has_identities) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (words.size() < 3) return Wrong("must be AE_TITLE HOST OWNER and limits");
  DicomPeer peer;
  peer.ae_title = std::string(words[0]);
  if (!dimse::IsAeTitle(peer.ae_title)) return Wrong("begins with no AE title");
  INTRAWARP_ASSIGN_OR_RETURN(peer.host, ParseNumericHost(words[1]));
  if (words[2] != "-") peer.owner = std::string(words[2]);
  if (!peer.owner.empty() && !IsValidIdentityName(peer.owner)) return Wrong("the owner is not a name of an identity");
  if (peer.owner.empty() == has_identities) {
    return Wrong(has_identities ? "the owner must be an identity"
                                : "the owner must be - on a server without identities");
  }
  for (size_t i = 3; i < words.size(); ++i) INTRAWARP_RETURN_IF_ERROR(ParsePeerLimit(words[i], peer));
  return peer;
}

}  // namespace

absl::StatusOr<std::string> ParseNumericHost(absl::string_view text) {
  absl::string_view host = text;
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) return Wrong("an address has no ']'");
  const std::string numeric(host);
  if (!IsNumeric(numeric)) return Wrong("the address must be a numeric one without a port, IPv6 in brackets");
  return Canonical(numeric);
}

absl::Status ParsePeerLimit(absl::string_view text, DicomPeer& to) {
  const std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(text, absl::MaxSplits('=', 1));
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t amount, ParseAmount(pair.second));
  if (pair.first == "bytes") {
    to.max_bytes = amount;
  } else if (pair.first == "instances") {
    to.max_instances = amount;
  } else if (pair.first == "associations" && amount <= 1024) {
    to.max_associations = static_cast<int>(amount);
  } else {
    return Wrong("an option must be associations=N (1 to 1024), instances=N or bytes=SIZE");
  }
  return absl::OkStatus();
}

absl::StatusOr<DicomPeers> DicomPeers::Parse(absl::string_view text, bool has_identities) {
  if (text.size() > kMaxFileBytes) return Wrong("is too large");
  DicomPeers peers;
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty() || line[0] == '#') continue;
    absl::StatusOr<DicomPeer> peer = ParsePeer(line, has_identities);
    if (peer.ok() && peers.Find(peer->ae_title) != nullptr) peer = Wrong("names an AE title for the second time");
    if (peer.ok() && peers.peers_.size() >= kMaxPeers) peer = Wrong("is one too many");
    if (!peer.ok()) return Wrong(absl::StrCat("line ", number, ": ", peer.status().message()));
    peers.peers_.push_back(*std::move(peer));
  }
  return peers;
}

const DicomPeer* DicomPeers::Find(absl::string_view ae_title) const {
  const auto it =
      std::find_if(peers_.begin(), peers_.end(), [&](const DicomPeer& p) { return p.ae_title == ae_title; });
  return it == peers_.end() ? nullptr : &*it;
}

bool DicomPeers::HasHost(absl::string_view host) const {
  return std::any_of(peers_.begin(), peers_.end(), [&](const DicomPeer& p) { return p.host == host; });
}

}  // namespace intrawarp::server
