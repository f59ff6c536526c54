// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/server_names.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <future>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/field_error.h"
#include "engine/base/host_port.h"
#include "engine/base/status_macros.h"

namespace intrawarp::client {
namespace {

constexpr size_t kMaxServers = 256;

struct HostAndPort {
  std::string host;  // without the brackets of an IPv6 address
  std::string port;
};

absl::StatusOr<HostAndPort> Split(absl::string_view address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok() || parsed->port == 0) {
    return FieldError(absl::StatusCode::kInvalidArgument, "target",
                      absl::StrCat("'", address, "' is not HOST:PORT, with an IPv6 address in brackets"));
  }
  return HostAndPort{parsed->host, absl::StrCat(parsed->port)};
}

// An IPv6 address, or one and a port, without brackets.
bool IsBareIpv6(absl::string_view target) {
  in6_addr address;
  const std::string whole(target), outer(target.substr(0, target.rfind(':')));
  return inet_pton(AF_INET6, whole.c_str(), &address) == 1 || inet_pton(AF_INET6, outer.c_str(), &address) == 1;
}

// "ipv4:///a" and "ipv4:a" are the same to gRPC.
bool ConsumeScheme(absl::string_view* target, absl::string_view scheme) {
  if (!absl::ConsumePrefix(target, scheme)) return false;
  absl::ConsumePrefix(target, "///");
  return true;
}

absl::StatusOr<std::vector<std::string>> Listed(absl::string_view list, absl::string_view scheme) {
  std::vector<std::string> targets;
  for (const absl::string_view address : absl::StrSplit(list, ',')) {
    INTRAWARP_RETURN_IF_ERROR(Split(address).status());
    targets.push_back(absl::StrCat(scheme, address));
  }
  if (targets.size() <= kMaxServers) return targets;
  return FieldError(absl::StatusCode::kInvalidArgument, "target",
                    absl::StrCat("names more than ", kMaxServers, " servers"));
}

std::string TargetOf(const sockaddr* address, const std::string& port) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", port);
  }
  inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof(text));
  return absl::StrCat("ipv6:[", text, "]:", port);
}

// A server with addresses of both families would count as two.
std::vector<std::string> OfOneFamily(const addrinfo* found, const std::string& port) {
  for (const int family : {AF_INET, AF_INET6}) {
    std::set<std::string> targets;
    for (const addrinfo* each = found; each != nullptr && targets.size() < kMaxServers; each = each->ai_next) {
      if (each->ai_family == family) targets.insert(TargetOf(each->ai_addr, port));
    }
    if (!targets.empty()) return {targets.begin(), targets.end()};
  }
  return {};
}

absl::StatusOr<std::vector<std::string>> LookUp(const HostAndPort& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(name.host.c_str(), name.port.c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(absl::StrCat(name.host, ": ", gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  std::vector<std::string> targets = OfOneFamily(found, name.port);
  if (targets.empty()) return absl::UnavailableError(absl::StrCat(name.host, ": has no address"));
  return targets;
}

}  // namespace

absl::StatusOr<ServerNames> ParseServerNames(const std::string& target) {
  absl::string_view rest = target;
  ServerNames names;
  // "dns://SERVER/NAME" asks a certain server of names, which is left to gRPC.
  if (ConsumeScheme(&rest, "dns:") && !absl::StartsWith(rest, "//")) {
    INTRAWARP_RETURN_IF_ERROR(Split(rest).status());
    names.dns_name = std::string(rest);
    return names;
  }
  rest = target;
  if (!absl::StrContains(rest, ",")) {
    // gRPC would take it for an address without a port.
    if (IsBareIpv6(rest)) INTRAWARP_RETURN_IF_ERROR(Split(rest).status());
    names.targets = {target};
    return names;
  }
  for (const absl::string_view scheme : {"ipv4:", "ipv6:"}) {
    if (!ConsumeScheme(&rest, scheme)) continue;
    INTRAWARP_ASSIGN_OR_RETURN(names.targets, Listed(rest, scheme));
    return names;
  }
  INTRAWARP_ASSIGN_OR_RETURN(names.targets, Listed(rest, ""));
  return names;
}

absl::StatusOr<std::vector<std::string>> Resolve(const std::string& dns_name, std::chrono::milliseconds timeout) {
  INTRAWARP_ASSIGN_OR_RETURN(HostAndPort name, Split(dns_name));
  using Answer = absl::StatusOr<std::vector<std::string>>;
  // getaddrinfo can be neither bounded nor cancelled.
  auto promise = std::make_shared<std::promise<Answer>>();
  std::future<Answer> answer = promise->get_future();
  std::thread([promise, name = std::move(name)] { promise->set_value(LookUp(name)); }).detach();
  if (answer.wait_until(std::chrono::system_clock::now() + timeout) != std::future_status::ready) {
    return absl::DeadlineExceededError(absl::StrCat(dns_name, ": the resolver does not answer"));
  }
  return answer.get();
}

}  // namespace intrawarp::client
