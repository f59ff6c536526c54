// SPDX-License-Identifier: Apache-2.0
// The archives that series can be imported from, as a text file lists them, a line each. Empty lines and lines that
// begin with # do not count.
//
//   NAME get|move AE_TITLE HOST:PORT tls|plain [patients=none|admin|stage] [associations=N] [instances=N] [bytes=SIZE]
//   NAME dicomweb URL [ca=PATH] [token_file=PATH] [plain] [patients=none|admin|stage] [instances=N] [bytes=SIZE]
//
// NAME is what clients call the archive: 1 to 32 letters, digits, '_', '-' and '.'. HOST is a numeric address, an IPv6
// one in brackets. get: the archive sends a series on the association that asks for it. move: it sends it to the
// storage port of this server, whose application entity it knows. dicomweb: it is asked by QIDO-RS and sends by
// WADO-RS; dicomweb_remote.h says what URL and the options behind it are. Plain text must be asked for. patients: who
// may see the patient of a match (admin). The limits are of associations with the archive, of instances, and of bytes
// that an import may hold in the spool. Errors name the line, never its content.
//
// Thread safety: plain values; Parse is thread-safe.
#ifndef INTRAWARP_SERVER_PACS_REMOTES_H_
#define INTRAWARP_SERVER_PACS_REMOTES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "io/dicomweb/http.h"
#include "server/identity/identity.h"
#include "server/pacs/peers.h"

namespace intrawarp::server {

enum class RemoteKind { kGet, kMove, kDicomweb };

struct Remote {
  std::string name;
  RemoteKind kind = RemoteKind::kGet;
  // For kGet and kMove.
  std::string ae_title;
  std::string host;  // without brackets
  int port = 0;
  // For kDicomweb.
  dicomweb::HttpOptions http;

  bool tls = false;
  // Callers with one of these roles may see patients.
  Roles patients = Role::kAdmin;
  // Its limits, under a name that no peer has ("remote/NAME").
  DicomPeer limits;
};

// INVALID_ARGUMENT "line N: ...".
absl::StatusOr<std::vector<Remote>> ParseRemotes(absl::string_view text);

// INVALID_ARGUMENT names the remote by its number: one of kind move needs a storage port, and a peer with its AE title.
absl::Status CheckMoves(const std::vector<Remote>& remotes, bool has_port, const DicomPeers& peers);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_REMOTES_H_
