// SPDX-License-Identifier: Apache-2.0
#include "server/page/page_request.h"

#include <arpa/inet.h>

#include <cmath>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace intrawarp::server {
namespace {

const std::string& Of(const std::map<std::string, std::string>& map, const std::string& name) {
  static const auto* const kNone = new std::string();
  const auto it = map.find(name);
  return it == map.end() ? *kNone : it->second;
}

// The host of "HOST", "HOST:PORT" or "[V6]:PORT".
std::string HostOf(absl::string_view authority) {
  if (absl::StartsWith(authority, "[")) return std::string(authority.substr(1, authority.find(']') - 1));
  return std::string(authority.substr(0, authority.rfind(':')));
}

bool IsAddressOrLocal(const std::string& host) {
  in_addr v4;
  in6_addr v6;
  return host == "localhost" || inet_pton(AF_INET, host.c_str(), &v4) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &v6) == 1;
}

}  // namespace

const std::string& PageRequest::header(const std::string& name) const { return Of(headers, name); }
const std::string& PageRequest::parameter(const std::string& name) const { return Of(query, name); }

std::optional<double> PageRequest::Number(const std::string& name) const {
  double value = 0;
  if (!absl::SimpleAtod(parameter(name), &value) || !std::isfinite(value) || std::abs(value) > 1e7) return std::nullopt;
  return value;
}

std::optional<Vec3d> PageRequest::Point() const {
  const std::optional<double> x = Number("x"), y = Number("y"), z = Number("z");
  if (!x || !y || !z) return std::nullopt;
  return Vec3d{*x, *y, *z};
}

std::optional<PageTarget> ParseTarget(absl::string_view path) {
  const std::vector<std::string> parts = absl::StrSplit(path, '/');
  if (parts.size() < 3 || !parts[0].empty() || parts[1] != "api") return std::nullopt;
  if (parts.size() == 3 && parts[2] == "state") return PageTarget{"state", ""};
  if (parts.size() != 5 || parts[2] != "sessions") return std::nullopt;
  for (const char* what : {"frames", "reference", "planes.png", "tip"}) {
    if (parts[4] == what) return PageTarget{parts[4], parts[3]};
  }
  return std::nullopt;
}

bool IsOwnSite(const PageRequest& request, bool has_tls, bool has_identities) {
  const std::string& host = request.header("host");
  if (host.empty()) return false;
  if (!has_identities && !IsAddressOrLocal(HostOf(host))) return false;
  const std::string& site = request.header("sec-fetch-site");
  if (!site.empty() && site != "same-origin" && site != "none") return false;
  const std::string& origin = request.header("origin");
  if (origin.empty()) return true;
  // A proxy may have ended TLS before us.
  return origin == absl::StrCat("https://", host) || (!has_tls && origin == absl::StrCat("http://", host));
}

}  // namespace intrawarp::server
