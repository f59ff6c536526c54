// SPDX-License-Identifier: Apache-2.0
#include "server/services.h"

#include <utility>

#include "server/server_service.h"

namespace intrawarp {
namespace {

template <typename Service>
void Add(ServerContext& context, const char* name, std::vector<NamedService>& services) {
  services.push_back({name, std::make_unique<Service>(context)});
}

}  // namespace

std::vector<NamedService> MakeServices(ServerContext& context) {
  std::vector<NamedService> services;
  Add<ServerService>(context, v1::ServerService::service_full_name(), services);
  return services;
}

}  // namespace intrawarp
