// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/interference/soak_client.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/rpc_status.h"
#include "engine/base/status_macros.h"
#include "tests/tcp_relay.h"

namespace intrawarp::bench {
namespace {

// Ends that a client brings about itself, and clear refusals, are no errors.
bool IsExpected(const absl::Status& status) {
  return status.ok() || absl::IsCancelled(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status);
}

}  // namespace

const std::vector<SoakClient::Action>& SoakClient::Actions() {
  static const auto* const actions = new std::vector<Action>{
      {"navigate", &SoakClient::Navigate}, {"register", &SoakClient::Register}, {"upload", &SoakClient::Upload},
      {"abandon", &SoakClient::Abandon},   {"download", &SoakClient::Download}, {"transforms", &SoakClient::Transforms},
      {"multiply", &SoakClient::Multiply}, {"look", &SoakClient::Look}};
  return *actions;
}

void SoakClient::Act() {
  if (client_ == nullptr || Chance(0.05)) {
    absl::StatusOr<std::unique_ptr<client::Client>> client = site_.Connect();
    if (!client.ok()) return;
    client_ = *std::move(client);
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

// A few frames, and an end: a good one, a cancel, or none at all.
absl::Status SoakClient::Navigate(client::Client& client) {
  v1::NavigateConfig config;
  config.set_moving(Site::RestName(site_.options().size));
  *config.mutable_options() = RandomRegistration().options();
  if (Chance(0.5)) config.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT16);
  const std::unique_ptr<client::NavigateStream> stream = client.Navigate(config, Impatience());
  client::GridData field;
  const int frames = Between(0, 12);
  for (int number = 1; number <= frames; ++number) {
    client::Frame frame;
    frame.number = number;
    frame.geometry = images_.geometry();
    frame.pixel_type = PixelType::kInt16;
    frame.bytes = BytesOf(images_.phases()[number % images_.phases().size()].voxels);
    if (!stream->Send(frame).ok() || Chance(0.05)) break;
    INTRAWARP_RETURN_IF_ERROR(stream->Receive(client::SinkInto(&field)).status());
  }
  if (Chance(0.3)) return absl::OkStatus();
  if (Chance(0.3)) stream->Cancel();
  (void)stream->CloseSend();
  return stream->Receive(client::SinkInto(&field)).status();
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

}  // namespace intrawarp::bench
