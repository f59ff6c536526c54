// SPDX-License-Identifier: Apache-2.0
// A message of the wire as JSON for --json: the names of the proto; numbers as numbers; bytes in hexadecimal digits;
// times as RFC 3339 in UTC and durations as seconds; values of enums without the prefix that they share, in lower case
// ("control_grid"). An optional field that is unset is null, and so is a number that is not finite. Thread-safe
// functions.
#ifndef INTRAWARP_CLIENT_CLI_MESSAGE_JSON_H_
#define INTRAWARP_CLIENT_CLI_MESSAGE_JSON_H_

#include <google/protobuf/message.h>

#include "client/cli/report_json.h"

namespace intrawarp::cli {

Json MessageToJson(const google::protobuf::Message& message);

// A list of messages.
template <typename Messages>
Json ListToJson(const Messages& messages) {
  Json list = Json::array();
  for (const auto& message : messages) list.push_back(MessageToJson(message));
  return list;
}

// 2026-11-26T01:30:00Z; null for a time that is not set.
Json TimeToJson(bool is_set, const google::protobuf::Message& timestamp);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_MESSAGE_JSON_H_
