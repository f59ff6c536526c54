// SPDX-License-Identifier: Apache-2.0
// Sequences of a Navigate client's messages, on two streams, with waits, breaks and closed sessions between them
// (navigate_input.h), against sessions, pipeline, ledger and scheduler on virtual time and a CPU device; without gRPC.
// The frames are real registrations of a few voxels.
//
// These hold, whatever comes: an error has a code that a client may see; frames are answered once, in the order of
// their headers, and whole, before a stream ends well; no resource is used beyond its capacity; and when all have gone,
// nothing is held: no byte, no buffer, no place, no job.
#include <oneapi/tbb/global_control.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "server/rpc/chunk_codec.h"
#include "server/session/frame_pipeline.h"
#include "server/session/navigate_session.h"
#include "server/session/session_store.h"
#include "server/session/warm_up.h"
#include "server/status/errors.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/navigate_input.h"
#include "tests/fuzz/parts.h"
#include "tests/server/simulation/frames.h"
#include "tests/server/simulation/world.h"

namespace {

using intrawarp::fuzz::NavigateStep;
using intrawarp::fuzz::Require;
using intrawarp::fuzz::Spoil;
using namespace intrawarp::server;  // NOLINT(google-build-using-namespace)
namespace v1 = intrawarp::v1;

constexpr int kMostIterations = 2;

// Codes of the contract (error.proto); INTERNAL and UNKNOWN are bugs.
void RequireCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDataLoss:  // a chunk with another checksum
    case absl::StatusCode::kOk:
      return;
    default:
      Require(false, "the code of an error");
  }
}

// The subject is what a client can break, not how long it can compute.
void MakeShort(v1::NavigateConfig& config) {
  for (v1::Stage& stage : *config.mutable_options()->mutable_stages()) {
    const auto clamp = [](auto& s) { s.set_iterations(std::min(s.iterations(), kMostIterations)); };
    if (stage.has_rigid() && stage.rigid().has_iterations()) clamp(*stage.mutable_rigid());
    if (stage.has_affine() && stage.affine().has_iterations()) clamp(*stage.mutable_affine());
    if (stage.has_ffd() && stage.ffd().has_iterations()) clamp(*stage.mutable_ffd());
    if (stage.has_log_demons() && stage.log_demons().has_iterations()) clamp(*stage.mutable_log_demons());
  }
}

// The part of NavigateStream, and what it must see. One thread at a time (VirtualTime).
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(World& world) : world_(world) {}

  bool finished() const { return finished_; }
  const std::shared_ptr<NavigateSession>& session() const { return session_; }

  void Send(const std::string& bytes) {
    connection_.push_back({bytes, false});
    Continue();
  }
  void EndOfMessages() {
    connection_.push_back({"", true});
    Continue();
  }
  void Break() {
    if (finished_) return;
    if (carrier_ != 0) session_->Detach(carrier_);
    Finish(absl::CancelledError("the client is gone"));
  }

 private:
  struct Message {
    std::string bytes;
    bool is_end = false;
  };

  void Continue() {
    if (std::exchange(is_pumping_, true)) return;
    while (!finished_ && !opening_ && !ended_ && !connection_.empty() &&
           (pipeline_ == nullptr || pipeline_->MayRead())) {
      const Message message = std::move(connection_.front());
      connection_.pop_front();
      const absl::Status status = message.is_end ? EndOfFrames() : Receive(message.bytes);
      if (!status.ok()) End(status);
    }
    TakeEvents();
    is_pumping_ = false;
    if (!finished_ && !opening_ && pipeline_ != nullptr && pipeline_->IsDone()) Conclude();
  }

  absl::Status EndOfFrames() {
    ended_ = true;
    if (pipeline_ == nullptr) return InvalidField("config", "is missing");
    pipeline_->EndOfFrames();
    return absl::OkStatus();
  }

  absl::Status Receive(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    absl::StatusOr<ReceivedRequest<v1::NavigateRequest>> request =
        ReceiveRequest<v1::NavigateRequest>(grpc::ByteBuffer(&slice, 1));
    INTRAWARP_RETURN_IF_ERROR(request.status());
    if (!request->chunk && request->message.has_config()) return ReceiveConfig(*request->message.mutable_config());
    if (pipeline_ == nullptr) return InvalidField("config", "must be the first message");
    if (request->chunk) return pipeline_->Append(*request->chunk);
    if (request->message.has_frame()) return ReceiveHeader(request->message.frame());
    return InvalidField("payload", "must be config, frame or chunk");
  }

  absl::Status ReceiveConfig(v1::NavigateConfig& config) {
    if (session_ != nullptr) return InvalidField("config", "is sent twice");
    MakeShort(config);
    INTRAWARP_ASSIGN_OR_RETURN(session_, world_.sessions.Open(world_.context, config, Anybody()));
    if (config.resume()) return Carry(session_->Resume(EndedFn()));
    opening_ = true;
    WarmUp(session_, [self = shared_from_this()](const absl::StatusOr<bool>& warm) {
      self->world_.time.After(VirtualTime::Duration(0), [self, warm] { self->OnWarm(warm); });
    });
    world_.AwaitWorkers();
    return absl::OkStatus();
  }

  absl::Status ReceiveHeader(const v1::FrameHeader& header) {
    pipeline_->BeginFrame(header, world_.time.now());
    accepted_.push_back(header.frame_number());
    return absl::OkStatus();
  }

  void OnWarm(const absl::StatusOr<bool>& warm) {
    if (finished_) return;
    opening_ = false;
    const absl::Status status = warm.ok() ? Carry(session_->Open(*warm, EndedFn())) : warm.status();
    if (!status.ok()) return End(status);
    Continue();
  }

  absl::Status Carry(const absl::StatusOr<int64_t>& carrier) {
    INTRAWARP_ASSIGN_OR_RETURN(carrier_, carrier);
    pipeline_ = std::make_shared<FramePipeline>(session_->context(), session_, carrier_, std::nullopt,
                                                [weak = weak_from_this()] {
                                                  if (const auto self = weak.lock()) self->OnChanged();
                                                });
    (void)session_->Describe();
    return absl::OkStatus();
  }

  NavigateSession::EndedFn EndedFn() {
    return [weak = weak_from_this()](const absl::Status& why) {
      if (const auto self = weak.lock()) self->Finish(why);
    };
  }

  void OnChanged() {
    world_.time.After(VirtualTime::Duration(0), [self = shared_from_this()] {
      if (!self->finished_) self->Continue();
    });
  }

  void TakeEvents() {
    if (pipeline_ == nullptr || finished_) return;
    while (std::optional<FramePipeline::Event> event = pipeline_->Next()) {
      if (event->answered == nullptr) {
        Require(answered_ < accepted_.size() && event->field.frame_number() == accepted_[answered_],
                "a field is of the next frame to be answered");
        continue;
      }
      const v1::FrameResult result = pipeline_->MakeResult(*event->answered, std::chrono::nanoseconds(0)).result();
      Require(answered_ < accepted_.size() && result.frame_number() == accepted_[answered_],
              "frames are answered once, in their order");
      ++answered_;
      RequireCode(static_cast<absl::StatusCode>(result.status().code()));
      Require((result.status().code() == 0) == result.has_report(), "a report, or an error");
    }
    const bool is_bounded = accepted_.size() - answered_ <= FramePipeline::kMaxUnanswered + 1;
    Require(is_bounded, "frames without an answer are bounded");
  }

  void Conclude() {
    Require(answered_ == accepted_.size(), "a stream that ends well has answered every frame");
    End(absl::OkStatus());
  }

  void End(const absl::Status& status) {
    if (finished_) return;
    if (carrier_ != 0) session_->CloseBy(carrier_);
    Finish(status);
  }

  void Finish(const absl::Status& status) {
    if (std::exchange(finished_, true)) return;
    RequireCode(status.code());
    connection_.clear();
    if (pipeline_ != nullptr) {
      pipeline_->Stop();
      Require(!pipeline_->Next().has_value() && !pipeline_->MayRead(), "nothing comes after the end");
    }
    if (carrier_ != 0) {
      session_->Detach(carrier_);
    } else if (opening_) {
      session_->Close(absl::CancelledError("the stream broke while the session was opening"));
    }
  }

  World& world_;
  std::deque<Message> connection_;
  std::shared_ptr<NavigateSession> session_;
  int64_t carrier_ = 0;
  std::shared_ptr<FramePipeline> pipeline_;
  bool opening_ = false;
  bool ended_ = false;
  bool finished_ = false;
  bool is_pumping_ = false;
  std::vector<int64_t> accepted_;
  size_t answered_ = 0;
};

WorldOptions SmallWorld() {
  WorldOptions options;
  options.limits.max_sessions = 2;
  options.limits.max_pending_frames = 4;
  options.ledger.lanes = options.scheduling.lanes;
  options.ledger.at_once = options.scheduling.at_once;
  options.ledger.capacity = {.resident_bytes = 1 << 18,
                             .workspace_bytes = 1 << 22,
                             .pinned_bytes = 1 << 18,
                             .uploading_bytes = 1 << 18,
                             .transforms = 16 + int64_t{kSessionTransforms} * options.limits.max_sessions,
                             .streams = 8,
                             .uploads = 4,
                             .sessions = options.limits.max_sessions};
  options.ledger.session_reserve.pinned_bytes = options.ledger.capacity.pinned_bytes / 2;
  options.ledger.session_reserve.transforms = int64_t{kSessionTransforms} * options.limits.max_sessions;
  options.ledger.session_reserve.sessions = options.limits.max_sessions;
  return options;
}

class Run {
 public:
  explicit Run(Stage& stage) : world_(stage, SmallWorld(), /*seed=*/1, /*trace=*/false, tally_) {
    for (auto& stream : streams_) stream = std::make_shared<Stream>(world_);
    world_.has_large_frames = true;  // what Open claims is not counted here
  }

  void Do(const std::string& step) {
    if (step.empty()) return;
    const auto first = static_cast<uint8_t>(step[0]);
    std::shared_ptr<Stream>& stream = streams_[(first & intrawarp::fuzz::kSecondStream) != 0 ? 1 : 0];
    if (stream->finished()) stream = std::make_shared<Stream>(world_);
    const auto at = [&](size_t i) { return i < step.size() ? static_cast<uint8_t>(step[i]) : uint8_t{0}; };
    switch (static_cast<NavigateStep>((first & 0x7f) % static_cast<int>(NavigateStep::kSteps))) {
      case NavigateStep::kMessage:
        stream->Send(step.substr(1));
        break;
      case NavigateStep::kFrame:
        SendFrame(*stream, at(1), at(2), at(3), at(4));
        break;
      case NavigateStep::kEnd:
        stream->EndOfMessages();
        break;
      case NavigateStep::kBreak:
        stream->Break();
        break;
      case NavigateStep::kWait:
        Wait(std::chrono::milliseconds(at(1) | at(2) << 8));
        break;
      case NavigateStep::kClose:
        Close(*stream, at(1) == 1);
        break;
      case NavigateStep::kSteps:
        break;
    }
    Check();
  }

  // Everybody goes, and time passes until nothing happens any more.
  void End() {
    for (const auto& stream : streams_) stream->EndOfMessages();
    Wait(std::chrono::seconds(1));
    for (const auto& stream : streams_) stream->Break();
    for (int day = 0; day < 3 && world_.sessions.size() > 0; ++day) Wait(std::chrono::hours(24));
    world_.sessions.CloseAll(absl::CancelledError("the end"));
    while (world_.time.Step()) {
    }
    world_.CheckNothingIsHeld();
    RequireRules();
  }

 private:
  void SendFrame(Stream& stream, uint8_t step, uint8_t side, uint8_t chunks, uint8_t spoil) {
    number_ += step % 8;
    side = static_cast<uint8_t>(side == 0 ? kFrameSide : 1 + side % 9);
    v1::NavigateRequest request;
    *request.mutable_frame() = FrameHeaderFor(number_, side);
    stream.Send(request.SerializeAsString());
    std::vector<v1::Chunk> parts = FrameChunks(number_, side, 1 + chunks % 3);
    switch (static_cast<Spoil>(spoil % static_cast<int>(Spoil::kSpoils))) {
      case Spoil::kChecksum:
        parts.back().set_crc32c(parts.back().crc32c() ^ 1);
        break;
      case Spoil::kOffset:
        parts.back().set_offset(parts.back().offset() + 1);
        break;
      case Spoil::kMissing:
        parts.pop_back();
        break;
      case Spoil::kTwice:
        parts.push_back(parts.back());
        break;
      default:
        break;
    }
    for (const v1::Chunk& part : parts) {
      *request.mutable_chunk() = part;
      stream.Send(request.SerializeAsString());
    }
  }

  void Close(Stream& stream, bool all) {
    const absl::Status why = absl::CancelledError("closed");
    if (all) return world_.sessions.CloseAll(why);
    if (stream.session() != nullptr) stream.session()->Close(why);
  }

  void Wait(std::chrono::nanoseconds time) {
    bool is_over = false;
    world_.time.After(time, [&] { is_over = true; });
    while (!is_over && world_.time.Step()) {
    }
    world_.sessions.Expire(world_.time.now());
  }

  void Check() {
    world_.CheckLedger();
    RequireRules();
  }
  void RequireRules() { Require(world_.rules.broken().empty(), world_.rules.broken().c_str()); }

  Tally tally_;
  World world_;
  std::shared_ptr<Stream> streams_[2];
  int64_t number_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Frames are too small for several cores.
  static const oneapi::tbb::global_control one_core(oneapi::tbb::global_control::max_allowed_parallelism, 1);
  static const auto stage = MakeStage();
  Run run(*stage);
  for (const std::string& step : intrawarp::fuzz::SplitParts(data, size, intrawarp::fuzz::kMostSteps)) run.Do(step);
  run.End();
  return 0;
}
