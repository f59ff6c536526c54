// SPDX-License-Identifier: Apache-2.0
#include "tests/server/state_cleanup_fixture.h"

#include <functional>
#include <string>
#include <vector>

#include "intrawarp/v1/operation.pb.h"
#include "intrawarp/v1/pacs.pb.h"
#include "intrawarp/v1/transform.pb.h"
#include "tests/server/matrix_client.h"
#include "tests/server/stages.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

// `header`, then the bytes in two chunks.
template <typename Request, typename Header>
Messages HeaderAndChunks(const Header& set_header, const std::string& bytes) {
  Messages messages = {Make<Request>(set_header)};
  const size_t half = bytes.size() / 2;
  messages.push_back(Make<Request>([&](Request& r) { *r.mutable_chunk() = MakeChunk(0, bytes.substr(0, half)); }));
  messages.push_back(Make<Request>([&](Request& r) { *r.mutable_chunk() = MakeChunk(half, bytes.substr(half)); }));
  return messages;
}

std::string ProductMessage(const std::string& a, const std::string& b, bool keep) {
  return Make<v1::MultiplyRequest>([&](auto& r) {
    r.set_a(a);
    r.set_b(b);
    if (keep) r.mutable_keep()->set_id("kept");
  });
}

std::string TripleProductMessage(const std::string& a, const std::string& p, bool keep) {
  return Make<v1::MultiplyTripleRequest>([&](auto& r) {
    r.set_a(a);
    r.set_p(p);
    if (keep) r.mutable_keep()->set_id("kept");
  });
}

std::string LogLevel(v1::LogLevel level) {
  return Make<v1::SetLogLevelRequest>([&](auto& r) { r.set_level(level); });
}

std::string Registration(const std::string& volume) {
  return Make<v1::RegisterRequest>([&](auto& r) {
    r.set_fixed(volume);
    r.set_moving(volume);
    SetStage(*r.mutable_options());
    r.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  });
}

// The configuration and one frame on the grid.
Messages Navigation(const std::string& volume, const Geometry& grid) {
  const UploadData frame = VolumeOn(grid, "frame");
  Messages messages = {Make<v1::NavigateRequest>([&](auto& r) {
    r.mutable_config()->set_fixed(volume);
    SetStage(*r.mutable_config()->mutable_options());
    r.mutable_config()->mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  })};
  for (std::string& message : HeaderAndChunks<v1::NavigateRequest>(
           [&](v1::NavigateRequest& r) {
             v1::FrameHeader& header = *r.mutable_frame();
             header.set_frame_number(1);
             *header.mutable_geometry() = GeometryToProto(grid);
             header.set_pixel_type(v1::PIXEL_TYPE_FLOAT32);
             header.set_total_bytes(frame.bytes.size());
           },
           frame.bytes)) {
    messages.push_back(std::move(message));
  }
  return messages;
}

template <typename Request>
std::string Named(const std::string& name) {
  return Make<Request>([&](Request& r) { r.set_name(name); });
}

template <typename Request>
std::string Page(int size) {
  return Make<Request>([&](Request& r) { r.set_page_size(size); });
}

std::string UploadStatus(const std::string& id) {
  return Make<v1::GetUploadStatusRequest>([&](auto& r) { r.set_upload_id(id); });
}

std::string Field(const std::string& transform, const Geometry& grid) {
  return Make<v1::DownloadRequest>([&](auto& r) {
    r.set_name(transform);
    r.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
    *r.mutable_geometry() = GeometryToProto(grid);
  });
}

std::string Warp(const std::string& transform, const Geometry& grid) {
  return Make<v1::WarpVolumeRequest>([&](auto& r) {
    r.set_transform(transform);
    r.set_moving("volumes/v");
    *r.mutable_like_geometry() = GeometryToProto(grid);
  });
}

std::string Points(const std::string& transform) {
  return Make<v1::MapPointsRequest>([&](auto& r) {
    r.set_transform(transform);
    for (double x : {1.0, 2.0, 3.0}) r.add_points(x);
  });
}

// A request to the archive of the server.
template <typename Request>
std::string ToArchive(const std::function<void(Request&)>& fill = nullptr) {
  return Make<Request>([&](Request& r) {
    r.set_remote("archive");
    if (fill) fill(r);
  });
}

Messages Reversed(const Messages& messages) { return Messages(messages.rbegin(), messages.rend()); }

}  // namespace

Messages UploadOf(const UploadData& data) {
  return HeaderAndChunks<v1::UploadRequest>([&](v1::UploadRequest& r) { *r.mutable_header() = data.header; },
                                            data.bytes);
}

Messages TransformMessages(const std::string& id) {
  const Geometry grid = SmallGrid();
  const std::vector<float> field(3 * grid.voxels(), 0.25f);
  UploadData data;
  data.bytes.assign(reinterpret_cast<const char*>(field.data()), field.size() * sizeof(float));
  data.header.set_id(id);
  data.header.set_upload_id("upload-" + id);
  v1::FieldHeader& header = *data.header.mutable_transform()->mutable_field();
  *header.mutable_geometry() = GeometryToProto(grid);
  header.set_encoding(v1::FIELD_ENCODING_FLOAT32);
  header.set_total_bytes(data.bytes.size());
  data.Seal();
  return UploadOf(data);
}

void SetStage(v1::RegistrationOptions& options) {
  v1::Stage& stage = *options.add_stages();
  SetMethod(stage, StageKind::kRigid);
  SetLevels(stage, 1);
  SetIterations(stage, 1);
}

std::vector<Rpc> AllRpcs() {
  // A call that is answered at once has only this: the client that does not send its request.
  const std::vector<Stop> silent = {Stop{}};
  const std::vector<Stop> queued = {Stop{}, Stop{1, true, true}};
  const std::vector<Stop> upload = {Stop{}, Stop{1}, Stop{2}, Stop{3, true, true}};
  const std::string volume_service = "/intrawarp.v1.VolumeService/",
                    transform_service = "/intrawarp.v1.TransformService/",
                    matrix_service = "/intrawarp.v1.SparseMatrixService/", bulk_service = "/intrawarp.v1.BulkService/",
                    session_service = "/intrawarp.v1.SessionService/",
                    operation_service = "/intrawarp.v1.OperationService/", pacs_service = "/intrawarp.v1.PacsService/";
  const Messages volume = VolumeMessages("new"), transform = TransformMessages("new"), matrix = MatrixMessages("new");
  const Messages values = MatrixValuesMessages("new");
  const Messages frame = Navigation("volumes/v", SmallGrid());
  return {
      {"/intrawarp.v1.ServerService/GetServerInfo", {""}, {}, silent},
      {"/intrawarp.v1.ServerService/SetLogLevel", {LogLevel(v1::LOG_LEVEL_INFO)}, {{""}}, silent},
      {bulk_service + "Upload#volume", volume, {Reversed(volume), {volume[0], volume[0]}}, upload},
      {bulk_service + "Upload#transform", transform, {Reversed(transform), {transform[0], transform[0]}}, upload},
      {bulk_service + "Upload#matrix", matrix, {Reversed(matrix), {matrix[0], matrix[0]}}, upload},
      {bulk_service + "Upload#values", values, {Reversed(values), {values[0], values[0]}}, upload},
      {bulk_service + "GetUploadStatus", {UploadStatus("upload-u")}, {{UploadStatus("")}}, silent},
      {bulk_service + "Download#volume",
       {Named<v1::DownloadRequest>("volumes/v")},
       {{Named<v1::DownloadRequest>("v")}},
       queued},
      {bulk_service + "Download#matrix",
       {Named<v1::DownloadRequest>("sparseMatrices/m")},
       {{Named<v1::DownloadRequest>("m")}},
       queued},
      {bulk_service + "Download#field",
       {Field("transforms/t", SmallGrid())},
       {{Field("t", SmallGrid())}, {Field("transforms/t", Geometry{.size = {1, 1, 0}})}},
       queued},
      {volume_service + "GetVolume",
       {Named<v1::GetVolumeRequest>("volumes/v")},
       {{Named<v1::GetVolumeRequest>("v")}},
       silent},
      {volume_service + "ListVolumes", {Page<v1::ListVolumesRequest>(3)}, {{Page<v1::ListVolumesRequest>(-1)}}, silent},
      {volume_service + "DeleteVolume",
       {Named<v1::DeleteVolumeRequest>("volumes/v")},
       {{Named<v1::DeleteVolumeRequest>("v")}},
       silent},
      {transform_service + "GetTransform",
       {Named<v1::GetTransformRequest>("transforms/t")},
       {{Named<v1::GetTransformRequest>("t")}},
       silent},
      {transform_service + "ListTransforms",
       {Page<v1::ListTransformsRequest>(3)},
       {{Page<v1::ListTransformsRequest>(-1)}},
       silent},
      {transform_service + "DeleteTransform",
       {Named<v1::DeleteTransformRequest>("transforms/t")},
       {{Named<v1::DeleteTransformRequest>("t")}},
       silent},
      {transform_service + "WarpVolume",
       {Warp("transforms/t", SmallGrid())},
       {{Warp("t", SmallGrid())}, {Warp("transforms/t", Geometry{.size = {1, 1, 0}})}},
       queued},
      {transform_service + "MapPoints", {Points("transforms/t")}, {{Points("t")}}, queued},
      {matrix_service + "GetSparseMatrix",
       {Named<v1::GetSparseMatrixRequest>("sparseMatrices/m")},
       {{Named<v1::GetSparseMatrixRequest>("m")}},
       silent},
      {matrix_service + "ListSparseMatrices",
       {Page<v1::ListSparseMatricesRequest>(3)},
       {{Page<v1::ListSparseMatricesRequest>(-1)}},
       silent},
      {matrix_service + "DeleteSparseMatrix",
       {Named<v1::DeleteSparseMatrixRequest>("sparseMatrices/m")},
       {{Named<v1::DeleteSparseMatrixRequest>("m")}},
       silent},
      {matrix_service + "Multiply",
       {ProductMessage("sparseMatrices/m", "sparseMatrices/m", /*keep=*/true)},
       {{ProductMessage("m", "sparseMatrices/m", false)},
        {ProductMessage("sparseMatrices/m", "sparseMatrices/other", false)}},
       queued},
      {matrix_service + "MultiplyTriple",
       {TripleProductMessage("sparseMatrices/m", "sparseMatrices/m", /*keep=*/true)},
       {{TripleProductMessage("m", "sparseMatrices/m", false)},
        {TripleProductMessage("sparseMatrices/m", "sparseMatrices/other", false)}},
       queued},
      {operation_service + "GetOperation",
       {Named<v1::GetOperationRequest>("operations/o")},
       {{Named<v1::GetOperationRequest>("o")}},
       silent},
      {operation_service + "ListOperations",
       {Page<v1::ListOperationsRequest>(3)},
       {{Page<v1::ListOperationsRequest>(-1)}},
       silent},
      {operation_service + "WaitOperation",
       {Named<v1::WaitOperationRequest>("operations/o")},
       {{Named<v1::WaitOperationRequest>("o")}},
       silent},
      {operation_service + "CancelOperation",
       {Named<v1::CancelOperationRequest>("operations/o")},
       {{Named<v1::CancelOperationRequest>("o")}},
       silent},
      {session_service + "GetSession",
       {Named<v1::GetSessionRequest>("sessions/s")},
       {{Named<v1::GetSessionRequest>("s")}},
       silent},
      {session_service + "ListSessions",
       {Page<v1::ListSessionsRequest>(3)},
       {{Page<v1::ListSessionsRequest>(-1)}},
       silent},
      {session_service + "CloseSession",
       {Named<v1::CloseSessionRequest>("sessions/s")},
       {{Named<v1::CloseSessionRequest>("s")}},
       silent},
      {pacs_service + "ListRemotes", {""}, {}, silent},
      {pacs_service + "EchoRemote", {ToArchive<v1::EchoRemoteRequest>()}, {{""}}, silent},
      {pacs_service + "FindSeries",
       {ToArchive<v1::FindSeriesRequest>([](auto& r) { r.set_patient_id("1"); })},
       {{ToArchive<v1::FindSeriesRequest>()}},
       silent},
      {pacs_service + "ImportSeries",
       {ToArchive<v1::ImportSeriesRequest>([](auto& r) {
         r.set_study_uid("1.2");
         r.set_series_uid("1.2.3");
         r.set_request_id("import");
       })},
       {{ToArchive<v1::ImportSeriesRequest>()}},
       silent},
      {"/intrawarp.v1.RegistrationService/Register", {Registration("volumes/v")}, {{Registration("v")}}, queued},
      {"/intrawarp.v1.RegistrationService/Navigate",
       frame,
       {{Navigation("v", SmallGrid())}, Reversed(frame)},
       {Stop{}, Stop{1}, Stop{2}, Stop{3}, Stop{4, false, true}, Stop{4, true, true}}},
  };
}

std::vector<Rpc> RpcsWithLargeAnswers() {
  return {
      {"/intrawarp.v1.BulkService/Download#volume", {Named<v1::DownloadRequest>("volumes/large")}, {}, {}},
      {"/intrawarp.v1.BulkService/Download#field", {Field("transforms/t", LargeGrid())}, {}, {}},
      {"/intrawarp.v1.TransformService/WarpVolume", {Warp("transforms/t", LargeGrid())}, {}, {}},
      {"/intrawarp.v1.BulkService/Download#matrix", {Named<v1::DownloadRequest>("sparseMatrices/large")}, {}, {}},
      {"/intrawarp.v1.SparseMatrixService/Multiply",
       {ProductMessage("sparseMatrices/column", "sparseMatrices/row", false)},
       {},
       {}},
      {"/intrawarp.v1.RegistrationService/Register", {Registration("volumes/large")}, {}, {}},
      {"/intrawarp.v1.RegistrationService/Navigate", Navigation("volumes/large", LargeGrid()), {}, {}},
  };
}

}  // namespace intrawarp::server
