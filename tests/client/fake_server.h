// SPDX-License-Identifier: Apache-2.0
// A server in the test's process, on port 0, that does what a test tells it: each RPC is a std::function of the test.
// Set them before calls are made. What is not set answers UNIMPLEMENTED.
#ifndef INTRAWARP_TESTS_CLIENT_FAKE_SERVER_H_
#define INTRAWARP_TESTS_CLIENT_FAKE_SERVER_H_

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "intrawarp/v1/registration.grpc.pb.h"
#include "intrawarp/v1/server.grpc.pb.h"
#include "intrawarp/v1/transform.grpc.pb.h"
#include "intrawarp/v1/volume.grpc.pb.h"

namespace intrawarp::client {

template <typename... Arguments>
using Handler = std::function<grpc::Status(grpc::ServerContext*, Arguments...)>;

template <typename... Arguments>
grpc::Status Handle(const Handler<Arguments...>& handler, grpc::ServerContext* context, Arguments... arguments) {
  if (!handler) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "not set by the test");
  return handler(context, arguments...);
}

struct FakeVolumes final : v1::VolumeService::Service {
  Handler<grpc::ServerReader<v1::UploadVolumeRequest>*, v1::UploadVolumeResponse*> upload;
  Handler<const v1::GetUploadStatusRequest*, v1::GetUploadStatusResponse*> upload_status;
  Handler<const v1::GetVolumeRequest*, v1::GetVolumeResponse*> get;
  Handler<const v1::ListVolumesRequest*, v1::ListVolumesResponse*> list;
  Handler<const v1::DownloadVolumeRequest*, grpc::ServerWriter<v1::DownloadVolumeResponse>*> download;
  Handler<const v1::DeleteVolumeRequest*, v1::DeleteVolumeResponse*> remove;

  grpc::Status UploadVolume(grpc::ServerContext* context, grpc::ServerReader<v1::UploadVolumeRequest>* reader,
                            v1::UploadVolumeResponse* response) override {
    return Handle(upload, context, reader, response);
  }
  grpc::Status GetUploadStatus(grpc::ServerContext* context, const v1::GetUploadStatusRequest* request,
                               v1::GetUploadStatusResponse* response) override {
    return Handle(upload_status, context, request, response);
  }
  grpc::Status GetVolume(grpc::ServerContext* context, const v1::GetVolumeRequest* request,
                         v1::GetVolumeResponse* response) override {
    return Handle(get, context, request, response);
  }
  grpc::Status ListVolumes(grpc::ServerContext* context, const v1::ListVolumesRequest* request,
                           v1::ListVolumesResponse* response) override {
    return Handle(list, context, request, response);
  }
  grpc::Status DownloadVolume(grpc::ServerContext* context, const v1::DownloadVolumeRequest* request,
                              grpc::ServerWriter<v1::DownloadVolumeResponse>* writer) override {
    return Handle(download, context, request, writer);
  }
  grpc::Status DeleteVolume(grpc::ServerContext* context, const v1::DeleteVolumeRequest* request,
                            v1::DeleteVolumeResponse* response) override {
    return Handle(remove, context, request, response);
  }
};

struct FakeTransforms final : v1::TransformService::Service {
  Handler<grpc::ServerReader<v1::UploadTransformRequest>*, v1::UploadTransformResponse*> upload;
  Handler<const v1::DownloadFieldRequest*, grpc::ServerWriter<v1::DownloadFieldResponse>*> download;
  Handler<const v1::MapPointsRequest*, v1::MapPointsResponse*> map_points;

  grpc::Status UploadTransform(grpc::ServerContext* context, grpc::ServerReader<v1::UploadTransformRequest>* reader,
                               v1::UploadTransformResponse* response) override {
    return Handle(upload, context, reader, response);
  }
  grpc::Status DownloadField(grpc::ServerContext* context, const v1::DownloadFieldRequest* request,
                             grpc::ServerWriter<v1::DownloadFieldResponse>* writer) override {
    return Handle(download, context, request, writer);
  }
  grpc::Status MapPoints(grpc::ServerContext* context, const v1::MapPointsRequest* request,
                         v1::MapPointsResponse* response) override {
    return Handle(map_points, context, request, response);
  }
};

struct FakeRegistration final : v1::RegistrationService::Service {
  Handler<const v1::RegisterRequest*, grpc::ServerWriter<v1::RegisterResponse>*> register_once;
  Handler<grpc::ServerReaderWriter<v1::NavigateResponse, v1::NavigateRequest>*> navigate;

  grpc::Status Register(grpc::ServerContext* context, const v1::RegisterRequest* request,
                        grpc::ServerWriter<v1::RegisterResponse>* writer) override {
    return Handle(register_once, context, request, writer);
  }
  grpc::Status Navigate(grpc::ServerContext* context,
                        grpc::ServerReaderWriter<v1::NavigateResponse, v1::NavigateRequest>* stream) override {
    return Handle(navigate, context, stream);
  }
};

class FakeServer {
 public:
  FakeServer() {
    // The last shutdown of the library may wait ten seconds for one of its pollers; so there is none.
    static const bool initialised = (grpc_init(), true);
    (void)initialised;
    grpc::EnableDefaultHealthCheckService(true);
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&volumes);
    builder.RegisterService(&transforms);
    builder.RegisterService(&registration);
    server_ = builder.BuildAndStart();
    target_ = absl::StrCat("127.0.0.1:", port);
  }
  ~FakeServer() {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  const std::string& target() const { return target_; }
  grpc::Server& server() { return *server_; }

  FakeVolumes volumes;
  FakeTransforms transforms;
  FakeRegistration registration;

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string target_;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_TESTS_CLIENT_FAKE_SERVER_H_
