// SPDX-License-Identifier: Apache-2.0
#include "server/page/page_options.h"

#include "absl/strings/str_cat.h"

namespace intrawarp::server {

absl::Status CheckPageExposure(const PageOptions& page, const AccessFiles& access, bool allow_no_identity) {
  if (!page.is_used()) return absl::OkStatus();
  if (access.has_identities() && access.tokens.empty()) {
    return absl::InvalidArgumentError("--page: needs --tokens where callers have identities: a browser shows a token");
  }
  if (IsLoopback(page.listen) || allow_no_identity || (access.has_tls() && !access.tokens.empty())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--page=", page.listen,
                   ": is not a loopback address: give --tls_cert, --tls_key and --tokens, or serve a "
                   "loopback address behind a proxy; --insecure_no_identity_any_address serves whoever connects"));
}

}  // namespace intrawarp::server
