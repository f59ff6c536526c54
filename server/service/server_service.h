// SPDX-License-Identifier: Apache-2.0
// ServerService: what this server is, what it can do, what it holds, and how talkative its log is.
#ifndef INTRAWARP_SERVER_SERVICE_SERVER_SERVICE_H_
#define INTRAWARP_SERVER_SERVICE_SERVER_SERVICE_H_

#include "intrawarp/v1/server.grpc.pb.h"
#include "server/base/seams.h"
#include "server/context/server_context.h"
#include "server/identity/identity.h"

namespace intrawarp::server {

class ServerService final : public v1::ServerService::CallbackService {
 public:
  explicit ServerService(ServerContext& context) : context_(context), start_time_(context.seams.system_now()) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* call, const v1::GetServerInfoRequest* request,
                                          v1::GetServerInfoResponse* response) override;
  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* call, const v1::SetLogLevelRequest* request,
                                        v1::SetLogLevelResponse* response) override;

 private:
  void FillDevice(const Identity& caller, const DeviceContext& from, v1::Device* to) const;
  void FillLimits(v1::Limits* to) const;
  void FillUsage(const Identity& caller, v1::Usage* to) const;
  void FillResources(const Identity& caller, v1::Resources* to) const;
  void FillLogLevels(google::protobuf::RepeatedPtrField<v1::RoomLogLevel>* to) const;
  absl::Status SetLevels(const v1::SetLogLevelRequest& request);

  ServerContext& context_;
  const std::chrono::system_clock::time_point start_time_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVICE_SERVER_SERVICE_H_
