// SPDX-License-Identifier: Apache-2.0
// Who may do what: every method with every role, with the caller's own objects and with another owner's; and what
// ownership means for ids, lists, inputs, limits and a restart.
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "intrawarp/v1/operation.pb.h"
#include "intrawarp/v1/pacs.grpc.pb.h"
#include "intrawarp/v1/registration.grpc.pb.h"
#include "intrawarp/v1/sparse_matrix.grpc.pb.h"
#include "intrawarp/v1/transform.grpc.pb.h"
#include "server/operation/operation_table.h"
#include "server/rpc/rpc_monitor.h"
#include "server/session/navigate_session.h"
#include "server/session/session_store.h"
#include "tests/server/health_client.h"
#include "tests/server/identity/access_fixture.h"
#include "tests/server/matrix_client.h"
#include "tests/server/pacs/fake_archive.h"
#include "tests/server/raw_call.h"
#include "tests/server/stages.h"
#include "tests/server/test_server.h"
#include "tests/server/volume_client.h"
#include "tests/support/eventually.h"

namespace intrawarp::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Messages = std::vector<std::string>;

// The columns of the table: the owner's credentials with the roles frame, stage and admin, then another's.
constexpr int kColumnCount = 6;

struct Row {
  const char* method;
  // By column: + yes, 0 as an id that is absent, - the role does not suffice.
  const char* expected;
};
constexpr Row kRows[] = {
    {"grpc.health.v1.Health/Check", "++++++"},
    {"grpc.health.v1.Health/Watch", "++++++"},
    {"intrawarp.v1.ServerService/GetServerInfo", "++++++"},
    {"intrawarp.v1.ServerService/SetLogLevel", "--+--+"},
    {"intrawarp.v1.BulkService/Upload", "-++-++"},
    {"intrawarp.v1.BulkService/GetUploadStatus", "-++-00"},
    {"intrawarp.v1.BulkService/Download", "+++00+"},
    {"intrawarp.v1.VolumeService/GetVolume", "+++00+"},
    {"intrawarp.v1.VolumeService/ListVolumes", "++++++"},
    {"intrawarp.v1.VolumeService/DeleteVolume", "-++-0+"},
    {"intrawarp.v1.SparseMatrixService/GetSparseMatrix", "+++00+"},
    {"intrawarp.v1.SparseMatrixService/ListSparseMatrices", "++++++"},
    {"intrawarp.v1.SparseMatrixService/DeleteSparseMatrix", "-++-0+"},
    {"intrawarp.v1.SparseMatrixService/Multiply", "-++-0+"},
    {"intrawarp.v1.SparseMatrixService/MultiplyTriple", "-++-0+"},
    {"intrawarp.v1.TransformService/GetTransform", "+++00+"},
    {"intrawarp.v1.TransformService/ListTransforms", "++++++"},
    {"intrawarp.v1.TransformService/DeleteTransform", "+++00+"},
    {"intrawarp.v1.TransformService/WarpVolume", "+++00+"},
    {"intrawarp.v1.TransformService/MapPoints", "+++00+"},
    {"intrawarp.v1.RegistrationService/Register", "+-+0-+"},
    {"intrawarp.v1.RegistrationService/Navigate", "+-+0-+"},
    {"intrawarp.v1.OperationService/GetOperation", "+++00+"},
    {"intrawarp.v1.OperationService/ListOperations", "++++++"},
    {"intrawarp.v1.OperationService/WaitOperation", "+++00+"},
    {"intrawarp.v1.OperationService/CancelOperation", "+++00+"},
    {"intrawarp.v1.SessionService/GetSession", "+-+0-+"},
    {"intrawarp.v1.SessionService/ListSessions", "+-++-+"},
    {"intrawarp.v1.SessionService/CloseSession", "+-+0-+"},
    {"intrawarp.v1.PacsService/ListRemotes", "-++-++"},
    {"intrawarp.v1.PacsService/EchoRemote", "-++-++"},
    {"intrawarp.v1.PacsService/FindSeries", "-++-++"},
    {"intrawarp.v1.PacsService/ImportSeries", "-++-++"},
};

// The sign of a status; its name where the table has no sign for it.
std::string SignOf(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::OK:
      return "+";
    case grpc::NOT_FOUND:
      return "0";
    case grpc::PERMISSION_DENIED:
      return "-";
    default:
      return absl::StrCat("[", status.error_code(), " ", status.error_message(), "]");
  }
}

// A line of docs/operate/security.md.
std::string DocLine(const Row& row) {
  const std::string name = row.method;
  std::string line = absl::StrCat("| ", name.substr(name.rfind('.') + 1), " |");
  for (const char* sign = row.expected; *sign != '\0'; ++sign) {
    absl::StrAppend(&line, *sign == '+' ? " yes |" : *sign == '0' ? " absent |" : " denied |");
  }
  return line;
}

Geometry Grid() { return BoxGeometry(20, 18, 16); }

// A blob with its centre at (x, 9, 8).
std::vector<float> Blob(double x) {
  std::vector<float> voxels;
  for (int k = 0; k < 16; ++k) {
    for (int j = 0; j < 18; ++j) {
      for (int i = 0; i < 20; ++i) {
        const double square = (i - x) * (i - x) + (j - 9.) * (j - 9.) + (k - 8.) * (k - 8.);
        voxels.push_back(static_cast<float>(100 * std::exp(-square / 20)));
      }
    }
  }
  return voxels;
}

UploadData VolumeData(const std::string& id, double x = 10, const std::string& upload_id = "") {
  return MakeVolume(Grid(), Blob(x), upload_id.empty() ? "upload-" + id : upload_id, id);
}

UploadData TransformData(const std::string& id) {
  UploadData data;
  data.header.set_id(id);
  data.header.set_upload_id("upload-" + id);
  for (int i = 0; i < 16; ++i) data.header.mutable_transform()->mutable_affine()->add_values(i % 5 == 0 ? 1 : 0);
  data.Seal();
  return data;
}

Messages MessagesOf(const UploadData& data) {
  v1::UploadRequest header, chunk;
  *header.mutable_header() = data.header;
  if (data.bytes.empty()) return {header.SerializeAsString()};
  *chunk.mutable_chunk() = MakeChunk(0, data.bytes);
  return {header.SerializeAsString(), chunk.SerializeAsString()};
}

template <typename Request>
Messages Named(const char* name) {
  Request request;
  request.set_name(name);
  return {request.SerializeAsString()};
}

void SetStage(v1::RegistrationOptions& options) {
  v1::Stage& stage = *options.add_stages();
  SetMethod(stage, StageKind::kRigid);
  SetLevels(stage, 1);
  SetIterations(stage, 1);
}

Messages Registration() {
  v1::RegisterRequest request;
  request.set_fixed("volumes/v");
  request.set_moving("volumes/v");
  SetStage(*request.mutable_options());
  return {request.SerializeAsString()};
}

v1::NavigateConfig Config(const std::string& session_id = "") {
  v1::NavigateConfig config;
  config.set_fixed("volumes/v");
  config.set_session_id(session_id);
  SetStage(*config.mutable_options());
  return config;
}

Messages Navigation() {
  v1::NavigateRequest request;
  *request.mutable_config() = Config();
  return {request.SerializeAsString()};
}

Messages Product() {
  v1::MultiplyRequest request;
  request.set_a("sparseMatrices/m");
  request.set_b("sparseMatrices/m");
  return {request.SerializeAsString()};
}

Messages TripleProduct() {
  v1::MultiplyTripleRequest request;
  request.set_a("sparseMatrices/m");
  request.set_p("sparseMatrices/m");
  return {request.SerializeAsString()};
}

Messages Warp() {
  v1::WarpVolumeRequest request;
  request.set_transform("transforms/t");
  request.set_moving("volumes/v");
  *request.mutable_like_geometry() = GeometryToProto(Grid());
  return {request.SerializeAsString()};
}

Messages Points() {
  v1::MapPointsRequest request;
  request.set_transform("transforms/t");
  for (const double x : {1., 2., 3.}) request.add_points(x);
  return {request.SerializeAsString()};
}

Messages Status() {
  v1::GetUploadStatusRequest request;
  request.set_upload_id("unfinished");
  return {request.SerializeAsString()};
}

// The archive is there, and has nothing.
Messages ToArchive(const std::string& name) {
  static int imports = 0;
  if (name == "EchoRemote") {
    v1::EchoRemoteRequest request;
    request.set_remote("archive");
    return {request.SerializeAsString()};
  }
  if (name == "FindSeries") {
    v1::FindSeriesRequest request;
    request.set_remote("archive");
    request.set_patient_id("1");
    return {request.SerializeAsString()};
  }
  v1::ImportSeriesRequest request;
  request.set_remote("archive");
  request.set_study_uid("1.2");
  request.set_series_uid("1.2.3");
  request.set_request_id(absl::StrCat("import-", ++imports));
  return {request.SerializeAsString()};
}

Messages InfoLevel() {
  v1::SetLogLevelRequest request;
  request.set_level(v1::LOG_LEVEL_INFO);
  return {request.SerializeAsString()};
}

// A request that is good if volumes/v, transforms/t, sparseMatrices/m, sessions/s, operations/o and the upload
// "unfinished" are there. Each upload has an id of its own.
Messages RequestOf(const std::string& method) {
  static int uploads = 0;
  const std::string name = method.substr(method.rfind('/') + 1);
  if (name == "Upload") return MessagesOf(VolumeData(absl::StrCat("new-", ++uploads)));
  if (name == "GetUploadStatus") return Status();
  if (name == "Download") return Named<v1::DownloadRequest>("volumes/v");
  if (name == "GetVolume" || name == "DeleteVolume") return Named<v1::GetVolumeRequest>("volumes/v");
  if (name == "GetSparseMatrix" || name == "DeleteSparseMatrix") {
    return Named<v1::GetSparseMatrixRequest>("sparseMatrices/m");
  }
  if (name == "GetTransform" || name == "DeleteTransform") return Named<v1::GetTransformRequest>("transforms/t");
  if (name == "GetSession" || name == "CloseSession") return Named<v1::GetSessionRequest>("sessions/s");
  if (name == "GetOperation" || name == "WaitOperation" || name == "CancelOperation") {
    return Named<v1::GetOperationRequest>("operations/o");
  }
  if (name == "Register") return Registration();
  if (name == "Navigate") return Navigation();
  if (name == "Multiply") return Product();
  if (name == "MultiplyTriple") return TripleProduct();
  if (name == "WarpVolume") return Warp();
  if (name == "MapPoints") return Points();
  if (name == "SetLogLevel") return InfoLevel();
  if (name == "EchoRemote" || name == "FindSeries" || name == "ImportSeries") return ToArchive(name);
  return {""};  // lists, information, health
}

class OwnershipTest : public AccessTest {
 protected:
  // The callers whose tokens are at hand once the server has started.
  void AddCallers() {
    for (const char* name : {"own", "other"}) {
      for (const Role role : {Role::kFrame, Role::kStage, Role::kAdmin}) tokens_of_.push_back(AddToken(name, role));
    }
    both_ = AddToken("own", Roles(Role::kFrame) | Role::kStage);
    other_both_ = AddToken("other", Roles(Role::kFrame) | Role::kStage);
  }
  void StartForCallers(const std::function<void(ServerOptions&)>& change = nullptr) {
    StartWithTokens(change);
    for (const std::string& token : tokens_of_) channels_.push_back(NewChannel(WithToken(token)));
    own_ = NewChannel(WithToken(both_));
    other_ = NewChannel(WithToken(other_both_));
    admin_ = channels_[5];
  }

  static grpc::Status Run(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                          const Messages& messages) {
    RawCall call(channel, "/" + method, std::chrono::seconds(60));
    for (const std::string& message : messages) {
      if (!call.Write(message)) break;
    }
    call.WritesDone();
    // A watch goes on for ever.
    const bool is_watch = method == "grpc.health.v1.Health/Watch";
    while (call.Read().has_value()) {
      if (is_watch) return grpc::Status::OK;
    }
    return call.Finish();
  }
  static grpc::Status Put(const std::shared_ptr<grpc::Channel>& channel, const UploadData& data,
                          v1::UploadResponse* response = nullptr) {
    return Upload(*v1::BulkService::NewStub(channel), data, response, 1 << 20);
  }

  // The objects that RequestOf's requests name are there, and are the owner's.
  void EnsureObjects() {
    for (const UploadData& data :
         {VolumeData("v"), TransformData("t"), MakeMatrix(RandomCsr<float>(30, 30, 4, 2), "upload-m", "m")}) {
      const grpc::Status put = Put(own_, data);
      ASSERT_TRUE(put.ok()) << put.error_message();
    }
    DeviceContext& context = server_->context();
    const Identity owner{"own", Role::kFrame};
    if (!context.sessions.Find("s", owner).ok()) {
      const auto session = context.sessions.Open(context, Config("s"), owner);
      ASSERT_TRUE(session.ok()) << session.status();
      ASSERT_TRUE((*session)->Open(/*warm=*/false, nullptr).ok());
    }
    if (!context.uploads.Progress("unfinished", "own").ok()) BeginUpload(own_, "unfinished");
    const auto begun = context.operations.Begin(OperationKind::kImport, {"o", "print", "own"});
    ASSERT_TRUE(begun.ok()) << begun.status();
    if (begun->work != nullptr) begun->work->Done({});
  }
  // Begins again where it is refused: the place of the upload before may go some moments after its answer.
  void BeginUpload(const std::shared_ptr<grpc::Channel>& channel, const std::string& upload_id) {
    const UploadData data = VolumeData("", 3, upload_id);
    for (int attempt = 0; attempt < 30; ++attempt) {
      UploadCall call(*v1::BulkService::NewStub(channel));
      call.SendHeader(data.header);
      call.SendChunk(0, data.bytes.substr(0, 1));
      const bool is_begun = WaitForFirstByte(upload_id);
      call.Cancel();
      if (is_begun) return;
    }
    ADD_FAILURE() << "no upload was begun";
  }
  bool WaitForFirstByte(const std::string& upload_id) {
    for (int i = 0; i < 200; ++i) {
      const auto progress = server_->context().uploads.Progress(upload_id, "own");
      if (progress.ok() && progress->received == 1) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  static std::vector<std::string> Names(const std::shared_ptr<grpc::Channel>& channel) {
    v1::ListVolumesRequest request;
    request.set_page_size(1);
    std::vector<std::string> names;
    do {
      grpc::ClientContext page_call;
      v1::ListVolumesResponse page;
      EXPECT_TRUE(v1::VolumeService::NewStub(channel)->ListVolumes(&page_call, request, &page).ok());
      for (const v1::Volume& volume : page.volumes()) names.push_back(absl::StrCat(volume.owner(), ":", volume.name()));
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return names;
  }
  // A call's memory and place go some moments after its answer.
  static void WaitForUse(const std::shared_ptr<grpc::Channel>& channel, int64_t resident_bytes) {
    v1::Usage usage;
    EXPECT_TRUE(Eventually([&] {
      usage = UsageOf(channel);
      return usage.resident_bytes() == resident_bytes && usage.uploads() == 0;
    })) << usage.ShortDebugString();
  }
  static v1::Usage UsageOf(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext call;
    v1::GetServerInfoResponse response;
    EXPECT_TRUE(v1::ServerService::NewStub(channel)->GetServerInfo(&call, {}, &response).ok());
    return response.info().usage();
  }
  static v1::ServerInfo InfoOf(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext call;
    v1::GetServerInfoResponse response;
    EXPECT_TRUE(v1::ServerService::NewStub(channel)->GetServerInfo(&call, {}, &response).ok());
    return response.info();
  }

  std::vector<std::string> tokens_of_;
  std::string both_;
  std::string other_both_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;  // by column
  std::shared_ptr<grpc::Channel> own_;
  std::shared_ptr<grpc::Channel> other_;
  std::shared_ptr<grpc::Channel> admin_;
};

TEST(RoleMatrix, HasARowForEveryMethod) {
  std::set<std::string> methods, rows;
  for (const RpcMethod& method : AllMethods()) methods.insert(method.full_name());
  for (const Row& row : kRows) rows.insert(row.method);
  EXPECT_EQ(rows, methods);
}

TEST(RoleMatrix, IsThatOfTheDocumentation) {
  std::ifstream file(INTRAWARP_SOURCE_DIR "/docs/operate/security.md");
  std::stringstream text;
  text << file.rdbuf();
  for (const Row& row : kRows) EXPECT_THAT(text.str(), HasSubstr(DocLine(row)));
}

TEST_F(OwnershipTest, EveryMethodWithEveryRole) {
  AddCallers();
  FakeArchive archive([](dimse::Association& association, dimse::Connection&) {
    for (;;) {
      const auto request = association.ReceiveCommand();
      if (!request.ok()) return;
      if (request->command.has_data) FakeArchive::Identifier(association, *request);
      (void)association.Send(request->context, dimse::ResponseTo(request->command, dimse::kSuccess));
    }
  });
  const std::string remotes =
      folder_.Write("remotes", absl::StrCat("archive get ARCHIVE 127.0.0.1:", archive.port(), " plain\n"));
  StartForCallers([&](ServerOptions& options) { options.dicom.remotes = remotes; });
  for (const Row& row : kRows) {
    std::string signs;
    for (int column = 0; column < kColumnCount; ++column) {
      EnsureObjects();
      signs += SignOf(Run(channels_[column], row.method, RequestOf(row.method)));
    }
    EXPECT_EQ(signs, row.expected) << row.method << ", by column: own frame, stage, admin; other frame, stage, admin";
    const grpc::Status stranger = Run(NewChannel(WithToken("")), row.method, RequestOf(row.method));
    const bool is_open = std::string(row.method).rfind("grpc.health", 0) == 0;
    EXPECT_EQ(stranger.error_code(), is_open ? grpc::OK : grpc::UNAUTHENTICATED) << row.method;
  }
}

TEST_F(OwnershipTest, AnIdBelongsToItsOwner) {
  AddCallers();
  StartForCallers();
  v1::UploadResponse mine, others;
  ASSERT_TRUE(Put(own_, VolumeData("v", 5, "same upload id"), &mine).ok());
  ASSERT_TRUE(Put(other_, VolumeData("v", 12, "same upload id"), &others).ok());
  EXPECT_FALSE(others.already_resident());
  EXPECT_NE(mine.volume().digest(), others.volume().digest());
  EXPECT_EQ(DownloadBytes(*v1::BulkService::NewStub(own_),
                          [] {
                            v1::DownloadRequest request;
                            request.set_name("volumes/v");
                            return request;
                          }())
                .header.volume()
                .digest(),
            mine.volume().digest());
  EXPECT_THAT(Names(own_), ElementsAre("own:volumes/v"));
  EXPECT_THAT(Names(other_), ElementsAre("other:volumes/v"));
  EXPECT_THAT(Names(admin_), ElementsAre("other:volumes/v", "own:volumes/v"));
  // "other" is also the name of this admin, whose own object comes first.
  EXPECT_TRUE(Run(admin_, "intrawarp.v1.VolumeService/DeleteVolume", Named<v1::GetVolumeRequest>("volumes/v")).ok());
  EXPECT_THAT(Names(other_), ElementsAre());
  EXPECT_THAT(Names(own_), ElementsAre("own:volumes/v"));
  EXPECT_TRUE(Run(admin_, "intrawarp.v1.VolumeService/GetVolume", Named<v1::GetVolumeRequest>("volumes/v")).ok());
}

TEST_F(OwnershipTest, AnAdminCannotMeanOneOfSeveralOthers) {
  AddCallers();
  const std::string root = AddToken("root", Role::kAdmin);
  StartForCallers();
  ASSERT_TRUE(Put(own_, VolumeData("v", 5)).ok());
  ASSERT_TRUE(Put(other_, VolumeData("v", 5)).ok());
  const grpc::Status status = Run(NewChannel(WithToken(root)), "intrawarp.v1.VolumeService/DeleteVolume",
                                  Named<v1::GetVolumeRequest>("volumes/v"));
  EXPECT_EQ(status.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_EQ(Names(own_).size() + Names(other_).size(), 2u);
}

// The same content without an id finds the caller's object alone.
TEST_F(OwnershipTest, ContentDoesNotTellOfAnothersObject) {
  AddCallers();
  StartForCallers();
  v1::UploadResponse first, again, others;
  ASSERT_TRUE(Put(own_, VolumeData("", 5, "1"), &first).ok());
  ASSERT_TRUE(Put(own_, VolumeData("", 5, "2"), &again).ok());
  ASSERT_TRUE(Put(other_, VolumeData("", 5, "3"), &others).ok());
  EXPECT_TRUE(again.already_resident());
  EXPECT_FALSE(others.already_resident());
  EXPECT_NE(first.volume().name(), others.volume().name());
}

// An object of another owner looks like one that nobody has, to the last byte.
TEST_F(OwnershipTest, AnothersObjectLooksAbsent) {
  AddCallers();
  StartForCallers();
  EnsureObjects();
  for (const char* method : {"intrawarp.v1.VolumeService/GetVolume", "intrawarp.v1.BulkService/Download",
                             "intrawarp.v1.VolumeService/DeleteVolume"}) {
    const grpc::Status hidden = Run(other_, method, Named<v1::GetVolumeRequest>("volumes/v"));
    const grpc::Status absent = Run(other_, method, Named<v1::GetVolumeRequest>("volumes/w"));
    EXPECT_EQ(hidden.error_code(), grpc::NOT_FOUND);
    EXPECT_EQ(absl::StrReplaceAll(hidden.error_message(), {{"volumes/v", "volumes/w"}}), absent.error_message());
    EXPECT_EQ(absl::StrReplaceAll(hidden.error_details(), {{"volumes/v", "volumes/w"}}), absent.error_details());
  }
  v1::RegisterRequest request;
  ASSERT_TRUE(request.ParseFromString(Registration()[0]));
  ASSERT_TRUE(Put(other_, VolumeData("mine")).ok());
  for (const auto& set : std::vector<std::function<void(v1::RegisterRequest&)>>{
           [](auto& r) { r.set_moving("volumes/v"); },
           [](auto& r) { r.mutable_options()->set_fixed_mask("volumes/v"); },
           [](auto& r) { r.mutable_options()->set_moving_mask("volumes/v"); },
           [](auto& r) { r.mutable_options()->set_fixed_weight("volumes/v"); },
           [](auto& r) { r.mutable_options()->set_moving_weight("volumes/v"); },
           [](auto& r) { r.mutable_options()->set_initial_transform("transforms/t"); }}) {
    request.set_fixed("volumes/mine");
    request.set_moving("volumes/mine");
    request.mutable_options()->clear_fixed_mask();
    request.mutable_options()->clear_moving_mask();
    request.mutable_options()->clear_fixed_weight();
    request.mutable_options()->clear_moving_weight();
    set(request);
    EXPECT_EQ(Run(other_, "intrawarp.v1.RegistrationService/Register", {request.SerializeAsString()}).error_code(),
              grpc::NOT_FOUND);
  }
}

TEST_F(OwnershipTest, AnothersObjectIsInNoCount) {
  AddCallers();
  StartForCallers();
  const v1::ServerInfo before = InfoOf(other_);
  EnsureObjects();
  const v1::ServerInfo own = InfoOf(own_), admin = InfoOf(admin_);
  v1::ServerInfo other = InfoOf(other_);
  EXPECT_GT(own.resources().resident_memory().in_use(), 0);
  EXPECT_GT(own.resources().transforms().in_use(), 0);
  EXPECT_GT(admin.resources().resident_memory().peak(), 0);
  EXPECT_GT(admin.devices(0).resident_memory().in_use(), 0);
  EXPECT_EQ(other.resources().SerializeAsString(), before.resources().SerializeAsString());
  other.mutable_usage()->clear_jobs();  // the load of the server
  EXPECT_EQ(other.usage().SerializeAsString(), before.usage().SerializeAsString());
  EXPECT_EQ(other.resources().resident_memory().capacity(), admin.resources().resident_memory().capacity());
  EXPECT_EQ(other.devices(0).resident_memory().in_use(), 0);
  EXPECT_EQ(other.devices(0).memory_free_bytes(), 0);
}

TEST_F(OwnershipTest, ARequestIdBelongsToItsOwner) {
  AddCallers();
  StartForCallers();
  ASSERT_TRUE(Put(own_, VolumeData("v", 5)).ok());
  ASSERT_TRUE(Put(other_, VolumeData("v", 12)).ok());
  v1::RegisterRequest request;
  ASSERT_TRUE(request.ParseFromString(Registration()[0]));
  request.set_request_id("same");
  std::set<std::string> transforms;
  for (const auto& channel : {own_, other_, own_}) {
    grpc::ClientContext call;
    const auto reader = v1::RegistrationService::NewStub(channel)->Register(&call, request);
    v1::RegisterResponse response;
    std::string name;
    while (reader->Read(&response)) name = response.result().transform();
    EXPECT_TRUE(reader->Finish().ok());
    transforms.insert(name);
  }
  EXPECT_EQ(transforms.size(), 2u) << "the third is the first, repeated";
}

TEST_F(OwnershipTest, AnOwnersShareIsBounded) {
  AddCallers();
  const int64_t volume = PreparedImage::Bytes(Grid());
  StartForCallers([&](ServerOptions& options) {
    options.limits.owner_resident_bytes = 2 * volume + volume / 2;
    options.limits.owner_uploads = 1;
    options.limits.owner_sessions = 1;
  });
  ASSERT_TRUE(Put(own_, VolumeData("v")).ok());
  WaitForUse(own_, volume);
  BeginUpload(own_, "unfinished");
  const grpc::Status upload = Put(own_, VolumeData("w", 7));
  EXPECT_EQ(upload.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(upload).reason, "OWNER_QUOTA");
  EXPECT_FALSE(DetailsOf(upload).retry);
  EXPECT_TRUE(Put(other_, VolumeData("w", 7)).ok()) << "another's share";
  server_->context().uploads.Clear();
  WaitForUse(own_, volume);
  ASSERT_TRUE(Put(own_, VolumeData("w", 7)).ok());
  WaitForUse(own_, 2 * volume);
  EXPECT_EQ(DetailsOf(Put(own_, VolumeData("x", 8))).reason, "OWNER_QUOTA") << "of bytes";
  ASSERT_TRUE(Run(own_, "intrawarp.v1.VolumeService/DeleteVolume", Named<v1::GetVolumeRequest>("volumes/w")).ok());
  WaitForUse(own_, volume);
  EXPECT_TRUE(Put(own_, VolumeData("x", 8)).ok());
  EXPECT_EQ(UsageOf(own_).volumes(), 2);
  EXPECT_EQ(UsageOf(other_).volumes(), 1);
  EXPECT_EQ(UsageOf(admin_).volumes(), 3);
}

TEST_F(OwnershipTest, AnOwnersSessionsAreBounded) {
  AddCallers();
  StartForCallers([](ServerOptions& options) { options.limits.owner_sessions = 1; });
  ASSERT_TRUE(Put(own_, VolumeData("v")).ok());
  ASSERT_TRUE(Put(other_, VolumeData("v")).ok());
  RawCall first(own_, "/intrawarp.v1.RegistrationService/Navigate", std::chrono::seconds(60));
  first.Write(Navigation()[0]);
  ASSERT_TRUE(first.Read().has_value()) << "the session has opened";
  EXPECT_EQ(DetailsOf(Run(own_, "intrawarp.v1.RegistrationService/Navigate", Navigation())).reason, "OWNER_QUOTA");
  EXPECT_TRUE(Run(other_, "intrawarp.v1.RegistrationService/Navigate", Navigation()).ok());
}

TEST_F(OwnershipTest, AnOwnerIsKeptOverARestart) {
  AddCallers();
  std::filesystem::create_directory(folder_.Path("state"));
  const auto keep = [&](ServerOptions& options) { options.state_dir = folder_.Path("state"); };
  StartForCallers(keep);
  ASSERT_TRUE(Put(own_, VolumeData("v", 5)).ok());
  ASSERT_TRUE(Put(other_, VolumeData("v", 5)).ok());
  ASSERT_TRUE(Put(own_, TransformData("t")).ok());
  server_.reset();
  channels_.clear();
  // A limit that came later takes nothing away.
  StartForCallers([&](ServerOptions& options) {
    keep(options);
    options.limits.owner_resident_bytes = 1;
  });
  EXPECT_THAT(Names(own_), ElementsAre("own:volumes/v"));
  EXPECT_THAT(Names(other_), ElementsAre("other:volumes/v"));
  const Messages transform = Named<v1::GetTransformRequest>("transforms/t");
  EXPECT_TRUE(Run(own_, "intrawarp.v1.TransformService/GetTransform", transform).ok());
  EXPECT_EQ(Run(other_, "intrawarp.v1.TransformService/GetTransform", transform).error_code(), grpc::NOT_FOUND);
  EXPECT_TRUE(Run(own_, "intrawarp.v1.VolumeService/DeleteVolume", Named<v1::GetVolumeRequest>("volumes/v")).ok());
  EXPECT_THAT(Names(other_), ElementsAre("other:volumes/v")) << "the payload is shared, the object is not";
}

}  // namespace
}  // namespace intrawarp::server
