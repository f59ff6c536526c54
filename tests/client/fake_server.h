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
#include "intrawarp/v1/bulk.grpc.pb.h"
#include "intrawarp/v1/registration.grpc.pb.h"
#include "intrawarp/v1/server.grpc.pb.h"
#include "intrawarp/v1/transform.grpc.pb.h"
#include "intrawarp/v1/volume.grpc.pb.h"
#include "io/file/crc32c.h"

namespace intrawarp::client {

template <typename... Arguments>
using Handler = std::function<grpc::Status(grpc::ServerContext*, Arguments...)>;

template <typename... Arguments>
grpc::Status Handle(const Handler<Arguments...>& handler, grpc::ServerContext* context, Arguments... arguments) {
  if (!handler) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "not set by the test");
  return handler(context, arguments...);
}

struct FakeVolumes final : v1::VolumeService::Service {
  Handler<const v1::GetVolumeRequest*, v1::GetVolumeResponse*> get;
  Handler<const v1::ListVolumesRequest*, v1::ListVolumesResponse*> list;
  Handler<const v1::DeleteVolumeRequest*, v1::DeleteVolumeResponse*> remove;

  grpc::Status GetVolume(grpc::ServerContext* context, const v1::GetVolumeRequest* request,
                         v1::GetVolumeResponse* response) override {
    return Handle(get, context, request, response);
  }
  grpc::Status ListVolumes(grpc::ServerContext* context, const v1::ListVolumesRequest* request,
                           v1::ListVolumesResponse* response) override {
    return Handle(list, context, request, response);
  }
  grpc::Status DeleteVolume(grpc::ServerContext* context, const v1::DeleteVolumeRequest* request,
                            v1::DeleteVolumeResponse* response) override {
    return Handle(remove, context, request, response);
  }
};

struct FakeBulk final : v1::BulkService::Service {
  Handler<grpc::ServerReader<v1::UploadRequest>*, v1::UploadResponse*> upload;
  Handler<const v1::GetUploadStatusRequest*, v1::GetUploadStatusResponse*> upload_status;
  Handler<const v1::DownloadRequest*, grpc::ServerWriter<v1::DownloadResponse>*> download;

  grpc::Status Upload(grpc::ServerContext* context, grpc::ServerReader<v1::UploadRequest>* reader,
                      v1::UploadResponse* response) override {
    return Handle(upload, context, reader, response);
  }
  grpc::Status GetUploadStatus(grpc::ServerContext* context, const v1::GetUploadStatusRequest* request,
                               v1::GetUploadStatusResponse* response) override {
    return Handle(upload_status, context, request, response);
  }
  grpc::Status Download(grpc::ServerContext* context, const v1::DownloadRequest* request,
                        grpc::ServerWriter<v1::DownloadResponse>* writer) override {
    return Handle(download, context, request, writer);
  }
};

// A chunk as a server sends it.
inline v1::Chunk MakeChunk(int64_t offset, const std::string& data) {
  v1::Chunk chunk;
  chunk.set_offset(offset);
  chunk.set_crc32c(io::Crc32c(data.data(), data.size()));
  chunk.set_data(data);
  return chunk;
}

struct FakeTransforms final : v1::TransformService::Service {
  Handler<const v1::MapPointsRequest*, v1::MapPointsResponse*> map_points;
  Handler<const v1::WarpVolumeRequest*, grpc::ServerWriter<v1::WarpVolumeResponse>*> warp;

  grpc::Status MapPoints(grpc::ServerContext* context, const v1::MapPointsRequest* request,
                         v1::MapPointsResponse* response) override {
    return Handle(map_points, context, request, response);
  }
  grpc::Status WarpVolume(grpc::ServerContext* context, const v1::WarpVolumeRequest* request,
                          grpc::ServerWriter<v1::WarpVolumeResponse>* writer) override {
    return Handle(warp, context, request, writer);
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
    builder.RegisterService(&bulk);
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

  FakeBulk bulk;
  FakeVolumes volumes;
  FakeTransforms transforms;
  FakeRegistration registration;

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string target_;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_TESTS_CLIENT_FAKE_SERVER_H_
