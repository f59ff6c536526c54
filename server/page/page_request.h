// SPDX-License-Identifier: Apache-2.0
// PageRequest: a request to the page's port, without its connection, and the rules about it. Thread-compatible values;
// thread-safe functions.
#ifndef INTRAWARP_SERVER_PAGE_PAGE_REQUEST_H_
#define INTRAWARP_SERVER_PAGE_PAGE_REQUEST_H_

#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "engine/geometry/vec.h"

namespace intrawarp::server {

struct PageRequest {
  std::string method;
  std::string path;
  std::map<std::string, std::string> query;
  // Names in lower case. Of several of one name, the last.
  std::map<std::string, std::string> headers;

  const std::string& header(const std::string& name) const;
  const std::string& parameter(const std::string& name) const;
  // A parameter of the query that is finite and within 1e7; nullopt otherwise.
  std::optional<double> Number(const std::string& name) const;
  std::optional<Vec3d> Point() const;
};

// The meaning of a path under /api.
struct PageTarget {
  // "state", or of a session: "frames", "reference", "planes.png", "tip".
  std::string what;
  std::string session;
};
std::optional<PageTarget> ParseTarget(absl::string_view path);

// Whether the request comes from the page itself, or from no page at all. On a server without identities only names
// that mean this machine, and addresses, count as its own.
bool IsOwnSite(const PageRequest& request, bool has_tls, bool has_identities);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_PAGE_REQUEST_H_
