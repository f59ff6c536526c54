// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/navigate_stream.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/grid_receiver.h"
#include "client/cpp/navigate_stream_impl.h"
#include "client/cpp/rpc_status.h"
#include "engine/base/status_macros.h"
#include "google/rpc/error_details.pb.h"
#include "intrawarp/v1/error.pb.h"
#include "io/file/crc32c.h"
#include "wire/convert.h"

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
  if (frame.landmarks) *header.mutable_landmarks() = *frame.landmarks;
  header.set_mask(frame.mask);
  header.set_weight(frame.weight);
  if (frame.deadline) *header.mutable_deadline() = DurationToProto(*frame.deadline);
  return header;
}

// The fields of one answer: a coarse one, perhaps, then the final one.
class AnswerFields {
 public:
  AnswerFields(const v1::NavigateConfig& config, const GridSink& field, const CoarseFieldSink& coarse,
               const FieldView& view, int64_t max_bytes)
      : takes_field_(config.has_field() && (field || view)),
        takes_coarse_(config.coarse_field() && coarse.field),
        view_(view),
        final_(field, 3, max_bytes),
        coarse_(coarse.field, 3, max_bytes),
        received_(coarse.received) {}

  bool begun() const { return viewed_ || final_.begun() || coarse_.begun(); }
  bool viewed() const { return viewed_; }

  // INTERNAL when the server sends what was not asked for, or contradicts itself.
  absl::Status Begin(const v1::FrameField& header) {
    if (!(header.coarse() ? takes_coarse_ : takes_field_)) {
      return absl::InternalError("the server sent a field that was not asked for");
    }
    if (begun() && header.frame_number() != number_) return OfAnotherFrame(header.frame_number());
    number_ = header.frame_number();
    if (header.coarse()) {
      if (viewed_ || final_.begun()) return absl::InternalError("the server sent a coarse field after the final one");
      coarse_header_ = header;
      return coarse_.Begin(header.field());
    }
    if (coarse_.begun()) INTRAWARP_RETURN_IF_ERROR(coarse_.Finish());
    if (!header.has_slot() || !view_) return final_.Begin(header.field());
    if (std::exchange(viewed_, true)) return absl::InternalError("the server sent a second header");
    return CheckFieldHeader(header.field());
  }

  // A field in a slot, after Begin.
  absl::Status TakeWhole(const v1::FrameField& header, absl::Span<const char> bytes) {
    if (!header.coarse()) return viewed_ ? view_(header, bytes) : final_.TakeWhole(bytes);
    return coarse_.TakeWhole(bytes);
  }
  // Once the slot's bytes are known to be good.
  absl::Status EndWhole() {
    const bool is_coarse = coarse_.begun() && !final_.begun() && !viewed_;
    return is_coarse && received_ ? received_(coarse_header_) : absl::OkStatus();
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
    return viewed_ || final_.begun();
  }

 private:
  absl::Status OfAnotherFrame(int64_t number) const {
    return absl::InternalError(absl::StrCat("a field of frame ", number_, " came with the answer of frame ", number));
  }

  const bool takes_field_;
  const bool takes_coarse_;
  const FieldView& view_;
  bool viewed_ = false;
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
  impl_->shared.reset();
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
  INTRAWARP_RETURN_IF_ERROR(WaitUntilOpened());
  if (impl_->shared_options) (void)ShareMemory(*impl_->shared_options);
  return impl_->end.value_or(absl::OkStatus());
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

absl::StatusOr<v1::SharedMemoryOffer> NavigateStream::ReadOffer() {
  grpc::ByteBuffer message;
  if (!impl_->Read(&message)) {
    INTRAWARP_RETURN_IF_ERROR(Finish());
    return StreamEnded();
  }
  v1::NavigateResponse response;
  if (absl::Status parsed = ParseRaw(message, &response); !parsed.ok()) return Fail(parsed);
  if (!response.has_shared_memory()) return Fail(absl::InternalError("the server did not answer about shared memory"));
  INTRAWARP_RETURN_IF_ERROR(FromRpcStatus(response.shared_memory().status()));
  return std::move(*response.mutable_shared_memory());
}

absl::Status NavigateStream::ShareMemory(const SharedMemoryOptions& options) {
  if (impl_->end.has_value()) return *impl_->end;
  if (impl_->shared != nullptr) return absl::FailedPreconditionError("the stream shares memory already");
  if (!impl_->opened) INTRAWARP_RETURN_IF_ERROR(WaitUntilOpened());
  impl_->shared_options = options;
  return impl_->memory_status = Share(options);
}

absl::Status NavigateStream::Share(const SharedMemoryOptions& options) {
  v1::NavigateRequest request;
  v1::SharedMemoryRequest& asked = *request.mutable_shared_memory();
  if (options.frame_slots) asked.set_frame_slots(*options.frame_slots);
  if (options.field_slots) asked.set_field_slots(*options.field_slots);
  if (options.frame_slot_bytes) asked.set_frame_slot_bytes(*options.frame_slot_bytes);
  if (options.field_slot_bytes) asked.set_field_slot_bytes(*options.field_slot_bytes);
  (void)impl_->call->Write(SerializeRaw(request));
  INTRAWARP_ASSIGN_OR_RETURN(const v1::SharedMemoryOffer offer, ReadOffer());
  INTRAWARP_ASSIGN_OR_RETURN(std::unique_ptr<SharedSlots> slots, SharedSlots::Attach(offer));
  v1::NavigateRequest attach;
  attach.mutable_shared_memory_attach()->set_nonce(slots->nonce());
  if (!impl_->call->Write(SerializeRaw(attach))) return StreamEnded();
  impl_->shared = std::move(slots);
  return absl::OkStatus();
}

const absl::Status& NavigateStream::memory_status() const { return impl_->memory_status; }

Transfers NavigateStream::transfers() const {
  return {impl_->frames_shared, impl_->frames_in_chunks, impl_->fields_shared, impl_->fields_in_chunks};
}

bool NavigateStream::WaitForSlot() {
  while (!impl_->shared->IsFrameFree()) {
    if (impl_->call->is_ending()) return false;
    impl_->shared->WaitForFrame();
  }
  return true;
}

absl::Span<char> NavigateStream::FrameSpace(int64_t bytes) {
  if (impl_->shared == nullptr || bytes < 0 || !impl_->shared->Fits(bytes) || !WaitForSlot()) return {};
  return absl::MakeSpan(impl_->shared->frame(), static_cast<size_t>(bytes));
}

bool NavigateStream::PutIntoSlot(const Frame& frame, v1::FrameHeader& header) {
  if (!WaitForSlot()) return false;
  const bool checks = impl_->shared_options->checksum;
  char* const slot = impl_->shared->frame();
  uint32_t checksum = 0;
  if (frame.bytes.data() != slot) {
    if (checks) checksum = io::CopyWithCrc32c(slot, frame.bytes.data(), frame.bytes.size());
    if (!checks) std::memcpy(slot, frame.bytes.data(), frame.bytes.size());
  } else if (checks) {
    checksum = io::Crc32c(slot, frame.bytes.size());
  }
  *header.mutable_slot() = impl_->shared->SendFrame();
  if (checks) header.mutable_slot()->set_crc32c(checksum);
  return true;
}

absl::Status NavigateStream::Send(const Frame& frame) {
  v1::NavigateRequest request;
  *request.mutable_frame() = MakeHeader(frame);
  if (impl_->shared != nullptr && impl_->shared->Fits(static_cast<int64_t>(frame.bytes.size()))) {
    if (!PutIntoSlot(frame, *request.mutable_frame())) return StreamEnded();
    ++impl_->frames_shared;
    return impl_->call->Write(SerializeRaw(request)) ? absl::OkStatus() : StreamEnded();
  }
  ++impl_->frames_in_chunks;
  if (!impl_->call->Write(SerializeRaw(request))) return StreamEnded();
  const bool open =
      ForEachChunk({frame.bytes}, 0, impl_->options.chunk_bytes, [&](int64_t offset, absl::string_view data) {
        return impl_->call->Write(
            wire::EncodeChunk(v1::NavigateRequest::kChunkFieldNumber, offset, data.data(), data.size(), frame.owner));
      });
  return open ? absl::OkStatus() : StreamEnded();
}

absl::Status NavigateStream::CloseSend() { return impl_->call->WritesDone() ? absl::OkStatus() : StreamEnded(); }

absl::StatusOr<std::optional<FrameAnswer>> NavigateStream::Receive(const GridSink& field, const CoarseFieldSink& coarse,
                                                                   const FieldView& view) {
  if (!impl_->end.has_value()) {
    FrameAnswer answer;
    const absl::StatusOr<bool> read = ReadAnswer(field, coarse, view, &answer);
    if (read.ok() && *read) return answer;
    if (!read.ok()) return Fail(read.status());
    (void)Finish();
  }
  INTRAWARP_RETURN_IF_ERROR(*impl_->end);
  return std::nullopt;
}

absl::StatusOr<bool> NavigateStream::ReadAnswer(const GridSink& field, const CoarseFieldSink& coarse,
                                                const FieldView& view, FrameAnswer* answer) {
  AnswerFields fields(impl_->config, field, coarse, view, impl_->options.max_answer_bytes);
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
      const v1::FrameField& header = response.field();
      INTRAWARP_RETURN_IF_ERROR(fields.Begin(header));
      answer->was_shared = header.has_slot();
      ++(header.has_slot() ? impl_->fields_shared : impl_->fields_in_chunks);
      if (!header.has_slot()) continue;
      if (impl_->shared == nullptr) return absl::InternalError("the server named a slot, and no memory is shared");
      INTRAWARP_ASSIGN_OR_RETURN(const absl::Span<const char> bytes, impl_->shared->Field(header));
      const absl::Status taken = fields.TakeWhole(header, bytes);
      INTRAWARP_RETURN_IF_ERROR(impl_->shared->EndField(header.slot()));
      INTRAWARP_RETURN_IF_ERROR(taken);
      INTRAWARP_RETURN_IF_ERROR(fields.EndWhole());
    } else if (response.has_chunk()) {
      INTRAWARP_RETURN_IF_ERROR(fields.Append(wire::ReceivedChunk(std::move(*response.mutable_chunk()))));
    } else if (response.has_result()) {
      answer->result = std::move(*response.mutable_result());
      INTRAWARP_ASSIGN_OR_RETURN(answer->has_field, fields.End(answer->result));
      answer->was_viewed = fields.viewed();
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
