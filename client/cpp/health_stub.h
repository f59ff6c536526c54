// SPDX-License-Identifier: Apache-2.0
// grpc.health.v1.Health/Check without its proto. Internal to the client library.
#ifndef INTRAWARP_CLIENT_CPP_HEALTH_STUB_H_
#define INTRAWARP_CLIENT_CPP_HEALTH_STUB_H_

#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>

namespace intrawarp::client {

inline constexpr char kHealthCheckMethod[] = "/grpc.health.v1.Health/Check";

// HealthCheckRequest {string service = 1} and HealthCheckResponse {enum status = 1} have the wire format of these two
// well-known wrappers.
using HealthStub = grpc::TemplatedGenericStub<google::protobuf::StringValue, google::protobuf::Int32Value>;

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_HEALTH_STUB_H_
