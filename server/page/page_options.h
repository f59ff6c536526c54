// SPDX-License-Identifier: Apache-2.0
// Where the page is served, and on which addresses it may be.
#ifndef INTRAWARP_SERVER_PAGE_PAGE_OPTIONS_H_
#define INTRAWARP_SERVER_PAGE_PAGE_OPTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "server/identity/exposure.h"

namespace intrawarp::server {

struct PageOptions {
  // HOST:PORT; empty: the server has none.
  std::string listen;
  bool is_used() const { return !listen.empty(); }
};

// INVALID_ARGUMENT for a page on an address that is not a loopback one, without TLS or tokens, unless
// `allow_no_identity`; and for one whose callers have identities but no tokens, since a browser shows no others.
absl::Status CheckPageExposure(const PageOptions& page, const AccessFiles& access, bool allow_no_identity);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_PAGE_OPTIONS_H_
