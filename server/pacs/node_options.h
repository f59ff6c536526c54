// SPDX-License-Identifier: Apache-2.0
// The configuration of a server's DICOM side. Plain values.
#ifndef INTRAWARP_SERVER_PACS_NODE_OPTIONS_H_
#define INTRAWARP_SERVER_PACS_NODE_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace intrawarp::server {

struct NodeOptions {
  // HOST:PORT; empty: there is none.
  std::string listen;
  std::string ae_title = "INTRAWARP";
  // Paths; empty: none. peers.h and remotes.h say what the first two hold.
  std::string peers;
  std::string remotes;
  std::string tls_cert;
  std::string tls_key;
  std::string tls_ca;
  // Plain text, or peers without a certificate, on an address that is not a loopback one.
  bool allow_insecure = false;
  // An existing folder for the spool alone.
  std::string spool;
  int64_t spool_bytes = int64_t{8} << 30;
  int max_associations = 32;
  // A peer that owes something, and one that owes nothing.
  std::chrono::milliseconds timeout{30000};
  std::chrono::milliseconds idle_timeout{60000};
  // A series whose images do not say how many they are is taken for complete when none has come for so long.
  std::chrono::milliseconds quiet{30000};

  bool is_used() const { return !listen.empty() || !remotes.empty(); }
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_NODE_OPTIONS_H_
