// SPDX-License-Identifier: Apache-2.0
// TransformService: stored transforms, and what is computed with them.
#ifndef INTRAWARP_SERVER_SERVICE_TRANSFORM_SERVICE_H_
#define INTRAWARP_SERVER_SERVICE_TRANSFORM_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "intrawarp/v1/transform.pb.h"
#include "server/context/server_context.h"
#include "server/store/transform_store.h"

namespace intrawarp::server {

// `context` must outlive the service and every job it has submitted.
std::unique_ptr<grpc::Service> MakeTransformService(ServerContext& context);

v1::Transform TransformToProto(const StoredTransform& from, bool with_report);

// "transforms/{id}" named by `field`: INVALID_ARGUMENT or NOT_FOUND.
absl::StatusOr<std::shared_ptr<const StoredTransform>> FindTransform(const TransformStore& transforms,
                                                                     const std::string& name, absl::string_view field,
                                                                     const Identity& caller);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVICE_TRANSFORM_SERVICE_H_
