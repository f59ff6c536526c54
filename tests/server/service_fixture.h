// SPDX-License-Identifier: Apache-2.0
// A real server in this process and stubs on a channel to it, for tests of the services that compute; on every device
// present. Each test ends with a check that nothing is left: no stream, no job, no pinned memory, no reserved bytes.
#ifndef INTRAWARP_TESTS_SERVER_SERVICE_FIXTURE_H_
#define INTRAWARP_TESTS_SERVER_SERVICE_FIXTURE_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "intrawarp/v1/registration.grpc.pb.h"
#include "intrawarp/v1/transform.grpc.pb.h"
#include "tests/engine/device_test.h"
#include "tests/server/blobs.h"
#include "tests/server/bulk_client.h"
#include "tests/server/job_blocker.h"
#include "tests/server/status_details.h"
#include "tests/server/test_server.h"
#include "tests/support/eventually.h"

namespace intrawarp::server {

class ServiceTest : public testing::TestWithParam<std::string> {
 protected:
  ServiceTest();
  // `change` changes the options before the server starts; may be empty.
  explicit ServiceTest(const ServerLimits& limits, const std::function<void(ServerOptions&)>& change = nullptr);
  ~ServiceTest() override;

  void TearDown() override;

  // A server with these options takes the place of the last one, which has ended, and is connected.
  void Serve(const ServerOptions& options);
  // A channel and the stubs on it.
  void Connect();
  std::shared_ptr<grpc::Channel> NewChannel() const { return NewConnection(*server_); }

  DeviceContext& context() { return server_->context(); }
  // The server's clock goes on by so much.
  void AdvanceClock(std::chrono::nanoseconds by) { clock_.Advance(by); }

  // Runs on the server's scheduler, whose streams outlive what is made there.
  void OnDevice(int64_t workspace_bytes, const std::function<void(const ExecContext&)>& body);

  // Makes "volumes/{id}" resident. An empty digest is that of the id.
  void PutVolume(const std::string& id, const Geometry& geometry, const std::vector<float>& voxels,
                 const std::string& digest = "");
  // Stores "transforms/{id}" without a report.
  void PutTransform(const std::string& id, Transform transform);

  // The whole field by the engine.
  std::vector<float> EngineField(const std::string& id, const Geometry& grid);
  std::vector<float> EngineWarp(const std::string& transform, const std::string& moving, bool inverse,
                                Interpolation interpolation, float fill, const Geometry& grid);

  // The calls, and everything that came back.
  struct RegisterAnswer {
    grpc::Status status;
    std::vector<v1::Progress> progress;
    std::optional<v1::FieldHeader> field;
    ChunkCollector chunks;
    std::optional<v1::RegisterResult> result;
  };
  RegisterAnswer Register(const v1::RegisterRequest& request, grpc::ClientContext* rpc = nullptr);
  void ExpectRegisterError(const v1::RegisterRequest& request, grpc::StatusCode code, const std::string& text,
                           const std::string& field);

  struct Upload {
    grpc::Status status;
    v1::UploadResponse response;
  };
  Upload Send(const std::vector<v1::UploadRequest>& requests);
  // A request whose header has an upload_id of its own.
  static v1::UploadRequest HeaderRequest(const std::string& id, const std::string& bytes);
  static std::vector<v1::UploadRequest> FieldRequests(const std::string& id, const Geometry& grid,
                                                      const std::string& bytes, size_t chunk_bytes = size_t{1} << 20);

  static v1::DownloadRequest WholeField(const std::string& id);
  struct Download {
    grpc::Status status;
    std::optional<v1::FieldHeader> field;
    std::optional<v1::WarpHeader> warp;
    ChunkCollector chunks;
    std::string etag;
  };
  Download GetField(const v1::DownloadRequest& request);
  Download Warp(const v1::WarpVolumeRequest& request);

  FakeClock clock_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::RegistrationService::Stub> registration_;
  std::unique_ptr<v1::TransformService::Stub> transforms_;
  std::unique_ptr<v1::BulkService::Stub> bulk_;

 private:
  // No call that is over has left a reference behind: the store's and the list's are the only ones.
  bool NobodyHoldsAVolume();
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_SERVICE_FIXTURE_H_
