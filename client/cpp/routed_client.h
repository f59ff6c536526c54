// SPDX-License-Identifier: Apache-2.0
// RoutedClient: several servers behind one name, each with a Client. What belongs to one volume goes to one server, the
// first in the order of its routing key that is well (server_set.h), and to the next one when that server fails. The
// servers know nothing of each other: what a server held is not on the next one until the caller stages it there.
//
// A server is passed over when it cannot be reached, does not answer the question for its health in time, or says that
// it does not serve (it stops, or no device is well). A target that names one server is used as by Client alone:
// nothing is asked before a call, and no call is repeated.
//
// Thread safety: every method may be called from several threads at once.
#ifndef INTRAWARP_CLIENT_CPP_ROUTED_CLIENT_H_
#define INTRAWARP_CLIENT_CPP_ROUTED_CLIENT_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "client/cpp/server_names.h"
#include "client/cpp/server_set.h"

namespace intrawarp::client {

struct RoutingOptions {
  // How long a server may take to say that it serves, and a resolver to give the addresses of a name. Sessions on
  // several servers take a connection for silent after twice as long, unless ClientOptions.session_stall_timeout is
  // set.
  std::chrono::milliseconds probe_timeout{2000};
  // From HOST:PORT of a dns:/// target to the targets of its servers.
  std::function<absl::StatusOr<std::vector<std::string>>(const std::string& dns_name,
                                                         std::chrono::milliseconds timeout)>
      resolve = Resolve;
  // For so long a session whose server failed asks all servers again and again.
  std::chrono::milliseconds recovery_timeout{30000};
  // A session on another server starts from the last good answer while that is no older; later it searches its start.
  std::chrono::milliseconds max_start_age{60000};
};

// Where work belongs.
struct Route {
  // By convention the VolumeDigest of the resident volume.
  std::string key;
  // The address of the server that is tried before all others, since something lies there; empty: none.
  std::string first = {};
};

class RoutedClient {
 public:
  // `target`: server_names.h says what it may be. The addresses of a name are looked up here, and again
  // when none of its servers takes the work. INVALID_ARGUMENT as of Client::Connect, ParseServerNames and for times
  // that are not above 0; the errors of Resolve.
  static absl::StatusOr<std::unique_ptr<RoutedClient>> Connect(const std::string& target,
                                                               const ClientOptions& options = {},
                                                               const RoutingOptions& routing = {});
  RoutedClient(const RoutedClient&) = delete;
  RoutedClient& operator=(const RoutedClient&) = delete;

  const RoutingOptions& routing() const { return routing_; }
  bool has_several() const { return addresses().size() > 1; }
  // Sorted. Each is a target of Client::Connect.
  std::vector<std::string> addresses() const;
  // All of them, those to be tried first at the front.
  std::vector<std::string> Order(const Route& route) const;
  // The client of an address, which lives as long as this object; connects lazily.
  absl::StatusOr<Client*> At(const std::string& address);
  // Whether the server says in time that it serves. An error of another kind than a failing server's (the caller is not
  // known, say) counts as yes: the call that follows then tells it.
  bool IsWell(const std::string& address, const CallOptions& options = {});
  // Looks the name up again; keeps the addresses where that fails.
  void Refresh();

  // Calls work(client, address) for the servers in the order of `route`, passing over those that are not well, until it
  // ends otherwise than IsServersFault. UNAVAILABLE with the last cause when none is left. The work may have had an
  // effect on a server that failed.
  absl::Status Run(const Route& route, const CallOptions& options,
                   const std::function<absl::Status(Client& client, const std::string& address)>& work);

 private:
  RoutedClient(std::string target, ServerNames names, const ClientOptions& options, const RoutingOptions& routing)
      : target_(std::move(target)), names_(std::move(names)), options_(options), routing_(routing), set_({}) {}
  // Takes the addresses that names_ and the resolver give.
  absl::Status LookUp();
  void SetAddresses(std::vector<std::string> addresses);

  const std::string target_;
  const ServerNames names_;
  const ClientOptions options_;
  const RoutingOptions routing_;
  mutable std::mutex mutex_;  // guards what follows
  ServerSet set_;
  std::map<std::string, std::unique_ptr<Client>> clients_;
};

// The connection broke or could not be made, the server stops or has lost its device, or a proxy lost the server:
// another server may do better. A broken stream is UNAVAILABLE, and INTERNAL, UNKNOWN or CANCELLED of a proxy's making,
// none of which has a reason of the server's.
bool IsBroken(const absl::Status& status);
// IsBroken, or the server has no room: RESOURCE_EXHAUSTED for want of memory or of places for streams and sessions. An
// owner's quota and limits of calls are not among these.
bool IsServersFault(const absl::Status& status);

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_ROUTED_CLIENT_H_
