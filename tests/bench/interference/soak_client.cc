// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/interference/soak_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/rpc_status.h"
#include "engine/base/status_macros.h"
#include "intrawarp/v1/bulk.grpc.pb.h"
#include "intrawarp/v1/registration.grpc.pb.h"
#include "intrawarp/v1/sparse_matrix.grpc.pb.h"
#include "intrawarp/v1/transform.grpc.pb.h"
#include "intrawarp/v1/volume.grpc.pb.h"
#include "tests/server/http_client.h"
#include "tests/tcp_relay.h"

namespace intrawarp::bench {
namespace {

// Ends that a client brings about itself, and clear refusals, are not errors.
bool IsExpected(const absl::Status& status) {
  return status.ok() || absl::IsCancelled(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status);
}

// Unary calls, of which the first error but NOT_FOUND counts.
struct Questions {
  absl::Status status;

  template <typename Stub, typename Method, typename Request, typename Response>
  void operator()(Stub& stub, Method method, const Request& request, Response* response) {
    grpc::ClientContext context;
    const grpc::Status answer = (stub.*method)(&context, request, response);
    if (answer.error_code() != grpc::NOT_FOUND) status.Update(client::FromGrpcStatus(answer));
  }
};

}  // namespace

const std::vector<SoakClient::Action>& SoakClient::Actions() {
  static const auto* const actions = new std::vector<Action>{
      {"navigate", &SoakClient::Navigate}, {"register", &SoakClient::Register}, {"upload", &SoakClient::Upload},
      {"abandon", &SoakClient::Abandon},   {"download", &SoakClient::Download}, {"transforms", &SoakClient::Transforms},
      {"multiply", &SoakClient::Multiply}, {"look", &SoakClient::Look},         {"ask", &SoakClient::Ask},
      {"resume", &SoakClient::Resume},     {"scrape", &SoakClient::Scrape}};
  return *actions;
}

void SoakClient::Act() {
  if (client_ == nullptr || Chance(0.05)) {
    absl::StatusOr<std::unique_ptr<client::Client>> client = site_.Connect();
    if (!client.ok()) return;
    client_ = *std::move(client);
    channel_ = grpc::CreateChannel(site_.server().grpc_address(), grpc::InsecureChannelCredentials());
  }
  const Action& action = Actions()[Between(0, static_cast<int>(Actions().size()) - 1)];
  const absl::Status status = (this->*action.act)(*client_);
  ++done_[action.name];
  if (!IsExpected(status)) ++errors_[absl::StrCat(action.name, ": ", ErrorName(status))];
}

client::CallOptions SoakClient::Impatience() {
  client::CallOptions options;
  if (Chance(0.3)) options.timeout = std::chrono::milliseconds(Between(1, 50));
  return options;
}

std::string SoakClient::RandomMethod() {
  const char* methods[] = {"rigid", "affine", "ffd", "log-demons"};
  return methods[Between(0, 3)];
}

std::string SoakClient::Fresh(const std::string& prefix) { return absl::StrCat(prefix, "-", number_ += 1000003); }

v1::RegisterRequest SoakClient::RandomRegistration() {
  v1::RegisterRequest request;
  request.set_fixed("volumes/flood-fixed");
  request.set_moving(Site::RestName(site_.options().size));
  const absl::StatusOr<v1::RegistrationOptions> options = OptionsOfMethod(RandomMethod());
  if (options.ok()) *request.mutable_options() = *options;
  // The results of calls that nobody waits for go by themselves.
  request.mutable_ttl()->set_seconds(5);
  if (Chance(0.3)) request.mutable_options()->mutable_budget()->set_nanos(Between(1, 100) * 1000000);
  request.mutable_options()->set_best_effort(request.options().has_budget() && Chance(0.5));
  if (Chance(0.5)) request.mutable_field()->set_encoding(v1::FIELD_ENCODING_INT16);
  return request;
}

v1::NavigateConfig SoakClient::RandomSession() {
  v1::NavigateConfig config;
  config.set_moving(Site::RestName(site_.options().size));
  *config.mutable_options() = RandomRegistration().options();
  if (Chance(0.5)) config.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT16);
  if (Chance(0.5)) config.set_overload_policy(v1::OVERLOAD_POLICY_LATEST_WINS);
  if (Chance(0.3)) config.mutable_frame_deadline()->set_nanos(Between(1, 500) * 1000000);
  return config;
}

absl::Status SoakClient::SendFrames(client::NavigateStream& stream, int first, int frames) {
  client::GridData field;
  for (int number = first; number < first + frames; ++number) {
    client::Frame frame;
    frame.number = number;
    frame.geometry = images_.geometry();
    frame.pixel_type = PixelType::kInt16;
    frame.bytes = BytesOf(images_.phases()[number % images_.phases().size()].voxels);
    if (!stream.Send(frame).ok() || Chance(0.05)) break;
    INTRAWARP_RETURN_IF_ERROR(stream.Receive(client::SinkInto(&field)).status());
  }
  return absl::OkStatus();
}

// A few frames, and an end: a good one, a cancel, or none at all.
absl::Status SoakClient::Navigate(client::Client& client) {
  const std::unique_ptr<client::NavigateStream> stream = client.Navigate(RandomSession(), Impatience());
  INTRAWARP_RETURN_IF_ERROR(SendFrames(*stream, 1, Between(0, 12)));
  if (Chance(0.3)) return absl::OkStatus();
  if (Chance(0.3)) stream->Cancel();
  (void)stream->CloseSend();
  client::GridData field;
  return stream->Receive(client::SinkInto(&field)).status();
}

// A session whose connection breaks, and that goes on over another one, unless it is closed or left to its window.
absl::Status SoakClient::Resume(client::Client& client) {
  v1::NavigateConfig config = RandomSession();
  config.set_session_id(Fresh("session"));
  config.mutable_resume_window()->set_seconds(2);
  {
    TcpRelay relay(site_.server().grpc_address());
    INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<client::Client> first, client::Client::Connect(relay.address()));
    const std::unique_ptr<client::NavigateStream> stream = first->Navigate(config, {});
    const absl::Status sent = SendFrames(*stream, 1, Between(1, 4));
    relay.Cut();
    if (!sent.ok()) return sent;
  }
  absl::Status status;
  if (Chance(0.6)) {
    config.set_resume(true);
    const std::unique_ptr<client::NavigateStream> stream = client.Navigate(config, Impatience());
    status = SendFrames(*stream, 100, Between(1, 4));
  }
  if (Chance(0.5)) {
    grpc::ClientContext context;
    v1::CloseSessionRequest request;
    v1::CloseSessionResponse response;
    request.set_name("sessions/" + config.session_id());
    (void)v1::SessionService::NewStub(channel_)->CloseSession(&context, request, &response);
  }
  // The server may not have noticed the break yet, and a frame may have failed the first stream for good.
  return absl::IsFailedPrecondition(status) || absl::IsAborted(status) ? absl::OkStatus() : status;
}

absl::Status SoakClient::Register(client::Client& client) {
  client::GridData field;
  const absl::StatusOr<v1::RegisterResult> result =
      client.Register(RandomRegistration(), nullptr, client::SinkInto(&field), Impatience());
  if (!result.ok() || Chance(0.3)) return result.status();
  return client.DeleteTransform(result->transform());
}

absl::Status SoakClient::Upload(client::Client& client) {
  const BreathPhase& phase = images_.phases()[Between(0, static_cast<int>(images_.phases().size()) - 1)];
  client::VolumeUpload upload;
  upload.id = Fresh("soak");
  upload.geometry = images_.geometry();
  upload.pixel_type = PixelType::kInt16;
  upload.bytes = BytesOf(phase.voxels);
  Tidy();
  const absl::Status uploaded = client.UploadVolume(upload, Impatience()).status();
  if (uploaded.ok()) return client.DeleteVolume("volumes/" + upload.id);
  given_up_.push_back("volumes/" + upload.id);
  return uploaded;
}

void SoakClient::Tidy() {
  if (client_ == nullptr) return;
  for (const std::string& name : given_up_) (void)client_->DeleteVolume(name);
  given_up_.clear();
}

// A client whose connection breaks in the middle of whatever it does.
absl::Status SoakClient::Abandon(client::Client&) {
  TcpRelay relay(site_.server().grpc_address());
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<client::Client> client, client::Client::Connect(relay.address()));
  std::thread cut([&relay, ms = Between(1, 80)] {
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    relay.Cut();
  });
  absl::Status status;
  if (Chance(0.4)) status = Navigate(*client);
  if (Chance(0.4)) status.Update(Register(*client));
  if (Chance(0.4)) status.Update(Multiply(*client));
  cut.join();
  return absl::IsUnavailable(status) || absl::IsDataLoss(status) ? absl::OkStatus() : status;
}

absl::Status SoakClient::Download(client::Client& client) {
  client::GridData voxels;
  return client.DownloadVolume("volumes/flood-fixed", client::SinkInto(&voxels), Impatience()).status();
}

absl::Status SoakClient::Transforms(client::Client& client) {
  const std::string id = Fresh("t");
  INTRAWARP_RETURN_IF_ERROR(client.UploadAffine(id, AffineMap::Identity()).status());
  const std::string name = "transforms/" + id;
  client::GridData data;
  v1::WarpVolumeRequest warp;
  warp.set_transform(name);
  warp.set_moving("volumes/flood-fixed");
  warp.set_like_volume("volumes/flood-fixed");
  absl::Status status = client.WarpVolume(warp, client::SinkInto(&data), Impatience());
  status.Update(client.MapPoints(name, images_.points(), /*inverse=*/true, Impatience()).status());
  status.Update(client.DeleteTransform(name));
  return status;
}

absl::Status SoakClient::Multiply(client::Client& client) {
  v1::MultiplyRequest request;
  request.set_a("sparseMatrices/" + site_.options().fem);
  request.set_b("sparseMatrices/" + site_.options().fem);
  const bool keep = Chance(0.5);
  if (keep) request.mutable_keep()->mutable_ttl()->set_seconds(5);
  client::SparseMatrix product;
  const absl::StatusOr<v1::MultiplyResult> result = client.Multiply(request, nullptr, &product, Impatience());
  if (!result.ok() || !keep || Chance(0.3)) return result.status();
  return client.DeleteSparseMatrix(result->sparse_matrix().name());
}

absl::Status SoakClient::Look(client::Client& client) {
  INTRAWARP_RETURN_IF_ERROR(client.GetServerInfo().status());
  INTRAWARP_RETURN_IF_ERROR(client.ListVolumes().status());
  INTRAWARP_RETURN_IF_ERROR(client.ListTransforms().status());
  return client.IsServing().status();
}

// The questions that nothing else here asks, about what is there and what is not.
absl::Status SoakClient::Ask(client::Client&) {
  Questions ask;
  const auto navigations = v1::SessionService::NewStub(channel_);
  v1::ListSessionsResponse sessions;
  ask(*navigations, &v1::SessionService::Stub::ListSessions, v1::ListSessionsRequest(), &sessions);
  for (const v1::Session& session : sessions.sessions()) {
    v1::GetSessionRequest request;
    v1::GetSessionResponse response;
    request.set_name(session.name());
    ask(*navigations, &v1::SessionService::Stub::GetSession, request, &response);
  }
  v1::GetVolumeRequest volume;
  v1::GetVolumeResponse volume_response;
  volume.set_name(Site::RestName(site_.options().size));
  ask(*v1::VolumeService::NewStub(channel_), &v1::VolumeService::Stub::GetVolume, volume, &volume_response);
  v1::GetSparseMatrixRequest matrix;
  v1::GetSparseMatrixResponse matrix_response;
  matrix.set_name("sparseMatrices/" + site_.options().fem);
  const auto matrices = v1::SparseMatrixService::NewStub(channel_);
  ask(*matrices, &v1::SparseMatrixService::Stub::GetSparseMatrix, matrix, &matrix_response);
  v1::ListSparseMatricesResponse all_matrices;
  ask(*matrices, &v1::SparseMatrixService::Stub::ListSparseMatrices, v1::ListSparseMatricesRequest(), &all_matrices);
  v1::GetTransformRequest transform;
  v1::GetTransformResponse transform_response;
  transform.set_name("transforms/nowhere");
  ask(*v1::TransformService::NewStub(channel_), &v1::TransformService::Stub::GetTransform, transform,
      &transform_response);
  v1::GetUploadStatusRequest upload;
  v1::GetUploadStatusResponse upload_response;
  upload.set_upload_id("nowhere");
  ask(*v1::BulkService::NewStub(channel_), &v1::BulkService::Stub::GetUploadStatus, upload, &upload_response);
  return ask.status;
}

// A monitoring system, or one that hangs up before it has its answer.
absl::Status SoakClient::Scrape(client::Client&) {
  const std::string& address = site_.server().http_address();
  if (Chance(0.2)) {
    server::HttpConnection(address).Send("GET /metrics HTTP/1.1\r\nHost: soak");
    return absl::OkStatus();
  }
  for (const char* path : {"/metrics", "/healthz"}) {
    const server::HttpAnswer answer = server::HttpGet(address, path);
    if (answer.status != 200) return absl::UnknownError(absl::StrCat(path, ": ", answer.status));
  }
  return absl::OkStatus();
}

}  // namespace intrawarp::bench
