// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/routed_client.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/rpc_status.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "intrawarp/v1/error.pb.h"

namespace intrawarp::client {
namespace {

constexpr std::array<v1::ErrorReason, 6> kNoRoom = {v1::RESIDENT_MEMORY,  v1::PINNED_MEMORY,    v1::DEVICE_MEMORY,
                                                    v1::WORKSPACE_MEMORY, v1::TOO_MANY_STREAMS, v1::TOO_MANY_SESSIONS};

bool IsCancelled(const CallOptions& options) {
  return options.cancellation != nullptr && options.cancellation->cancelled();
}

}  // namespace

bool IsBroken(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return true;
  const bool may_be_a_proxys = absl::IsInternal(status) || absl::IsUnknown(status) || absl::IsCancelled(status);
  return may_be_a_proxys && ReasonOf(status).empty();
}

bool IsServersFault(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return IsBroken(status);
  const std::string reason = ReasonOf(status);
  return std::any_of(kNoRoom.begin(), kNoRoom.end(),
                     [&reason](v1::ErrorReason each) { return v1::ErrorReason_Name(each) == reason; });
}

absl::StatusOr<std::unique_ptr<RoutedClient>> RoutedClient::Connect(const std::string& target,
                                                                    const ClientOptions& options,
                                                                    const RoutingOptions& routing) {
  if (routing.probe_timeout.count() <= 0) {
    return FieldError(absl::StatusCode::kInvalidArgument, "probe_timeout", "must be above 0");
  }
  if (routing.recovery_timeout.count() <= 0) {
    return FieldError(absl::StatusCode::kInvalidArgument, "recovery_timeout", "must be above 0");
  }
  INTRAWARP_ASSIGN_OR_RETURN(ServerNames names, ParseServerNames(target));
  auto client = std::unique_ptr<RoutedClient>(new RoutedClient(target, std::move(names), options, routing));
  INTRAWARP_RETURN_IF_ERROR(client->LookUp());
  // A wrong option shows here rather than with the first call.
  INTRAWARP_RETURN_IF_ERROR(client->At(client->addresses().front()).status());
  return client;
}

absl::Status RoutedClient::LookUp() {
  if (names_.dns_name.empty()) {
    SetAddresses(names_.targets);
    return absl::OkStatus();
  }
  INTRAWARP_ASSIGN_OR_RETURN(std::vector<std::string> found, routing_.resolve(names_.dns_name, routing_.probe_timeout));
  // gRPC looks for a lone server itself.
  if (found.size() == 1) found = {target_};
  SetAddresses(std::move(found));
  return absl::OkStatus();
}

void RoutedClient::Refresh() {
  if (!names_.dns_name.empty()) (void)LookUp();
}

void RoutedClient::SetAddresses(std::vector<std::string> addresses) {
  std::lock_guard<std::mutex> lock(mutex_);
  set_ = ServerSet(std::move(addresses));
}

std::vector<std::string> RoutedClient::addresses() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return set_.addresses();
}

std::vector<std::string> RoutedClient::Order(const Route& route) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> order = set_.Order(route.key);
  const auto first = std::find(order.begin(), order.end(), route.first);
  if (first != order.end()) std::rotate(order.begin(), first, first + 1);
  return order;
}

absl::StatusOr<Client*> RoutedClient::At(const std::string& address) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Client>& client = clients_[address];
  if (client != nullptr) return client.get();
  ClientOptions options = options_;
  if (set_.addresses().size() > 1) {
    if (options.session_stall_timeout.count() == 0) options.session_stall_timeout = routing_.probe_timeout;
    if (options.authority.empty()) options.authority = names_.dns_name;
  }
  INTRAWARP_ASSIGN_OR_RETURN(client, Client::Connect(address, options));
  return client.get();
}

bool RoutedClient::IsWell(const std::string& address, const CallOptions& options) {
  const absl::StatusOr<Client*> client = At(address);
  if (!client.ok()) return false;
  CallOptions probe = options;
  probe.timeout = routing_.probe_timeout;
  const absl::StatusOr<bool> serving = (*client)->IsServing("", probe);
  if (serving.ok()) return *serving;
  return !IsBroken(serving.status()) && !absl::IsDeadlineExceeded(serving.status());
}

absl::Status RoutedClient::Run(const Route& route, const CallOptions& options,
                               const std::function<absl::Status(Client& client, const std::string& address)>& work) {
  const std::vector<std::string> order = Order(route);
  if (order.size() == 1) {
    INTRAWARP_ASSIGN_OR_RETURN(Client* const client, At(order.front()));
    return work(*client, order.front());
  }
  absl::Status last = absl::UnavailableError("none of them is well");
  for (const std::string& address : order) {
    if (IsCancelled(options)) return absl::CancelledError("cancelled");
    if (!IsWell(address, options)) continue;
    INTRAWARP_ASSIGN_OR_RETURN(Client* const client, At(address));
    const absl::Status status = work(*client, address);
    if (!IsServersFault(status) || IsCancelled(options)) return status;
    last = absl::Status(status.code(), absl::StrCat(address, ": ", status.message()));
  }
  Refresh();
  return absl::Status(last.code(), absl::StrCat("no server is left of ", order.size(), ": ", last.message()));
}

}  // namespace intrawarp::client
