// SPDX-License-Identifier: Apache-2.0
// The life of a whole server (uploads, a registration, a product, a session, deletions) in which one change of the disk
// fails, and after which the power is lost: whatever was acknowledged is there after a new start, bit for bit, whatever
// was acknowledged as deleted is not, and nothing crashes.
//
// INTRAWARP_FAULT_STEP: every so-manieth change of the disk fails in turn; 1: each of them. Default: 9.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "intrawarp/v1/registration.grpc.pb.h"
#include "intrawarp/v1/sparse_matrix.grpc.pb.h"
#include "intrawarp/v1/volume.grpc.pb.h"
#include "server/server.h"
#include "tests/server/matrix_client.h"
#include "tests/server/navigate_frames.h"
#include "tests/server/state/test_files.h"
#include "tests/server/test_server.h"
#include "tests/server/volume_client.h"

namespace intrawarp::server {
namespace {

using state::Fault;
using state::FaultyFiles;

// One server, and one of each stub of it.
struct Served {
  std::unique_ptr<Server> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::BulkService::Stub> bulk;
  std::unique_ptr<v1::VolumeService::Stub> volumes;
  std::unique_ptr<v1::SparseMatrixService::Stub> matrices;
  std::unique_ptr<v1::RegistrationService::Stub> registration;
};

absl::StatusOr<Served> Start(state::FileLayer& files) {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.http = "127.0.0.1:0";
  options.device = "cpu";
  options.state_dir = "d";
  options.state_files = &files;
  options.limits.resident_capacity_bytes = int64_t{1} << 26;
  options.limits.workspace_capacity_bytes = int64_t{1} << 30;
  options.limits.pinned_capacity_bytes = int64_t{1} << 26;
  options.drain_timeout = std::chrono::seconds(5);
  Served served;
  INTRAWARP_ASSIGN_OR_RETURN(served.server, Server::Start(options));
  served.channel = NewConnection(*served.server);
  served.bulk = v1::BulkService::NewStub(served.channel);
  served.volumes = v1::VolumeService::NewStub(served.channel);
  served.matrices = v1::SparseMatrixService::NewStub(served.channel);
  served.registration = v1::RegistrationService::NewStub(served.channel);
  return served;
}

// Every error is one of the state directory, or follows from an object that is not there for that reason.
void ExpectClear(const grpc::Status& status, absl::string_view what) {
  const bool is_clear = status.ok() || status.error_code() == grpc::RESOURCE_EXHAUSTED ||
                        status.error_code() == grpc::UNAVAILABLE || status.error_code() == grpc::NOT_FOUND;
  EXPECT_TRUE(is_clear) << what << ": " << status.error_code() << " " << status.error_message();
}

const Geometry kBox = ObliqueGeometry({14, 13, 12});

std::vector<float> VoxelsOf(const std::string& id) {
  AffineMap moved = AffineMap::Identity();
  moved.m[0][3] = id == "fixed" ? 0 : 1.5;
  return Blobs(kBox, Center(kBox), 8, moved);
}

// What the client of a life was told.
class Life {
 public:
  void Live(Served& served) {
    for (const char* id : {"fixed", "moving", "gone"}) Put(served, id);
    PutMatrix(served);
    KeepProduct(served);
    Register(served);
    Navigate(served);
    Delete(served, "gone");
  }

  // After a start.
  void Compare(Served& served) {
    for (const std::string& name : kept_) ExpectThere(served, name);
    for (const std::string& name : deleted_) {
      EXPECT_EQ(Download(served, name).status.error_code(), grpc::NOT_FOUND) << name << " was deleted";
    }
    if (session_kept_) GoOn(served);
  }
  int acknowledged() const { return static_cast<int>(kept_.size() + deleted_.size()) + (session_kept_ ? 1 : 0); }

 private:
  static DownloadedBytes Download(Served& served, const std::string& name) {
    v1::DownloadRequest request;
    request.set_name(name);
    if (absl::StartsWith(name, "transforms/")) request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
    return DownloadBytes(*served.bulk, request);
  }
  void ExpectThere(Served& served, const std::string& name) {
    const DownloadedBytes download = Download(served, name);
    EXPECT_TRUE(download.status.ok()) << name << " was acknowledged: " << download.status.error_message();
    const auto content = content_.find(name);
    EXPECT_TRUE(content == content_.end() || download.bytes == content->second) << name;
  }
  void Acknowledge(const std::string& name, const grpc::Status& status, const std::string& content = "") {
    ExpectClear(status, name);
    if (!status.ok()) return;
    kept_.insert(name);
    if (!content.empty()) content_[name] = content;
  }

  void Put(Served& served, const std::string& id) {
    const UploadData upload = MakeVolume(kBox, VoxelsOf(id), "u" + id, id);
    Acknowledge("volumes/" + id, server::Upload(*served.bulk, upload, nullptr, 1 << 20), upload.bytes);
  }
  void PutMatrix(Served& served) {
    const UploadData upload = MakeMatrix(RandomCsr<float>(20, 20, 3, 3), "um", "m");
    Acknowledge("sparseMatrices/m", server::Upload(*served.bulk, upload, nullptr, 1 << 20), upload.bytes);
  }
  void KeepProduct(Served& served) {
    v1::MultiplyRequest request = ProductOf("m", "m");
    request.mutable_keep()->set_id("p");
    const Product product = Multiply(*served.matrices, request);
    Acknowledge("sparseMatrices/p", product.status);
    if (product.status.ok()) content_["sparseMatrices/p"] = Download(served, "sparseMatrices/p").bytes;
  }
  void Register(Served& served) {
    v1::RegisterRequest request;
    request.set_fixed("volumes/fixed");
    request.set_moving("volumes/moving");
    request.set_transform_id("t");
    v1::FfdStage& ffd = *request.mutable_options()->add_stages()->mutable_ffd();
    ffd.set_levels(1);
    ffd.set_iterations(2);
    grpc::ClientContext rpc;
    auto reader = served.registration->Register(&rpc, request);
    v1::RegisterResponse response;
    while (reader->Read(&response)) {
    }
    const grpc::Status status = reader->Finish();
    Acknowledge("transforms/t", status);
    if (status.ok()) content_["transforms/t"] = Download(served, "transforms/t").bytes;
  }
  void Delete(Served& served, const std::string& id) {
    grpc::ClientContext rpc;
    v1::DeleteVolumeRequest request;
    request.set_name("volumes/" + id);
    v1::DeleteVolumeResponse response;
    const grpc::Status status = served.volumes->DeleteVolume(&rpc, request, &response);
    ExpectClear(status, "deletion of " + id);
    // Without an answer that says so, it may be there or not.
    kept_.erase("volumes/" + id);
    if (status.ok()) deleted_.insert("volumes/" + id);
  }

  using Stream = grpc::ClientReaderWriter<v1::NavigateRequest, v1::NavigateResponse>;

  // Sends a frame and waits for its result; false when the stream has ended.
  static bool Frame(Stream& stream, int number, std::optional<int64_t>* kept) {
    for (const v1::NavigateRequest& request : FrameRequests(number, kBox, VoxelsOf("moving"), 1 << 20)) {
      if (!stream.Write(request)) return false;
    }
    v1::NavigateResponse response;
    while (stream.Read(&response)) {
      if (!response.has_result()) continue;
      EXPECT_EQ(response.result().status().code(), 0) << response.result().status().message();
      if (response.result().has_kept_frame_number()) *kept = response.result().kept_frame_number();
      return true;
    }
    return false;
  }
  // Frames go on whatever the disk does; then the stream breaks.
  void Navigate(Served& served) {
    grpc::ClientContext rpc;
    auto stream = served.registration->Navigate(&rpc);
    v1::NavigateRequest request;
    v1::NavigateConfig& config = *request.mutable_config();
    config.set_fixed("volumes/fixed");
    config.set_session_id("s");
    config.mutable_resume_window()->set_seconds(300);
    SetMethod(*config.mutable_options()->add_stages(), StageKind::kRigid);
    v1::NavigateResponse response;
    if (!stream->Write(request) || !stream->Read(&response)) return ExpectClear(stream->Finish(), "session");
    EXPECT_TRUE(response.has_opened());
    session_kept_ = true;
    for (int n = 1; n <= 3; ++n) EXPECT_TRUE(Frame(*stream, n, &durable_frame_)) << n;
    rpc.TryCancel();
    stream->Finish();
  }
  void GoOn(Served& served) {
    grpc::ClientContext rpc;
    auto stream = served.registration->Navigate(&rpc);
    v1::NavigateRequest request;
    request.mutable_config()->set_session_id("s");
    request.mutable_config()->set_resume(true);
    v1::NavigateResponse response;
    if (!stream->Write(request) || !stream->Read(&response)) {
      const grpc::Status status = stream->Finish();
      FAIL() << "the session was opened: " << status.error_message();
    }
    EXPECT_GE(response.opened().resumed_from_frame(), durable_frame_.value_or(0));
    std::optional<int64_t> ignored;
    EXPECT_TRUE(Frame(*stream, 10, &ignored));
    stream->WritesDone();
    while (stream->Read(&response)) {
    }
    EXPECT_TRUE(stream->Finish().ok());
  }

  std::set<std::string> kept_;
  std::set<std::string> deleted_;
  std::map<std::string, std::string> content_;
  bool session_kept_ = false;
  std::optional<int64_t> durable_frame_;
};

int Step() {
  const char* const step = std::getenv("INTRAWARP_FAULT_STEP");
  return step == nullptr ? 9 : std::max(1, std::atoi(step));
}

// Whether the fault came to pass.
bool LiveWithFault(Fault fault, int at, int* changes, int* acknowledged) {
  state::MemoryDisk disk;
  state::LockedFiles locked(disk);
  FaultyFiles files(locked, fault, at, FaultyFiles::Counts::kChanges);
  Life life;
  {
    auto served = Start(files);
    if (served.ok()) life.Live(*served);
    files.Unplug();
  }
  *changes = files.done();
  *acknowledged += life.acknowledged();
  disk.LosePower(at);
  auto after = Start(locked);
  EXPECT_TRUE(after.ok()) << after.status();
  if (after.ok()) life.Compare(*after);
  return files.has_failed();
}

void Sweep(Fault fault, const char* name) {
  std::random_device random;
  const int step = Step();
  int changes = 0, lives = 0, acknowledged = 0;
  for (int at = 1 + static_cast<int>(random() % static_cast<unsigned>(step));; at += step) {
    SCOPED_TRACE(absl::StrCat("change ", at));
    const bool has_failed = LiveWithFault(fault, at, &changes, &acknowledged);
    if (testing::Test::HasFailure()) return;
    if (!has_failed) break;
    ++lives;
  }
  EXPECT_GT(changes, 50);
  std::printf("%s: %d lives with a fault each, of some %d changes of the disk; %d acknowledged, 0 lost\n", name, lives,
              changes, acknowledged);
}

TEST(ServerFaults, AFullDiskAtAnyChange) { Sweep(Fault::kFull, "ENOSPC"); }
TEST(ServerFaults, AnErrorAtAnyChange) { Sweep(Fault::kBroken, "EIO"); }
TEST(ServerFaults, AShortWriteAtAnyChange) { Sweep(Fault::kShortWrite, "short write"); }
// Nothing reaches the disk from then on.
TEST(ServerFaults, ADiskThatGoesAway) { Sweep(Fault::kGone, "gone"); }

}  // namespace
}  // namespace intrawarp::server
