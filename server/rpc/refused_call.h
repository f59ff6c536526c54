// SPDX-License-Identifier: Apache-2.0
// How RpcMonitor tells the reactors of streaming calls that a call is beyond the limit and has to end at once: by a key
// among the metadata that the client sent. A client that sends the key itself is refused, too.
#ifndef INTRAWARP_SERVER_RPC_REFUSED_CALL_H_
#define INTRAWARP_SERVER_RPC_REFUSED_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/string_ref.h>

#include <map>

namespace intrawarp::server {

inline constexpr char kRefusedKey[] = "intrawarp-refused";

// Before the handler of the call runs.
inline void MarkRefused(std::multimap<grpc::string_ref, grpc::string_ref>& client_metadata) {
  client_metadata.emplace(kRefusedKey, "");
}

inline bool IsRefused(const grpc::ServerContextBase& call) { return call.client_metadata().count(kRefusedKey) > 0; }

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_REFUSED_CALL_H_
