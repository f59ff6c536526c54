// SPDX-License-Identifier: Apache-2.0
// Every RPC with its messages, and a server that counts what calls leave behind.
#ifndef INTRAWARP_TESTS_SERVER_STATE_CLEANUP_FIXTURE_H_
#define INTRAWARP_TESTS_SERVER_STATE_CLEANUP_FIXTURE_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "intrawarp/v1/operation.pb.h"
#include "server/monitor/registry.h"
#include "server/operation/operation_table.h"
#include "server/session/navigate_session.h"
#include "server/session/session_store.h"
#include "tests/server/matrix_client.h"
#include "tests/server/pacs/fake_archive.h"
#include "tests/server/raw_call.h"
#include "tests/server/service_fixture.h"
#include "tests/server/test_server.h"
#include "tests/server/volume_client.h"
#include "tests/support/eventually.h"
#include "tests/tcp_relay.h"

namespace intrawarp::server {

inline constexpr char kNavigate[] = "/intrawarp.v1.RegistrationService/Navigate";

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

inline Geometry SmallGrid() { return BoxGeometry(20, 18, 16); }

// Its field and its voxels are more than a client with a small window lets into the transport.
inline Geometry LargeGrid() { return BoxGeometry(80, 80, 80); }

inline std::vector<float> BlobsOn(const Geometry& grid) { return Blobs(grid, Center(grid), 20, AffineMap::Identity()); }

template <typename Request>
std::string Make(const std::function<void(Request&)>& fill) {
  Request request;
  fill(request);
  return request.SerializeAsString();
}

inline UploadData VolumeOn(const Geometry& grid, const std::string& id) {
  return MakeVolume(grid, BlobsOn(grid), /*upload_id=*/"upload-" + id, id);
}

Messages UploadOf(const UploadData& data);

inline Messages VolumeMessages(const std::string& id) { return UploadOf(VolumeOn(BoxGeometry(7, 6, 5), id)); }

Messages TransformMessages(const std::string& id);

inline Messages MatrixMessages(const std::string& id) {
  return UploadOf(MakeMatrix(RandomCsr<float>(30, 30, 4, 1), "upload-" + id, id));
}

// "sparseMatrices/m", and new values for it.
inline HostCsr<float> MatrixM() { return RandomCsr<float>(30, 30, 4, 2); }
inline Messages MatrixValuesMessages(const std::string& id) {
  const std::vector<float> values(static_cast<size_t>(MatrixM().entries()), 0.5f);
  return UploadOf(MakeValues("sparseMatrices/m", values, "upload-" + id, id));
}

// One iteration is enough.
void SetStage(v1::RegistrationOptions& options);

// The server has "volumes/v", "transforms/t", "sparseMatrices/m", "sessions/s", and the unfinished upload "upload-u".
std::vector<Rpc> AllRpcs();

// What a client that does not read is sent until its window is full, and is owed more.
std::vector<Rpc> RpcsWithLargeAnswers();

// kStall: the client neither sends nor reads until the server ends the call.
enum class Outcome { kOk, kInvalid, kDeadline, kCancel, kVanish, kStall };

using Cell = std::tuple<std::string, Outcome>;  // the label and its end

class StateCleanupTest : public testing::TestWithParam<Cell> {
 protected:
  StateCleanupTest() {
    auto bulk = test_.Stub<v1::BulkService>();
    EXPECT_TRUE(Upload(*bulk, VolumeOn(SmallGrid(), "v")).ok());
    EXPECT_TRUE(Run(test_.channel, kUpload, TransformMessages("t")).ok());
    EXPECT_TRUE(Upload(*bulk, MakeMatrix(MatrixM(), "upload-m", "m")).ok());
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
    if (absl::EndsWith(rpc.label, "Upload#values")) return MatrixValuesMessages(id);
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
    for (const absl::string_view line : absl::StrSplit(context().metrics.registry.Scrape(), '\n')) {
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

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_STATE_CLEANUP_FIXTURE_H_
