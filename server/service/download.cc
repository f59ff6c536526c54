// SPDX-License-Identifier: Apache-2.0
#include "server/service/download.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/base/version.h"
#include "server/base/worker_pool.h"
#include "server/device/device_set.h"
#include "server/job/job_support.h"
#include "server/placement/replication.h"
#include "server/rpc/chunk_codec.h"
#include "server/service/transform_download.h"
#include "server/sparse/sparse_matrix_kind.h"
#include "server/store/residency.h"
#include "server/volume/volume_kind.h"

namespace intrawarp::server {
namespace {

constexpr size_t kEtagBytes = 16;

absl::Status CheckName(const v1::DownloadRequest& request) {
  if (request.has_field()) return InvalidField("field", "goes with a transform alone");
  if (request.has_geometry()) return InvalidField("geometry", "goes with a transform alone");
  for (const std::string& folder : {VolumeName(""), SparseMatrixName("")}) {
    if (absl::StartsWith(request.name(), folder)) return absl::OkStatus();
  }
  return InvalidField("name", absl::StrCat("must be \"", VolumeName("{id}"), "\", \"", SparseMatrixName("{id}"),
                                           "\" or \"", TransformName("{id}"), "\""));
}

absl::Status SendResident(ServerContext& context, const v1::DownloadRequest& request, ResidentDownload download,
                          const std::shared_ptr<JobStream>& stream) {
  v1::DownloadResponse response;
  v1::DownloadHeader& header = *response.mutable_header();
  header = std::move(download.header);
  header.set_etag(Etag().Add(request.name(), download.create_time).Add(download.digest).Finish());
  INTRAWARP_RETURN_IF_ERROR(CheckResumption(request.offset(), request.etag(), header.total_bytes(), header.etag()));
  DeviceContext& device = context.devices[download.device];
  INTRAWARP_RETURN_IF_ERROR(CheckPlaced(device));
  auto source = std::make_shared<ResidentSource>(std::move(download.bytes));
  const int64_t ring = DeviceBulk::RingBytes(source->total_bytes(), source->slab_bytes(), request.offset());
  Claim claim{{.pinned_bytes = ring}};
  claim.owner = stream->caller().name;
  INTRAWARP_ASSIGN_OR_RETURN(Grant grant, Admit(context, claim));
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<DeviceBulk> bulk,
                             DeviceBulk::Create(device, std::move(source), request.offset(), grant));
  INTRAWARP_RETURN_IF_ERROR(
      StartBulk(stream, SerializeMessage(response), std::move(bulk), v1::DownloadResponse::kChunkFieldNumber));
  stream->Close(absl::OkStatus());
  return absl::OkStatus();
}

// Waits for the voxels where they are not on the device.
absl::Status SendVolume(ServerContext& context, const v1::DownloadRequest& request,
                        const std::shared_ptr<JobStream>& stream) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, ParseVolumeName(request.name(), "name"));
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<const StoredVolume> found,
                             context.volumes.Find(id, stream->caller()));
  if (HasVoxels(*found)) {
    if (found->residency != nullptr) found->residency->Touch();
    return SendResident(context, request, DownloadOf(found), stream);
  }
  LoadVolume(PlaceObject(context), found,
             [&context, request, stream](const absl::StatusOr<std::shared_ptr<const StoredVolume>>& loaded) {
               if (!loaded.ok()) return stream->Close(loaded.status());
               if (stream->closed()) return;
               context.workers.Submit([&context, request, stream, volume = *loaded] {
                 const absl::Status status =
                     stream->closed() ? absl::OkStatus() : SendResident(context, request, DownloadOf(volume), stream);
                 if (!status.ok()) stream->Close(status);
               });
             });
  return absl::OkStatus();
}

absl::Status Send(ServerContext& context, const grpc::ByteBuffer& bytes, const std::shared_ptr<JobStream>& stream) {
  INTRAWARP_ASSIGN_OR_RETURN(const v1::DownloadRequest request, ParseMessage<v1::DownloadRequest>(bytes));
  stream->audit().Name("object", request.name());
  if (absl::StartsWith(request.name(), TransformName(""))) return SendField(context, request, stream);
  INTRAWARP_RETURN_IF_ERROR(CheckName(request));
  if (absl::StartsWith(request.name(), VolumeName(""))) return SendVolume(context, request, stream);
  INTRAWARP_ASSIGN_OR_RETURN(ResidentDownload download,
                             FindSparseMatrixDownload(context, request.name(), stream->caller()));
  return SendResident(context, request, std::move(download), stream);
}

}  // namespace

absl::Status StartBulk(const std::shared_ptr<JobStream>& stream, grpc::ByteBuffer header,
                       std::shared_ptr<DeviceBulk> bulk, int chunk_field) {
  stream->SendBulk(std::move(header), bulk, chunk_field);
  return bulk->Start([stream](const absl::Status& status) {
    if (!status.ok()) stream->Close(status);
    return status.ok() && stream->Advanced();
  });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartDownload(ServerContext& context,
                                                          const grpc::CallbackServerContext& rpc,
                                                          const grpc::ByteBuffer& request) {
  std::shared_ptr<JobStream> stream = JobStream::Create(context, rpc);
  if (stream->closed()) return stream.get();
  // The request shares its slices. A ring of slabs may have to be page-locked.
  context.workers.Submit([&context, request, stream] {
    const absl::Status status = stream->closed() ? absl::OkStatus() : Send(context, request, stream);
    if (!status.ok()) stream->Close(status);
  });
  return stream.get();
}

Etag& Etag::Add(absl::string_view question) {
  const uint64_t size = question.size();
  hash_.Update(&size, sizeof(size));
  hash_.Update(question.data(), question.size());
  return *this;
}

Etag& Etag::Add(absl::string_view name, std::chrono::system_clock::time_point create_time) {
  const int64_t ticks = create_time.time_since_epoch().count();
  Add(name);
  hash_.Update(&ticks, sizeof(ticks));
  return *this;
}

Etag& Etag::AddComputer(const Device& device) {
  return Add(device.kind() == DeviceKind::kCuda ? "cuda" : "cpu").Add(device.model()).Add(ThisBuild().revision);
}

std::string Etag::Finish() { return absl::BytesToHexString(hash_.Finish().substr(0, kEtagBytes)); }

absl::Status CheckResumption(int64_t offset, absl::string_view wanted, int64_t total_bytes, absl::string_view etag) {
  if (!wanted.empty() && wanted != etag) {
    return WithReason(absl::AbortedError("the bytes are not those of this etag any more"), v1::CONTENT_CHANGED);
  }
  if (offset >= 0 && offset <= total_bytes) return absl::OkStatus();
  return WithReason(
      FieldError(absl::StatusCode::kOutOfRange, "offset", absl::StrCat("is ", offset, ", must be 0 to ", total_bytes)),
      v1::CHUNK_OUT_OF_ORDER, {{"offset", absl::StrCat(offset)}, {"expected", absl::StrCat("0 to ", total_bytes)}});
}

}  // namespace intrawarp::server
