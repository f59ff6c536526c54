// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/routed_session.h"

#include <chrono>
#include <thread>

#include "client/cpp/uuid.h"
#include "engine/base/status_macros.h"
#include "wire/convert.h"

namespace intrawarp::client {
namespace {

// Between two rounds over the servers.
constexpr std::chrono::milliseconds kPause(250);

CallOptions WithKey(CallOptions options, const Route& route) {
  options.routing_key = route.key;
  return options;
}

// A session of this name waits there since an earlier break; it goes when its window is over.
bool IsLeftBehind(const absl::Status& status) { return absl::IsAlreadyExists(status); }

}  // namespace

RoutedSession::RoutedSession(RoutedClient* servers, Route route, v1::NavigateConfig config, Stage stage,
                             CallOptions options)
    : servers_(servers),
      route_(std::move(route)),
      config_(std::move(config)),
      stage_(std::move(stage)),
      options_(WithKey(std::move(options), route_)) {}

absl::Status RoutedSession::Open() {
  Recovery recovery;
  last_ =
      servers_->Run(route_, options_, [&](Client&, const std::string& address) { return OpenAt(address, &recovery); });
  return last_;
}

bool RoutedSession::AsksForNativeField() const {
  const v1::FieldRequest& field = config_.field();
  const bool native =
      field.encoding() == v1::FIELD_ENCODING_CONTROL_POINTS || field.encoding() == v1::FIELD_ENCODING_VELOCITY;
  return native && field.region_size().empty() && field.stride().empty();
}

absl::StatusOr<std::optional<FrameAnswer>> RoutedSession::Receive(GridData* field, const CoarseFieldSink& coarse) {
  absl::StatusOr<std::optional<FrameAnswer>> received =
      stream_->Receive(field == nullptr ? GridSink() : SinkInto(field), coarse);
  last_ = received.status();
  INTRAWARP_RETURN_IF_ERROR(last_);
  if (received->has_value()) Remember(**received, field);
  return received;
}

void RoutedSession::Remember(const FrameAnswer& answer, const GridData* field) {
  const v1::FrameResult& result = answer.result;
  if (result.status().code() != 0 || result.report().verdict() != v1::VERDICT_OK) return;
  good_.emplace();
  good_->affine = result.report().affine();
  good_->received = std::chrono::steady_clock::now();
  if (answer.has_field && AsksForNativeField()) good_->native = *field;
}

bool RoutedSession::HasStart() const {
  return good_ && std::chrono::steady_clock::now() - good_->received <= servers_->routing().max_start_age;
}

// A stage goes on from coefficients of its own kind alone, which is sure where the options name it.
absl::StatusOr<std::string> RoutedSession::SetStart(Client& client, v1::NavigateConfig* config, Recovery* recovery) {
  if (!HasStart()) return std::string();
  if (!good_->native || config->options().stages().empty()) {
    *config->mutable_options()->mutable_initial_affine() = good_->affine;
    recovery->start = Recovery::Start::kAffine;
    return std::string();
  }
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap affine, AffineMapFromProto(good_->affine));
  // Never an object of somebody else's with the same content: it is deleted again.
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, RandomUuid());
  const GridData& native = *good_->native;
  const absl::StatusOr<v1::Transform> staged =
      config_.field().encoding() == v1::FIELD_ENCODING_VELOCITY
          ? client.UploadVelocity(id, {affine, native.geometry, native.values}, options_)
          : client.UploadControlGrid(id, {affine, native.geometry, std::nullopt, native.values}, options_);
  INTRAWARP_RETURN_IF_ERROR(staged.status());
  config->mutable_options()->set_initial_transform(staged->name());
  recovery->start = Recovery::Start::kWhole;
  return staged->name();
}

absl::Status RoutedSession::OpenAt(const std::string& address, Recovery* recovery) {
  INTRAWARP_ASSIGN_OR_RETURN(Client* const client, servers_->At(address));
  v1::NavigateConfig config = config_;
  INTRAWARP_RETURN_IF_ERROR(stage_(*client, address, config));
  INTRAWARP_ASSIGN_OR_RETURN(const std::string start, SetStart(*client, &config, recovery));
  std::unique_ptr<NavigateStream> stream = client->Navigate(config, options_);
  const absl::Status opened = stream->WaitUntilOpened();
  // An open session holds its start itself.
  if (!start.empty()) (void)client->DeleteTransform(start, options_);
  INTRAWARP_RETURN_IF_ERROR(opened);
  stream_ = std::move(stream);
  address_ = address;
  return absl::OkStatus();
}

absl::StatusOr<bool> RoutedSession::TryServers(Recovery* recovery) {
  const std::vector<std::string> order = servers_->Order({route_.key, address_.empty() ? route_.first : address_});
  for (const std::string& address : order) {
    if (IsCancelled()) return absl::CancelledError("cancelled");
    if (!servers_->IsWell(address, options_)) continue;
    *recovery = {};
    if (address == address_) {
      last_ = stream_->Resume();
      recovery->resumed = last_.ok();
      if (last_.ok()) return true;
      if (IsBroken(last_)) continue;
      // FAILED_PRECONDITION: its window is over, the server was started anew, or a proxy asked another server.
      if (!absl::IsFailedPrecondition(last_)) return last_;
    }
    last_ = OpenAt(address, recovery);
    if (last_.ok()) return true;
    if (!IsServersFault(last_) && !IsLeftBehind(last_)) return last_;
  }
  return false;
}

absl::StatusOr<RoutedSession::Recovery> RoutedSession::Recover() {
  if (!is_broken()) return absl::FailedPreconditionError("the session's stream has not broken");
  if (IsCancelled()) return last_;
  const auto give_up = std::chrono::steady_clock::now() + servers_->routing().recovery_timeout;
  Recovery recovery;
  while (true) {
    INTRAWARP_ASSIGN_OR_RETURN(const bool done, TryServers(&recovery));
    if (done) return recovery;
    if (std::chrono::steady_clock::now() >= give_up) return last_;
    if (options_.cancellation == nullptr) {
      std::this_thread::sleep_for(kPause);
    } else if (options_.cancellation->WaitFor(kPause)) {
      return absl::CancelledError("cancelled");
    }
    servers_->Refresh();
  }
}

}  // namespace intrawarp::client
