// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/navigate_stream.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/grid_receiver.h"
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

// The fields of one answer: a coarse one, perhaps, then the final one.
class AnswerFields {
 public:
  AnswerFields(const v1::NavigateConfig& config, const GridSink& field, const CoarseFieldSink& coarse,
               int64_t max_bytes)
      : takes_field_(config.has_field() && field),
        takes_coarse_(config.coarse_field() && coarse.field),
        final_(field, 3, max_bytes),
        coarse_(coarse.field, 3, max_bytes),
        received_(coarse.received) {}

  bool begun() const { return final_.begun() || coarse_.begun(); }

  // INTERNAL when the server sends what was not asked for, or contradicts itself.
  absl::Status Begin(const v1::FrameField& header) {
    if (!(header.coarse() ? takes_coarse_ : takes_field_)) {
      return absl::InternalError("the server sent a field that was not asked for");
    }
    if (begun() && header.frame_number() != number_) return OfAnotherFrame(header.frame_number());
    number_ = header.frame_number();
    if (header.coarse()) {
      if (final_.begun()) return absl::InternalError("the server sent a coarse field after the final one");
      coarse_header_ = header;
      return coarse_.Begin(header.field());
    }
    if (coarse_.begun()) INTRAWARP_RETURN_IF_ERROR(coarse_.Finish());
    return final_.Begin(header.field());
  }

  absl::Status Append(const wire::ReceivedChunk& chunk) {
    if (final_.begun() || !coarse_.begun()) return final_.Append(chunk);
    INTRAWARP_RETURN_IF_ERROR(coarse_.Append(chunk));
    const bool is_whole = coarse_.Finish().ok();
    return is_whole && received_ ? received_(coarse_header_) : absl::OkStatus();
  }

  // Whether the answer has a field. Those of a frame that failed may be in pieces.
  absl::StatusOr<bool> End(const v1::FrameResult& result) const {
    if (!begun() || result.status().code() != 0) return false;
    if (number_ != result.frame_number()) return OfAnotherFrame(result.frame_number());
    if (coarse_.begun()) INTRAWARP_RETURN_IF_ERROR(coarse_.Finish());
    if (final_.begun()) INTRAWARP_RETURN_IF_ERROR(final_.Finish());
    return final_.begun();
  }

 private:
  absl::Status OfAnotherFrame(int64_t number) const {
    return absl::InternalError(absl::StrCat("a field of frame ", number_, " came with the answer of frame ", number));
  }

  const bool takes_field_;
  const bool takes_coarse_;
  GridReceiver final_;
  GridReceiver coarse_;
  const std::function<absl::Status(const v1::FrameField&)> received_;
  v1::FrameField coarse_header_;
  int64_t number_ = 0;
};

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
  impl_->watch.reset();
  const std::shared_ptr<grpc::Channel> channel = impl_->channel();
  auto call = std::make_unique<RawCall>(channel, kNavigateMethod, impl_->call_options);
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->call.swap(call);
  }
  impl_->watch = std::make_unique<StallWatch>(channel, impl_->options.session_stall_timeout,
                                              [call = impl_->call.get()] { call->Abandon(); });
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
  if (!impl_->Read(&message)) {
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

absl::StatusOr<std::optional<FrameAnswer>> NavigateStream::Receive(const GridSink& field,
                                                                   const CoarseFieldSink& coarse) {
  if (!impl_->end.has_value()) {
    FrameAnswer answer;
    const absl::StatusOr<bool> read = ReadAnswer(field, coarse, &answer);
    if (read.ok() && *read) return answer;
    if (!read.ok()) return Fail(read.status());
    (void)Finish();
  }
  INTRAWARP_RETURN_IF_ERROR(*impl_->end);
  return std::nullopt;
}

absl::StatusOr<bool> NavigateStream::ReadAnswer(const GridSink& field, const CoarseFieldSink& coarse,
                                                FrameAnswer* answer) {
  AnswerFields fields(impl_->config, field, coarse, impl_->options.max_answer_bytes);
  grpc::ByteBuffer message;
  while (impl_->Read(&message)) {
    const auto chunk = wire::DecodeChunk(message, v1::NavigateResponse::kChunkFieldNumber);
    if (chunk) {
      INTRAWARP_RETURN_IF_ERROR(fields.Append(*chunk));
      continue;
    }
    v1::NavigateResponse response;
    INTRAWARP_RETURN_IF_ERROR(ParseRaw(message, &response));
    if (response.has_field()) {
      INTRAWARP_RETURN_IF_ERROR(fields.Begin(response.field()));
    } else if (response.has_chunk()) {
      INTRAWARP_RETURN_IF_ERROR(fields.Append(wire::ReceivedChunk(std::move(*response.mutable_chunk()))));
    } else if (response.has_result()) {
      answer->result = std::move(*response.mutable_result());
      INTRAWARP_ASSIGN_OR_RETURN(answer->has_field, fields.End(answer->result));
      return true;
    } else if (response.has_opened()) {
      impl_->opened = std::move(*response.mutable_opened());
    } else if (response.has_closed()) {
      impl_->closed = std::move(*response.mutable_closed());
    }
  }
  if (!fields.begun()) return false;
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
