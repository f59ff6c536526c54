// SPDX-License-Identifier: Apache-2.0
// Calls of every method of the contract with hostile messages (calls_input.h), against a server in this process with a
// CPU device: each header is decoded, checked and, where it passes, carried out. The server holds a volume
// ("volumes/resident"); uploads, results and sessions of an input are there for its later calls, and go with it.
//
// These hold, whatever comes: a call ends, with a code of the contract and its details; and after the last one nothing
// is held but what was there before.
#include <oneapi/tbb/global_control.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/image/pyramid.h"
#include "google/rpc/status.pb.h"
#include "server/bulk/upload_store.h"
#include "server/monitor/log.h"
#include "server/server.h"
#include "server/session/session_store.h"
#include "tests/fuzz/calls_input.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/parts.h"
#include "tests/server/raw_call.h"
#include "tests/server/simulation/frames.h"
#include "tests/support/eventually.h"

namespace {

using intrawarp::fuzz::Require;
using namespace intrawarp::server;  // NOLINT(google-build-using-namespace)
namespace v1 = intrawarp::v1;

constexpr std::chrono::seconds kMostTime{5};
constexpr int kMostAnswers = 1000;

ServerOptions SmallServer() {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.http = "127.0.0.1:0";
  options.device = "cpu";
  options.watchdog.timeout = std::chrono::seconds(0);  // the process may be starved
  options.drain_timeout = std::chrono::seconds(1);
  options.limits.max_volume_bytes = 1 << 20;
  options.limits.max_matrix_bytes = 1 << 20;
  options.limits.resident_capacity_bytes = 32 << 20;
  options.limits.workspace_capacity_bytes = 64 << 20;
  options.limits.pinned_capacity_bytes = 32 << 20;
  options.limits.uploading_capacity_bytes = 4 << 20;
  options.limits.max_transforms = 16;
  options.limits.max_sessions = 2;
  options.limits.max_uploads = 4;
  return options;
}

class TestServer {
 public:
  TestServer() : server_(*Server::Start(SmallServer())) {
    channel_ = grpc::CreateChannel(server_->grpc_address(), grpc::InsecureChannelCredentials());
    PutVolume();
    Require(Settled(), "a server at rest");
    resident_ = context().ledger.in_use(Resource::kResident);
  }

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  // Takes away what calls have left.
  void Clear() {
    context().sessions.CloseAll(absl::CancelledError("the input is over"));
    context().uploads.Clear();
    for (const auto& volume : context().volumes.List("", 1000, Anybody())) {
      if (volume->id != kResident) context().volumes.Erase(volume);
    }
    for (const auto& matrix : context().matrices.List("", 1000, Anybody())) context().matrices.Erase(matrix);
    for (const auto& transform : context().transforms.List("", 1000, Anybody())) {
      context().transforms.Erase(transform);
    }
  }

  // Waits until nothing is under way or held any more.
  bool Settled() {
    const bool is_at_rest = intrawarp::Eventually([this] {
      Clear();
      return IsAtRest();
    });
    if (is_at_rest) return true;
    for (int i = 0; i < kResources; ++i) {
      std::fprintf(stderr, "%s: %lld\n", kResourceNames[i],
                   static_cast<long long>(context().ledger.in_use(static_cast<Resource>(i))));
    }
    return false;
  }

 private:
  DeviceContext& context() { return server_->context(); }

  bool IsAtRest() {
    Ledger& ledger = context().ledger;
    for (const Resource resource :
         {Resource::kWorkspace, Resource::kPinned, Resource::kUploading, Resource::kTransforms, Resource::kStreams,
          Resource::kUploads, Resource::kSessions}) {
      if (ledger.in_use(resource) != 0) return false;
    }
    if (resident_ && ledger.in_use(Resource::kResident) != *resident_) return false;
    return context().jobs.pending() == 0 && context().pinned.leased_bytes() == 0;
  }

  void PutVolume() {
    std::promise<void> done;
    intrawarp::Job job;
    job.workspace_bytes =
        static_cast<int64_t>(intrawarp::PreparedImage::WorkspaceBytes(FrameGrid(), intrawarp::PixelType::kFloat32));
    job.run = [&](const absl::StatusOr<const intrawarp::ExecContext*>& ctx) {
      Require(ctx.ok(), "a device");
      const std::vector<float> voxels = FrameVoxels(0);
      auto image =
          intrawarp::PreparedImage::Prepare(**ctx, voxels.data(), intrawarp::PixelType::kFloat32, 1, 0, FrameGrid());
      auto volume = std::make_shared<StoredVolume>();
      volume->id = kResident;
      volume->digest = kResident;
      volume->image = *std::move(image);
      Require(context().volumes.Insert(std::move(volume)).ok(), "a resident volume");
      done.set_value();
    };
    Require(context().jobs.Submit(std::move(job)).ok(), "a job");
    done.get_future().wait();
  }

  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::optional<int64_t> resident_;
};

void RequireEnd(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::UNIMPLEMENTED:
      return;
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::ALREADY_EXISTS:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::OUT_OF_RANGE:
    case grpc::StatusCode::DATA_LOSS: {
      google::rpc::Status details;
      Require(details.ParseFromString(status.error_details()) && details.details_size() > 0, "an error's details");
      Require(!status.error_message().empty() && status.error_message().size() < 4000, "the length of a message");
      return;
    }
    default:
      std::fprintf(stderr, "%d: %s\n", status.error_code(), status.error_message().c_str());
      Require(false, "a code of the contract");
  }
}

void Call(TestServer& server, const google::protobuf::MethodDescriptor& method,
          const std::vector<std::string>& messages) {
  RawCall call(server.channel(), "/" + method.service()->full_name() + "/" + method.name(), kMostTime);
  for (const std::string& message : messages) {
    if (!call.Write(message)) break;
  }
  (void)call.WritesDone();
  int answers = 0;
  while (std::optional<std::string> answer = call.Read()) {
    if (++answers > kMostAnswers) call.Cancel();
  }
  RequireEnd(call.Finish());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const oneapi::tbb::global_control one_core(oneapi::tbb::global_control::max_allowed_parallelism, 1);
  // It is never stopped: threads of gRPC outlive main's statics.
  static auto* const server = new TestServer;
  const std::vector<std::string> parts = intrawarp::fuzz::SplitParts(data, size, intrawarp::fuzz::kMostMessages);
  for (size_t i = 0; i < parts.size();) {
    if (parts[i].empty()) {
      ++i;
      continue;
    }
    const google::protobuf::MethodDescriptor& method = intrawarp::fuzz::MethodOf(static_cast<uint8_t>(parts[i][0]));
    std::vector<std::string> messages = {parts[i].substr(1)};
    for (++i; i < parts.size() && !parts[i].empty() && (parts[i][0] & intrawarp::fuzz::kGoesOn) != 0; ++i) {
      if (method.client_streaming()) messages.push_back(parts[i].substr(1));
    }
    Call(*server, method, messages);
  }
  Require(server->Settled(), "nothing is held when all calls have ended");
  return 0;
}
