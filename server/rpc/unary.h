// SPDX-License-Identifier: Apache-2.0
// How unary calls are answered, and the pages of lists. Functions are thread-safe.
#ifndef INTRAWARP_SERVER_RPC_UNARY_H_
#define INTRAWARP_SERVER_RPC_UNARY_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "server/base/paging.h"
#include "server/rpc/grpc_status.h"
#include "server/store/durable_objects.h"

namespace intrawarp::server {

// Answers a call at once. The response is filled before.
inline grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* call, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

// Answers a call with what `work` returns, which may wait for the disk.
inline grpc::ServerUnaryReactor* ReplyFromDisk(grpc::CallbackServerContext* call, DurableObjects& durable,
                                               std::function<absl::Status()> work) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  durable.Run([reactor, work = std::move(work)] { reactor->Finish(ToGrpcStatus(work())); });
  return reactor;
}

// Messages of a list by their OwnedKey, which is the order of every list.
template <typename Message>
using ListedMessages = std::map<std::string, Message>;

// Moves one page of a collection to `items`, which belongs to `response`, as the request's page_size and page_token ask
// for it. `list(after, limit)` returns the messages that come after the key `after` ("" is before all): at least the
// first `limit` of them, or all. Errors name page_size or page_token.
template <typename Request, typename Response, typename Message, typename ListFn>
absl::Status ListPage(absl::string_view collection, const Request& request, Response& response,
                      google::protobuf::RepeatedPtrField<Message>& items, const ListFn& list) {
  INTRAWARP_ASSIGN_OR_RETURN(const int page_size, PageSize(request.page_size()));
  INTRAWARP_ASSIGN_OR_RETURN(const std::string after, ParsePageToken(collection, request.page_token()));
  // One more than asked tells whether there is a next page.
  ListedMessages<Message> found = list(after, page_size + 1);
  std::string last;
  for (auto& [key, message] : found) {
    if (items.size() == page_size) {
      response.set_next_page_token(PageToken(collection, last));
      break;
    }
    *items.Add() = std::move(message);
    last = key;
  }
  return absl::OkStatus();
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_UNARY_H_
