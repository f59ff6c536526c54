// SPDX-License-Identifier: Apache-2.0
// What was built.
#ifndef INTRAWARP_SERVER_BASE_VERSION_H_
#define INTRAWARP_SERVER_BASE_VERSION_H_

#include <string>

namespace intrawarp::server {

struct BuildInfo {
  std::string version;
  std::string revision;
  std::string cuda;  // "none" in a build without
  // grpc::Version(), where gRPC is linked.
  std::string grpc;
};

// Without the version of gRPC.
BuildInfo ThisBuild();

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BASE_VERSION_H_
