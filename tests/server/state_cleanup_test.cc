// SPDX-License-Identifier: Apache-2.0
// Every RPC, however it ends, leaves nothing behind: each method of intrawarp.v1 ends well, ends as an invalid one, by
// its deadline, by a cancel, and with a client that vanishes; then what the server counts is what it was before, and
// zero once the volumes, transforms and matrices that it was given are deleted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "intrawarp/v1/operation.pb.h"
#include "intrawarp/v1/pacs.grpc.pb.h"
#include "intrawarp/v1/transform.grpc.pb.h"
#include "server/base/worker_pool.h"
#include "server/operation/operation_table.h"
#include "server/rpc/rpc_monitor.h"
#include "server/session/navigate_session.h"
#include "server/session/session_store.h"
#include "tests/server/matrix_client.h"
#include "tests/server/pacs/fake_archive.h"
#include "tests/server/raw_call.h"
#include "tests/server/service_fixture.h"
#include "tests/server/stages.h"
#include "tests/server/test_server.h"
#include "tests/server/volume_client.h"
#include "tests/tcp_relay.h"

namespace intrawarp::server {
namespace {

using Messages = std::vector<std::string>;

// A place where a client stops: it has sent so many messages, and perhaps that these were all.
struct Stop {
  size_t messages = 0;
  bool writes_done = false;
  // The device is busy meanwhile, so that the job of the call waits.
  bool device_busy = false;
};

struct Rpc {
  // "/intrawarp.v1.VolumeService/GetVolume"; behind a #, of what where a method serves several kinds.
  std::string label;
  Messages good;
  // Whole streams of requests, each wrong.
  std::vector<Messages> invalid;
  std::vector<Stop> stops;

  std::string method() const { return label.substr(0, label.find('#')); }
};

Geometry SmallGrid() { return BoxGeometry(20, 18, 16); }
// Its field and its voxels are more than a client with a small window lets into the transport.
Geometry LargeGrid() { return BoxGeometry(80, 80, 80); }

std::vector<float> BlobsOn(const Geometry& grid) { return Blobs(grid, Center(grid), 20, AffineMap::Identity()); }

template <typename Request>
std::string Make(const std::function<void(Request&)>& fill) {
  Request request;
  fill(request);
  return request.SerializeAsString();
}

// `header`, then the bytes in two chunks.
template <typename Request, typename Header>
Messages HeaderAndChunks(const Header& set_header, const std::string& bytes) {
  Messages messages = {Make<Request>(set_header)};
  const size_t half = bytes.size() / 2;
  messages.push_back(Make<Request>([&](Request& r) { *r.mutable_chunk() = MakeChunk(0, bytes.substr(0, half)); }));
  messages.push_back(Make<Request>([&](Request& r) { *r.mutable_chunk() = MakeChunk(half, bytes.substr(half)); }));
  return messages;
}

UploadData VolumeOn(const Geometry& grid, const std::string& id) {
  return MakeVolume(grid, BlobsOn(grid), /*upload_id=*/"upload-" + id, id);
}

Messages UploadOf(const UploadData& data) {
  return HeaderAndChunks<v1::UploadRequest>([&](v1::UploadRequest& r) { *r.mutable_header() = data.header; },
                                            data.bytes);
}

Messages VolumeMessages(const std::string& id) { return UploadOf(VolumeOn(BoxGeometry(7, 6, 5), id)); }

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

Messages MatrixMessages(const std::string& id) {
  return UploadOf(MakeMatrix(RandomCsr<float>(30, 30, 4, 1), "upload-" + id, id));
}

std::string Product(const std::string& a, const std::string& b, bool keep) {
  return Make<v1::MultiplyRequest>([&](auto& r) {
    r.set_a(a);
    r.set_b(b);
    if (keep) r.mutable_keep()->set_id("kept");
  });
}

std::string LogLevel(v1::LogLevel level) {
  return Make<v1::SetLogLevelRequest>([&](auto& r) { r.set_level(level); });
}

// One iteration is enough.
void SetStage(v1::RegistrationOptions& options) {
  v1::Stage& stage = *options.add_stages();
  SetMethod(stage, StageKind::kRigid);
  SetLevels(stage, 1);
  SetIterations(stage, 1);
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

// The server has "volumes/v", "transforms/t", "sparseMatrices/m", "sessions/s", and the unfinished upload "upload-u".
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
  const Messages frame = Navigation("volumes/v", SmallGrid());
  return {
      {"/intrawarp.v1.ServerService/GetServerInfo", {""}, {}, silent},
      {"/intrawarp.v1.ServerService/SetLogLevel", {LogLevel(v1::LOG_LEVEL_INFO)}, {{""}}, silent},
      {bulk_service + "Upload#volume", volume, {Reversed(volume), {volume[0], volume[0]}}, upload},
      {bulk_service + "Upload#transform", transform, {Reversed(transform), {transform[0], transform[0]}}, upload},
      {bulk_service + "Upload#matrix", matrix, {Reversed(matrix), {matrix[0], matrix[0]}}, upload},
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
       {Product("sparseMatrices/m", "sparseMatrices/m", /*keep=*/true)},
       {{Product("m", "sparseMatrices/m", false)}, {Product("sparseMatrices/m", "sparseMatrices/other", false)}},
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

// What a client that does not read is sent until its window is full, and is owed more.
std::vector<Rpc> RpcsWithLargeAnswers() {
  return {
      {"/intrawarp.v1.BulkService/Download#volume", {Named<v1::DownloadRequest>("volumes/large")}, {}, {}},
      {"/intrawarp.v1.BulkService/Download#field", {Field("transforms/t", LargeGrid())}, {}, {}},
      {"/intrawarp.v1.TransformService/WarpVolume", {Warp("transforms/t", LargeGrid())}, {}, {}},
      {"/intrawarp.v1.BulkService/Download#matrix", {Named<v1::DownloadRequest>("sparseMatrices/large")}, {}, {}},
      {"/intrawarp.v1.SparseMatrixService/Multiply",
       {Product("sparseMatrices/column", "sparseMatrices/row", false)},
       {},
       {}},
      {"/intrawarp.v1.RegistrationService/Register", {Registration("volumes/large")}, {}, {}},
      {"/intrawarp.v1.RegistrationService/Navigate", Navigation("volumes/large", LargeGrid()), {}, {}},
  };
}

// kStall: the client neither sends nor reads until the server ends the call.
enum class Outcome { kOk, kInvalid, kDeadline, kCancel, kVanish, kStall };

std::string NameOf(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kInvalid:
      return "invalid";
    case Outcome::kDeadline:
      return "deadline";
    case Outcome::kCancel:
      return "cancel";
    case Outcome::kVanish:
      return "vanished_client";
    case Outcome::kStall:
      return "stalled_client";
  }
  return "";
}

grpc::StatusCode CodeOf(Outcome outcome) {
  switch (outcome) {
    case Outcome::kDeadline:
      return grpc::DEADLINE_EXCEEDED;
    case Outcome::kCancel:
      return grpc::CANCELLED;
    case Outcome::kVanish:
      return grpc::UNAVAILABLE;
    case Outcome::kStall:  // a status with details would wait behind the unread answer
      return grpc::CANCELLED;
    default:
      return grpc::OK;
  }
}

using Cell = std::tuple<std::string, Outcome>;  // the label and its end

std::vector<std::string> Labels(const std::vector<Rpc>& rpcs) {
  std::vector<std::string> methods;
  for (const Rpc& rpc : rpcs) methods.push_back(rpc.label);
  return methods;
}

std::string CellName(const testing::TestParamInfo<Cell>& info) {
  const std::string& label = std::get<0>(info.param);
  std::string name = label.substr(label.rfind('/') + 1);
  std::replace(name.begin(), name.end(), '#', '_');
  return absl::StrCat(name, "_", NameOf(std::get<1>(info.param)));
}

class StateCleanupTest : public testing::TestWithParam<Cell> {
 protected:
  StateCleanupTest() {
    auto bulk = test_.Stub<v1::BulkService>();
    EXPECT_TRUE(Upload(*bulk, VolumeOn(SmallGrid(), "v")).ok());
    EXPECT_TRUE(Run(test_.channel, kUpload, TransformMessages("t")).ok());
    EXPECT_TRUE(Upload(*bulk, MakeMatrix(RandomCsr<float>(30, 30, 4, 2), "upload-m", "m")).ok());
    EXPECT_TRUE(Upload(*bulk, MakeMatrix(RandomCsr<float>(29, 30, 4, 2), "upload-other", "other")).ok());
    OpenSession("s");
    context().operations.Begin(OperationKind::kImport, {"o", "print"}).value().work->Done({});
    UploadCall unfinished(*bulk);
    const UploadData volume = VolumeOn(BoxGeometry(3, 3, 3), "u");
    unfinished.SendHeader(volume.header);
    unfinished.SendChunk(0, volume.bytes.substr(0, 1));
    EXPECT_TRUE(Eventually([this] {
      const auto progress = context().uploads.Progress("upload-u");
      return progress.ok() && progress->received == 1;
    }));
    unfinished.Cancel();
    before_ = test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0 && u.jobs() == 0; });
    EXPECT_EQ(before_.uploads(), 1);
    EXPECT_EQ(before_.volumes(), 1);
    EXPECT_EQ(before_.transforms(), 1);
    EXPECT_EQ(before_.sparse_matrices(), 2);
  }
  // Without what it was given, the server holds nothing.
  ~StateCleanupTest() override {
    DeleteAll();
    const v1::Usage usage = test_.WaitForUsage([this](const v1::Usage& u) {
      DropUploads();
      return u.ByteSizeLong() == 0;
    });
    EXPECT_EQ(usage.ByteSizeLong(), 0u) << usage.ShortDebugString();
    EXPECT_TRUE(Eventually([this] { return context().pinned.leased_bytes() == 0; }))
        << context().pinned.leased_bytes() << " pinned bytes";
    EXPECT_TRUE(Eventually([this] { return ActiveCalls().empty(); })) << ActiveCalls();
  }

  // Without memory and without a stream.
  void OpenSession(const std::string& id) {
    v1::NavigateConfig config;
    config.set_fixed("volumes/v");
    config.set_session_id(id);
    SetStage(*config.mutable_options());
    const auto session = context().sessions.Open(context(), config);
    ASSERT_TRUE(session.ok()) << session.status();
    EXPECT_TRUE((*session)->Open(/*warm=*/false, nullptr).ok());
  }

  static constexpr char kUpload[] = "/intrawarp.v1.BulkService/Upload";

  DeviceContext& context() { return test_.server->context(); }

  static const Rpc& Find(const std::vector<Rpc>& rpcs, const std::string& label) {
    for (const Rpc& rpc : rpcs) {
      if (rpc.label == label) return rpc;
    }
    ADD_FAILURE() << label;
    return rpcs.front();
  }

  static bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 4000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  // A connection of its own, through which a client that does not read is sent little.
  static std::shared_ptr<grpc::Channel> NewChannel(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 10);
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }

  // A whole call.
  static grpc::Status Run(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                          const Messages& messages) {
    RawCall call(channel, method);
    Send(call, messages, messages.size(), /*writes_done=*/true);
    while (call.Read().has_value()) {
    }
    return call.Finish();
  }
  // An answer may come before all is sent.
  static void Send(RawCall& call, const Messages& messages, size_t count, bool writes_done) {
    for (size_t i = 0; i < count; ++i) {
      if (!call.Write(messages[i])) return;
    }
    if (writes_done) call.WritesDone();
  }

  // What the server knows of the calls of a connection once this has been answered: all that was sent before.
  static void Roundtrip(const std::shared_ptr<grpc::Channel>& channel) {
    EXPECT_TRUE(Run(channel, "/intrawarp.v1.ServerService/GetServerInfo", {""}).ok());
  }

  void ExpectAsBefore() {
    const std::string before = before_.SerializeAsString();
    const v1::Usage usage = test_.WaitForUsage([&](const v1::Usage& u) {
      if (uploads_expire_) DropUploads();
      return u.SerializeAsString() == before;
    });
    EXPECT_EQ(usage.ShortDebugString(), before_.ShortDebugString());
  }

  // An upload that broke off can be resumed for a while.
  static bool IsResumable(const Rpc& rpc) { return rpc.method() == kUpload; }
  void DropUploads() {
    test_.clock.Advance(std::chrono::hours(1));
    test_.server->Housekeep();
  }
  // The client has owed something for longer than is allowed.
  bool EndsWhenStalled() {
    return Eventually([this] {
      test_.clock.Advance(std::chrono::seconds(31));
      test_.server->Housekeep();
      return context().ledger.in_use(Resource::kStreams) == 0;
    });
  }
  bool StaysWhenIdle() {
    for (int i = 0; i < 3; ++i) {
      test_.clock.Advance(std::chrono::seconds(31));
      test_.server->Housekeep();
    }
    return context().ledger.in_use(Resource::kStreams) == 1;
  }

  // From now on they expire, also those of calls that had ended for their client before the server began them.
  void ExpireUploads() {
    EXPECT_TRUE(Eventually(
        [this] { return context().ledger.in_use(Resource::kStreams) == 0 && context().jobs.pending() == 0; }));
    DropUploads();
    uploads_expire_ = true;
    if (before_.uploads() == 0) return;
    before_.set_uploads(0);
    before_.set_resident_bytes(before_.resident_bytes() - UnfinishedBytes());
  }
  static Messages UnderItsOwnName(const Rpc& rpc, const std::string& id) {
    if (absl::EndsWith(rpc.label, "Upload#volume")) return VolumeMessages(id);
    if (absl::EndsWith(rpc.label, "Upload#transform")) return TransformMessages(id);
    if (absl::EndsWith(rpc.label, "Upload#matrix")) return MatrixMessages(id);
    return rpc.good;
  }
  static int64_t UnfinishedBytes() { return ChargedBytes(PreparedImage::Bytes(BoxGeometry(3, 3, 3))); }

  void DeleteAll() {
    context().sessions.CloseAll(absl::CancelledError(""));
    for (const auto& volume : context().volumes.List("", 1000)) EXPECT_TRUE(context().volumes.Erase(volume->id).ok());
    for (const auto& matrix : context().matrices.List("", 1000)) {
      EXPECT_TRUE(context().matrices.Erase(matrix->id).ok());
    }
    for (const auto& transform : context().transforms.List("", 1000)) {
      EXPECT_TRUE(context().transforms.Erase(transform->id).ok());
    }
  }

  // The lines of the metrics that say that a call is under way.
  std::string ActiveCalls() {
    std::string active;
    for (const absl::string_view line : absl::StrSplit(context().metrics.Scrape(), '\n')) {
      if (absl::StartsWith(line, "grpc_server_in_flight{") && !absl::EndsWith(line, " 0")) {
        absl::StrAppend(&active, line, "\n");
      }
    }
    return active;
  }

  // Ends a call that is under way, and returns how the client saw it end.
  grpc::Status End(RawCall& call, Outcome outcome, TcpRelay& relay) {
    if (outcome == Outcome::kCancel) call.Cancel();
    if (outcome == Outcome::kVanish) relay.Cut();
    while (call.Read().has_value()) {
    }
    return call.Finish();
  }

  // One that has nothing, under the name "archive".
  static void ServeArchive(dimse::Association& association, dimse::Connection&) {
    for (;;) {
      const auto request = association.ReceiveCommand();
      if (!request.ok()) return;
      if (request->command.has_data) FakeArchive::Identifier(association, *request);
      (void)association.Send(request->context, dimse::ResponseTo(request->command, dimse::kSuccess));
    }
  }
  static ServerOptions OptionsWith(const FakeArchive& archive) {
    ServerOptions options = TestServer::DefaultOptions();
    options.dicom.remotes = testing::TempDir() + absl::StrCat("cleanup_remotes_", getpid());
    std::ofstream(options.dicom.remotes) << "archive get ARCHIVE 127.0.0.1:" << archive.port() << " plain\n";
    return options;
  }

  FakeArchive archive_{ServeArchive};
  TestServer test_{OptionsWith(archive_)};
  v1::Usage before_;
  bool uploads_expire_ = false;
};

class WholeCallTest : public StateCleanupTest {};

TEST_P(WholeCallTest, LeavesNothing) {
  const std::vector<Rpc> rpcs = AllRpcs();
  const Rpc& rpc = Find(rpcs, std::get<0>(GetParam()));
  if (std::get<1>(GetParam()) == Outcome::kOk) {
    const grpc::Status status = Run(test_.channel, rpc.method(), rpc.good);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(Eventually(
        [this] { return context().ledger.in_use(Resource::kStreams) == 0 && context().jobs.pending() == 0; }));
    return;
  }
  for (const Messages& messages : rpc.invalid) {
    const grpc::Status status = Run(test_.channel, rpc.method(), messages);
    EXPECT_THAT(status.error_code(), testing::AnyOf(grpc::INVALID_ARGUMENT, grpc::OUT_OF_RANGE))
        << status.error_message();
  }
  const grpc::Status garbage = Run(test_.channel, rpc.method(), {"\x0a\xff\xff\xff\xff\x0f garbage"});
  EXPECT_THAT(garbage.error_code(), testing::AnyOf(grpc::INVALID_ARGUMENT, grpc::INTERNAL, grpc::UNIMPLEMENTED))
      << garbage.error_message();
  if (IsResumable(rpc)) ExpireUploads();
  ExpectAsBefore();
}

INSTANTIATE_TEST_SUITE_P(Rpcs, WholeCallTest,
                         testing::Combine(testing::ValuesIn(Labels(AllRpcs())),
                                          testing::Values(Outcome::kOk, Outcome::kInvalid)),
                         CellName);

// Calls whose client stops half way, each in every place where it can.
class HalfCallTest : public StateCleanupTest {};

TEST_P(HalfCallTest, LeavesNothing) {
  const auto& [label, outcome] = GetParam();
  const std::vector<Rpc> rpcs = AllRpcs();
  const Rpc& rpc = Find(rpcs, label);
  for (const Stop& stop : rpc.stops) {
    SCOPED_TRACE(absl::StrCat("after ", stop.messages, " messages", stop.writes_done ? ", the last" : ""));
    TcpRelay relay(test_.server->grpc_address());
    const auto channel = NewChannel(outcome == Outcome::kVanish ? relay.address() : test_.server->grpc_address());
    Roundtrip(channel);
    auto blocker = stop.device_busy ? std::make_unique<JobBlocker>(context().jobs) : nullptr;
    auto copies = stop.device_busy ? std::make_unique<JobBlocker>(context().copies) : nullptr;
    std::optional<std::chrono::milliseconds> timeout;
    if (outcome == Outcome::kDeadline) timeout = std::chrono::milliseconds(100);
    RawCall call(channel, rpc.method(), timeout);
    // Each upload has a name of its own, so that none goes on where a late one has ended.
    Send(call, UnderItsOwnName(rpc, absl::StrCat("new-", stop.messages)), stop.messages, stop.writes_done);
    Roundtrip(channel);
    if (stop.device_busy && outcome != Outcome::kDeadline) {
      EXPECT_TRUE(Eventually([this] { return context().jobs.pending() + context().copies.pending() == 3; }));
    }

    const grpc::Status status = End(call, outcome, relay);

    EXPECT_EQ(status.error_code(), CodeOf(outcome)) << status.error_message();
    // The server knows it before a job has its turn.
    EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 0; }));
    blocker.reset();
    copies.reset();
    if (IsResumable(rpc)) ExpireUploads();
    ExpectAsBefore();
  }
}

constexpr char kNavigate[] = "/intrawarp.v1.RegistrationService/Navigate";

// Calls whose client does not read the answer.
class UnreadAnswerTest : public StateCleanupTest {
 protected:
  UnreadAnswerTest() {
    auto bulk = test_.Stub<v1::BulkService>();
    EXPECT_TRUE(Upload(*bulk, VolumeOn(LargeGrid(), "large"), nullptr, 1 << 20).ok());
    EXPECT_TRUE(Upload(*bulk, MakeMatrix(Full(700, 700, 1), "1", "large"), nullptr, 1 << 20).ok());
    EXPECT_TRUE(Upload(*bulk, MakeMatrix(Full(900, 1, 1), "2", "column"), nullptr, 1 << 20).ok());
    EXPECT_TRUE(Upload(*bulk, MakeMatrix(Full(1, 900, 1), "3", "row"), nullptr, 1 << 20).ok());
    before_ = test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0 && u.jobs() == 0; });
  }
};

TEST_P(UnreadAnswerTest, LeavesNothing) {
  const auto& [label, outcome] = GetParam();
  const std::vector<Rpc> rpcs = RpcsWithLargeAnswers();
  const Rpc& rpc = Find(rpcs, label);
  TcpRelay relay(test_.server->grpc_address());
  const auto channel = NewChannel(outcome == Outcome::kVanish ? relay.address() : test_.server->grpc_address());
  Roundtrip(channel);
  if (outcome == Outcome::kStall) ExpireUploads();  // as the clock goes on
  std::optional<std::chrono::milliseconds> timeout;
  if (outcome == Outcome::kDeadline) timeout = std::chrono::milliseconds(700);
  RawCall call(channel, rpc.method(), timeout);
  Send(call, rpc.good, rpc.good.size(), /*writes_done=*/true);
  // The first message of a session says that it has opened, the second that its frame is done.
  if (label == kNavigate) call.Read();
  const bool answered = call.Read().has_value();
  if (outcome == Outcome::kDeadline) {
    EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 0; }));
  } else {
    EXPECT_TRUE(answered);
    // The job is over, the answer waits.
    EXPECT_TRUE(Eventually([this] { return context().jobs.pending() == 0; }));
    EXPECT_EQ(context().ledger.in_use(Resource::kStreams), 1);
  }
  if (outcome == Outcome::kStall) {
    EXPECT_TRUE(EndsWhenStalled());
    EXPECT_THAT(context().metrics.Scrape(), testing::HasSubstr("streams_stalled_total{waits_for=\"write\"} 1\n"));
  }

  const grpc::Status status = End(call, outcome, relay);

  EXPECT_EQ(status.error_code(), CodeOf(outcome)) << status.error_message();
  ExpectAsBefore();
}

const auto kBrokenOff = testing::Values(Outcome::kDeadline, Outcome::kCancel, Outcome::kVanish);
INSTANTIATE_TEST_SUITE_P(Rpcs, HalfCallTest, testing::Combine(testing::ValuesIn(Labels(AllRpcs())), kBrokenOff),
                         CellName);
INSTANTIATE_TEST_SUITE_P(Rpcs, UnreadAnswerTest,
                         testing::Combine(testing::ValuesIn(Labels(RpcsWithLargeAnswers())),
                                          testing::Values(Outcome::kDeadline, Outcome::kCancel, Outcome::kVanish,
                                                          Outcome::kStall)),
                         CellName);

// Calls whose client stops half way and stays. An upload or a frame that has begun is owed; a stream of frames between
// two of them, and a call that waits for its job, may wait.
class SilentClientTest : public StateCleanupTest {
 protected:
  SilentClientTest() { ExpireUploads(); }  // as the clock goes on

  std::unique_ptr<RawCall> Begin(const std::string& label, const Stop& stop) {
    const std::vector<Rpc> rpcs = AllRpcs();
    const Rpc& rpc = Find(rpcs, label);
    auto call = std::make_unique<RawCall>(test_.channel, rpc.method());
    Messages messages = UnderItsOwnName(rpc, absl::StrCat("new-", stop.messages));
    messages.resize(stop.messages);
    // A session that has opened says so.
    if (label == kNavigate && stop.messages > 0) {
      Send(*call, messages, 1, false);
      EXPECT_TRUE(call->Read().has_value());
      WaitUntilWritten();
      messages.erase(messages.begin());
    }
    Send(*call, messages, messages.size(), stop.writes_done);
    Roundtrip(test_.channel);
    WaitForWorkers();
    // A session has its place from its config on.
    const int places = label == kNavigate && stop.messages == 0 ? 0 : 1;
    EXPECT_TRUE(Eventually([&] { return context().ledger.in_use(Resource::kStreams) == places; }));
    return call;
  }
  // A client may have read a message before the server hears that it was written; until then the server would take a
  // leap of the clock for a client that does not read. Only for a stream whose client owes nothing.
  void WaitUntilWritten() {
    EXPECT_TRUE(Eventually([this] {
      test_.clock.Advance(std::chrono::milliseconds(1));
      test_.server->Housekeep();
      return context().stream_watch.longest_wait() == std::chrono::nanoseconds(0);
    }));
  }
  // Gives the workers time for what they have: tasks are begun in order, and each here waits for the one before.
  void WaitForWorkers() {
    for (int i = 0; i < 100; ++i) {
      std::promise<void> done;
      context().workers.Submit([&] { context().receivers.Submit([&done] { done.set_value(); }); });
      done.get_future().wait();
    }
  }
  void ExpectEnds(const std::string& label, const Stop& stop) {
    SCOPED_TRACE(absl::StrCat(label, " after ", stop.messages, " messages"));
    const std::unique_ptr<RawCall> call = Begin(label, stop);
    EXPECT_TRUE(EndsWhenStalled());
    while (call->Read().has_value()) {
    }
    const grpc::Status status = call->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED) << status.error_message();
    EXPECT_EQ(DetailsOf(status).reason, "STREAM_STALLED");
  }
};

TEST_F(SilentClientTest, IsEndedWithinAnUpload) {
  for (const size_t messages : {0, 1, 2}) ExpectEnds("/intrawarp.v1.BulkService/Upload#volume", {messages});
}

TEST_F(SilentClientTest, IsEndedWithinAFrame) {
  for (const size_t messages : {0, 2, 3}) ExpectEnds(kNavigate, {messages});
}

TEST_F(SilentClientTest, MayWaitBetweenFrames) {
  auto call = Begin(kNavigate, {1});
  EXPECT_TRUE(StaysWhenIdle());
  call->Cancel();
  EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 0; }));
  call = Begin(kNavigate, {4});
  // The field's header, its chunk, the result.
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(call->Read().has_value());
  // The frame's job may still be at its end when its result has been read.
  EXPECT_TRUE(Eventually([&] { return context().jobs.pending() == 0; }));
  Roundtrip(test_.channel);
  WaitForWorkers();
  WaitUntilWritten();
  EXPECT_TRUE(StaysWhenIdle());
  call->WritesDone();
  EXPECT_TRUE(call->Read().has_value());  // the session's last word
  EXPECT_FALSE(call->Read().has_value());
  EXPECT_TRUE(call->Finish().ok());
}

TEST_F(SilentClientTest, MayWaitForItsJob) {
  for (const char* label : {"/intrawarp.v1.RegistrationService/Register", "/intrawarp.v1.BulkService/Upload#volume"}) {
    JobBlocker blocker(context().jobs);
    const auto call = Begin(label, {absl::EndsWith(label, "Register") ? size_t{1} : size_t{3}, true});
    EXPECT_TRUE(Eventually([this] { return context().jobs.pending() == 2; }));
    EXPECT_TRUE(StaysWhenIdle());
    blocker.Release();
    while (call->Read().has_value()) {
    }
    EXPECT_TRUE(call->Finish().ok());
  }
}

TEST(StateCleanup, KnowsEveryRpc) {
  std::set<std::string> expected, tested;
  for (const RpcMethod& method : AllMethods()) {
    if (absl::StartsWith(method.service, "intrawarp.")) expected.insert("/" + method.full_name());
  }
  for (const Rpc& rpc : AllRpcs()) tested.insert(rpc.method());
  EXPECT_EQ(tested, expected);
}

}  // namespace
}  // namespace intrawarp::server
