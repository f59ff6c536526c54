// SPDX-License-Identifier: Apache-2.0
#include "server/services.h"

#include <utility>

#include "intrawarp/v1/bulk.grpc.pb.h"
#include "intrawarp/v1/operation.grpc.pb.h"
#include "intrawarp/v1/pacs.grpc.pb.h"
#include "intrawarp/v1/registration.grpc.pb.h"
#include "intrawarp/v1/sparse_matrix.grpc.pb.h"
#include "intrawarp/v1/transform.grpc.pb.h"
#include "server/service/bulk_service.h"
#include "server/service/matrix_service.h"
#include "server/service/operation_service.h"
#include "server/service/pacs_service.h"
#include "server/service/registration_service.h"
#include "server/service/server_service.h"
#include "server/service/transform_service.h"
#include "server/service/volume_service.h"
#include "server/session/rpc/session_service.h"

namespace intrawarp::server {
namespace {

template <typename Service>
void Add(ServerContext& context, const char* name, std::vector<NamedService>& services) {
  services.push_back({name, std::make_unique<Service>(context)});
}

}  // namespace

std::vector<NamedService> MakeServices(ServerContext& context, Importer* importer) {
  std::vector<NamedService> services;
  Add<VolumeService>(context, v1::VolumeService::service_full_name(), services);
  Add<ServerService>(context, v1::ServerService::service_full_name(), services);
  services.push_back({v1::RegistrationService::service_full_name(), MakeRegistrationService(context)});
  Add<OperationService>(context, v1::OperationService::service_full_name(), services);
  Add<SessionService>(context, v1::SessionService::service_full_name(), services);
  services.push_back({v1::TransformService::service_full_name(), MakeTransformService(context)});
  services.push_back({v1::SparseMatrixService::service_full_name(), MakeMatrixService(context)});
  services.push_back({v1::BulkService::service_full_name(), MakeBulkService(context)});
  services.push_back({v1::PacsService::service_full_name(), std::make_unique<PacsService>(context, importer)});
  return services;
}

}  // namespace intrawarp::server
