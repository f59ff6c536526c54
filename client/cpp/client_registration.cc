// SPDX-License-Identifier: Apache-2.0
// The registration calls of Client.
#include <optional>

#include "client/cpp/client_impl.h"
#include "client/cpp/navigate_stream_impl.h"
#include "engine/base/field_error.h"

namespace intrawarp::client {

absl::StatusOr<v1::RegisterResult> Client::Register(const v1::RegisterRequest& request,
                                                    const ProgressCallback& on_progress, const GridSink& field,
                                                    const CallOptions& options) {
  const bool wants_field = request.has_field();
  if (wants_field && !field) {
    return FieldError(absl::StatusCode::kInvalidArgument, "field", "no place for the field that is asked for");
  }
  Call call(options);
  std::optional<v1::RegisterResult> result;
  GridReceiver receiver(field, 3, impl_->options.max_answer_bytes);
  const auto accept = [&](v1::RegisterResponse& response) -> absl::Status {
    if (result.has_value()) return absl::InternalError("the server sent more after the result");
    switch (response.payload_case()) {
      case v1::RegisterResponse::kProgress:
        if (on_progress) on_progress(response.progress());
        return absl::OkStatus();
      case v1::RegisterResponse::kField:
        if (!wants_field) return absl::InternalError("the server sent a field that was not asked for");
        return receiver.Begin(response.field());
      case v1::RegisterResponse::kResult:
        result = std::move(*response.mutable_result());
        return absl::OkStatus();
      default:
        return absl::OkStatus();  // a kind of message of a later version
    }
  };
  INTRAWARP_RETURN_IF_ERROR(ReadChunks<v1::RegisterResponse>(
      call, *impl_->bulk(), "/intrawarp.v1.RegistrationService/Register", request, receiver, accept));
  if (!result.has_value()) return absl::InternalError("the server ended without a result");
  if (wants_field) INTRAWARP_RETURN_IF_ERROR(receiver.Finish());
  return *std::move(result);
}

std::unique_ptr<NavigateStream> Client::Navigate(const v1::NavigateConfig& config, const CallOptions& options) {
  auto impl = std::make_unique<NavigateStream::Impl>(options, impl_->options, config,
                                                     [client = impl_.get()] { return client->bulk(); });
  return std::unique_ptr<NavigateStream>(new NavigateStream(std::move(impl)));
}

}  // namespace intrawarp::client
