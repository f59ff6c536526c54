// SPDX-License-Identifier: Apache-2.0
// grpc.health.v1 by its wire format, for which Debian has no header: {string service = 1} -> {enum status = 1}.
#ifndef INTRAWARP_TESTS_SERVER_HEALTH_CLIENT_H_
#define INTRAWARP_TESTS_SERVER_HEALTH_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "tests/server/raw_call.h"

namespace intrawarp::server {

inline constexpr char kServing[] = "\x08\x01";
inline constexpr char kNotServing[] = "\x08\x02";

inline grpc::ByteBuffer HealthRequest(const std::string& service) {
  std::string bytes;
  if (!service.empty()) bytes = std::string("\x0a") + static_cast<char>(service.size()) + service;
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// The answer's bytes; empty for none.
inline std::string CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service = "") {
  RawCall check(channel, "/grpc.health.v1.Health/Check");
  check.Write(HealthRequest(service));
  const std::string answer = check.Read().value_or("");
  check.Finish();
  return answer;
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_HEALTH_CLIENT_H_
