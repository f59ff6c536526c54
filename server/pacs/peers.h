// SPDX-License-Identifier: Apache-2.0
// The application entities of DICOM that a server knows, as a text file lists them, a line each. Empty lines and lines
// that begin with # do not count.
//
//   AE_TITLE HOST OWNER [associations=N] [instances=N] [bytes=SIZE]
//
// HOST is a numeric address, an IPv6 one in brackets: associations come from there alone. OWNER is the identity whose
// volumes its images become; "-" on a server without identities. The limits are of open associations, and of instances
// and bytes that wait to become volumes. Errors name the line, never its content.
//
// Thread safety: thread-compatible values; Parse is thread-safe.
#ifndef INTRAWARP_SERVER_PACS_PEERS_H_
#define INTRAWARP_SERVER_PACS_PEERS_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::server {

struct DicomPeer {
  std::string ae_title;
  std::string host;  // without brackets
  std::string owner;
  int max_associations = 16;
  int64_t max_instances = 20000;
  int64_t max_bytes = std::numeric_limits<int64_t>::max();
};

// The canonical form of a numeric address without a port, IPv6 in brackets. INVALID_ARGUMENT.
absl::StatusOr<std::string> ParseNumericHost(absl::string_view text);
// Takes one of associations=N, instances=N and bytes=SIZE. INVALID_ARGUMENT.
absl::Status ParsePeerLimit(absl::string_view text, DicomPeer& to);

class DicomPeers {
 public:
  // INVALID_ARGUMENT "line N: ...". `has_identities`: each line must name an owner.
  static absl::StatusOr<DicomPeers> Parse(absl::string_view text, bool has_identities);

  // Null when it is not listed.
  const DicomPeer* Find(absl::string_view ae_title) const;
  // Whether any peer has this address.
  bool HasHost(absl::string_view host) const;
  size_t size() const { return peers_.size(); }

 private:
  std::vector<DicomPeer> peers_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_PEERS_H_
