// SPDX-License-Identifier: Apache-2.0
#include "server/service/bulk_service.h"

#include "engine/base/status_macros.h"
#include "intrawarp/v1/bulk.grpc.pb.h"
#include "server/base/names.h"
#include "server/bulk/upload_spec.h"
#include "server/bulk/upload_store.h"
#include "server/rpc/caller.h"
#include "server/rpc/unary.h"
#include "server/service/download.h"
#include "server/service/upload.h"

namespace intrawarp::server {
namespace {

absl::Status UploadStatus(const UploadStore& uploads, const Identity& caller, const v1::GetUploadStatusRequest& request,
                          v1::GetUploadStatusResponse& response) {
  INTRAWARP_RETURN_IF_ERROR(ValidateUploadId(request.upload_id(), "upload_id"));
  INTRAWARP_ASSIGN_OR_RETURN(const UploadProgress progress, uploads.Progress(request.upload_id(), caller.name));
  response.set_committed_bytes(progress.received);
  response.set_total_bytes(progress.total_bytes);
  return absl::OkStatus();
}

using Base = v1::BulkService::WithRawCallbackMethod_Upload<v1::BulkService::WithRawCallbackMethod_Download<
    v1::BulkService::WithCallbackMethod_GetUploadStatus<v1::BulkService::Service>>>;

class BulkService final : public Base {
 public:
  explicit BulkService(ServerContext& context) : context_(context) {}

  grpc::ServerReadReactor<grpc::ByteBuffer>* Upload(grpc::CallbackServerContext* call,
                                                    grpc::ByteBuffer* response) override {
    return StartUpload(context_, call, response);
  }
  grpc::ServerUnaryReactor* GetUploadStatus(grpc::CallbackServerContext* call,
                                            const v1::GetUploadStatusRequest* request,
                                            v1::GetUploadStatusResponse* response) override {
    return Reply(call, UploadStatus(context_.uploads, CallerOf(*call), *request, *response));
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Download(grpc::CallbackServerContext* call,
                                                       const grpc::ByteBuffer* request) override {
    return StartDownload(context_, *call, *request);
  }

 private:
  ServerContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeBulkService(ServerContext& context) {
  return std::make_unique<BulkService>(context);
}

}  // namespace intrawarp::server
