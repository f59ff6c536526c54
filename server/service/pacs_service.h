// SPDX-License-Identifier: Apache-2.0
// PacsService: the archives of the configuration, asked and imported from.
#ifndef INTRAWARP_SERVER_SERVICE_PACS_SERVICE_H_
#define INTRAWARP_SERVER_SERVICE_PACS_SERVICE_H_

#include "intrawarp/v1/pacs.grpc.pb.h"
#include "server/context/server_context.h"
#include "server/pacs/importer.h"
#include "server/pacs/search_rate.h"

namespace intrawarp::server {

class PacsService final : public v1::PacsService::CallbackService {
 public:
  // Both outlive it. `importer`: null on a server without archives.
  PacsService(ServerContext& context, Importer* importer) : context_(context), importer_(importer) {}

  grpc::ServerUnaryReactor* ListRemotes(grpc::CallbackServerContext* call, const v1::ListRemotesRequest* request,
                                        v1::ListRemotesResponse* response) override;
  grpc::ServerUnaryReactor* EchoRemote(grpc::CallbackServerContext* call, const v1::EchoRemoteRequest* request,
                                       v1::EchoRemoteResponse* response) override;
  grpc::ServerUnaryReactor* FindSeries(grpc::CallbackServerContext* call, const v1::FindSeriesRequest* request,
                                       v1::FindSeriesResponse* response) override;
  grpc::ServerUnaryReactor* ImportSeries(grpc::CallbackServerContext* call, const v1::ImportSeriesRequest* request,
                                         v1::ImportSeriesResponse* response) override;

 private:
  absl::StatusOr<const Archive*> ArchiveOf(const std::string& name) const;
  absl::StatusOr<OperationTable::Begun> BeginImport(const grpc::CallbackServerContext& call,
                                                    const v1::ImportSeriesRequest& request, SeriesImport& import);
  absl::Status CheckSearch(const grpc::CallbackServerContext& call, const Archive& archive, const SeriesQuery& query);

  ServerContext& context_;
  Importer* const importer_;
  SearchRate searches_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVICE_PACS_SERVICE_H_
