// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/navigate_stream.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cpp/navigate_stream_impl.h"
#include "google/rpc/error_details.pb.h"
#include "intrawarp/v1/error.pb.h"
#include "proto/convert.h"

namespace intrawarp::client {
namespace {

constexpr char kNavigateMethod[] = "/intrawarp.v1.RegistrationService/Navigate";

absl::Status StreamEnded() { return absl::UnavailableError("the stream has ended"); }

v1::FrameHeader MakeHeader(const Frame& frame) {
  v1::FrameHeader header;
  header.set_frame_number(frame.number);
  *header.mutable_geometry() = GeometryToProto(frame.geometry);
  header.set_pixel_type(PixelTypeToProto(frame.pixel_type));
  header.set_total_bytes(static_cast<int64_t>(frame.bytes.size()));
  if (frame.acquisition_time) *header.mutable_acquisition_time() = TimestampToProto(*frame.acquisition_time);
  if (frame.rescale_slope != 0 || frame.rescale_intercept != 0) {
    *header.mutable_rescale() = RescaleToProto({frame.rescale_slope, frame.rescale_intercept});
  }
  if (frame.deadline) *header.mutable_deadline() = DurationToProto(*frame.deadline);
  return header;
}

}  // namespace

bool FrameAnswer::is_late() const {
  return std::any_of(result.report().reasons().begin(), result.report().reasons().end(),
                     [](const v1::VerdictReason& reason) { return reason.cause() == v1::VERDICT_CAUSE_LATE; });
}

bool FrameAnswer::is_superseded() const {
  return std::any_of(result.status().details().begin(), result.status().details().end(), [](const auto& detail) {
    google::rpc::ErrorInfo info;
    return detail.UnpackTo(&info) && info.reason() == v1::ErrorReason_Name(v1::FRAME_SUPERSEDED);
  });
}

NavigateStream::NavigateStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) { Open(impl_->config); }

NavigateStream::~NavigateStream() = default;

void NavigateStream::Open(const v1::NavigateConfig& config) {
  auto call = std::make_unique<RawCall>(impl_->channel(), kNavigateMethod, impl_->call_options);
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->call.swap(call);
  }
  impl_->end.reset();
  v1::NavigateRequest request;
  *request.mutable_config() = config;
  // Receive tells the cause of a false answer.
  if (impl_->call->Write(SerializeRaw(request))) impl_->call->Flush();
}

absl::Status NavigateStream::Resume() {
  if (!impl_->opened) return absl::FailedPreconditionError("there is no session to be resumed");
  (void)Finish();
  v1::NavigateConfig config = impl_->config;
  config.set_session_id(impl_->opened->session().config().session_id());
  config.set_resume(true);
  Open(config);
  return WaitUntilOpened();
}

absl::Status NavigateStream::WaitUntilOpened() {
  grpc::ByteBuffer message;
  if (impl_->end.has_value()) return *impl_->end;
  if (!impl_->call->Read(&message)) {
    INTRAWARP_RETURN_IF_ERROR(Finish());
    return absl::UnavailableError("the stream ended before its session was opened");
  }
  v1::NavigateResponse response;
  if (absl::Status parsed = ParseRaw(message, &response); !parsed.ok()) return Fail(parsed);
  if (!response.has_opened()) return Fail(absl::InternalError("the server did not open the session first"));
  impl_->opened = std::move(*response.mutable_opened());
  return absl::OkStatus();
}

const std::optional<v1::SessionOpened>& NavigateStream::opened() const { return impl_->opened; }

const std::optional<v1::Session>& NavigateStream::closed() const { return impl_->closed; }

absl::Status NavigateStream::Fail(const absl::Status& status) {
  impl_->call->Abandon();
  impl_->end = status;
  return status;
}

absl::Status NavigateStream::Send(const Frame& frame) {
  v1::NavigateRequest request;
  *request.mutable_frame() = MakeHeader(frame);
  if (!impl_->call->Write(SerializeRaw(request))) return StreamEnded();
  const bool open =
      ForEachChunk({frame.bytes}, 0, impl_->options.chunk_bytes, [&](int64_t offset, absl::string_view data) {
        return impl_->call->Write(wire::EncodeChunk(v1::NavigateRequest::kChunkFieldNumber, offset, data.data(),
                                                    data.size(), /*owner=*/nullptr));
      });
  return open ? absl::OkStatus() : StreamEnded();
}

absl::Status NavigateStream::CloseSend() { return impl_->call->WritesDone() ? absl::OkStatus() : StreamEnded(); }

absl::StatusOr<std::optional<FrameAnswer>> NavigateStream::Receive(const GridSink& field) {
  if (!impl_->end.has_value()) {
    FrameAnswer answer;
    const absl::StatusOr<bool> read = ReadAnswer(field, &answer);
    if (read.ok() && *read) return answer;
    if (!read.ok()) return Fail(read.status());
    (void)Finish();
  }
  INTRAWARP_RETURN_IF_ERROR(*impl_->end);
  return std::nullopt;
}

absl::StatusOr<bool> NavigateStream::ReadAnswer(const GridSink& field, FrameAnswer* answer) {
  GridReceiver receiver(field, 3, impl_->options.max_answer_bytes);
  int64_t field_frame = 0;
  grpc::ByteBuffer message;
  while (impl_->call->Read(&message)) {
    const auto chunk = wire::DecodeChunk(message, v1::NavigateResponse::kChunkFieldNumber);
    if (chunk) {
      INTRAWARP_RETURN_IF_ERROR(receiver.Append(*chunk));
      continue;
    }
    v1::NavigateResponse response;
    INTRAWARP_RETURN_IF_ERROR(ParseRaw(message, &response));
    if (response.has_field()) {
      if (!impl_->config.has_field() || !field)
        return absl::InternalError("the server sent a field that was not asked for");
      field_frame = response.field().frame_number();
      INTRAWARP_RETURN_IF_ERROR(receiver.Begin(response.field().field()));
    } else if (response.has_chunk()) {
      INTRAWARP_RETURN_IF_ERROR(receiver.Append(wire::ReceivedChunk(std::move(*response.mutable_chunk()))));
    } else if (response.has_result()) {
      answer->result = std::move(*response.mutable_result());
      answer->has_field = receiver.begun() && answer->result.status().code() == 0;
      if (!answer->has_field) return true;
      if (field_frame != answer->result.frame_number()) {
        return absl::InternalError(absl::StrCat("the field of frame ", field_frame, " came with the result of frame ",
                                                answer->result.frame_number()));
      }
      INTRAWARP_RETURN_IF_ERROR(receiver.Finish());
      return true;
    } else if (response.has_opened()) {
      impl_->opened = std::move(*response.mutable_opened());
    } else if (response.has_closed()) {
      impl_->closed = std::move(*response.mutable_closed());
    }
  }
  if (!receiver.begun()) return false;
  INTRAWARP_RETURN_IF_ERROR(Finish());
  return absl::DataLossError("the stream ended within a field");
}

absl::Status NavigateStream::Finish() {
  if (!impl_->end.has_value()) impl_->end = impl_->call->Finish();
  return *impl_->end;
}

void NavigateStream::Cancel() {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->call->Cancel();
}

}  // namespace intrawarp::client
