// SPDX-License-Identifier: Apache-2.0
#include "tests/server/simulation/simulated_client.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/session/session_store.h"
#include "tests/server/simulation/frames.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

ClientMessage Message(v1::NavigateRequest request) { return {std::move(request)}; }

}  // namespace

SimulatedClient::SimulatedClient(World& world, int index)
    : world_(world),
      id_(absl::StrCat("s", index)),
      is_named_(world.dice.Chance(80)),
      is_careless_(world.dice.Chance(40)),
      is_hasty_(world.dice.Chance(30)),
      period_(world.dice.Microseconds(500, 40000)),
      actions_left_(world.dice.Uniform(1, 25)),
      config_(RandomConfig()) {}

template <typename Stage>
void SimulatedClient::SetShort(Stage& stage) {
  stage.set_levels(1);
  stage.set_iterations(static_cast<int>(world_.dice.Uniform(1, 3)));
}

v1::NavigateConfig SimulatedClient::RandomConfig() {
  Dice& dice = world_.dice;
  v1::NavigateConfig config;
  config.set_fixed(absl::StrCat("volumes/", kResident));
  v1::Stage& stage = *config.mutable_options()->add_stages();
  // The result of the second holds device memory.
  dice.Chance(70) ? SetShort(*stage.mutable_rigid()) : SetShort(*stage.mutable_log_demons());
  if (dice.Chance(50)) config.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  const bool latest_wins = dice.Chance(50);
  if (latest_wins) config.set_overload_policy(v1::OVERLOAD_POLICY_LATEST_WINS);
  if (latest_wins && dice.Chance(50)) config.set_cancel_running(true);
  config.set_max_pending(static_cast<int>(dice.Uniform(latest_wins ? 2 : 1, 4)));
  if (dice.Chance(40)) *config.mutable_frame_deadline() = DurationToProto(dice.Microseconds(2000, 60000));
  if (dice.Chance(50)) config.set_late_frames(v1::LATE_FRAMES_DELIVER);
  if (dice.Chance(70)) *config.mutable_resume_window() = DurationToProto(milliseconds(dice.Uniform(0, 3000)));
  *config.mutable_idle_timeout() = DurationToProto(milliseconds(dice.Uniform(1, 5000)));
  return config;
}

void SimulatedClient::Begin() {
  world_.time.After(world_.dice.Microseconds(0, 50000), [this] {
    Connect(/*resume=*/false);
    Later();
  });
}

void SimulatedClient::Connect(bool resume) {
  if (!resume) {
    seen_ = std::make_shared<SessionSeen>();
    sessions_.push_back(seen_);
    number_ = 0;
    if (is_named_) config_.set_session_id(absl::StrCat(id_, "-", sessions_.size()));
  }
  const bool is_slow = world_.dice.Chance(20);
  const auto reading = is_slow ? world_.dice.Microseconds(5000, 100000) : world_.dice.Microseconds(10, 500);
  stream_ = std::make_shared<SimulatedStream>(world_, seen_, reading);
  streams_.push_back(stream_);
  v1::NavigateRequest request;
  *request.mutable_config() = config_;
  if (resume) request.mutable_config()->set_resume(true);
  // The client sends again what was not answered, or goes on with its next frame.
  if (resume && world_.dice.Chance(50)) number_ = seen_->last_answered;
  stream_->Send(Message(std::move(request)));
}

void SimulatedClient::Later() {
  if (--actions_left_ <= 0) {
    actions_left_ = 0;
    if (world_.dice.Chance(60)) stream_->Send({});
    return;
  }
  const auto wait = world_.dice.Chance(5) ? world_.dice.Microseconds(0, 3000000) : period_;
  world_.time.After(wait, [this] { Act(); });
}

void SimulatedClient::Act() {
  const int64_t what = world_.dice.Uniform(1, 100);
  if (stream_->finished()) {
    Connect(/*resume=*/what <= 80 && is_named_);
  } else if (what <= 4) {
    stream_->Break();
  } else if (what <= 7 && is_named_) {
    Connect(/*resume=*/true);
  } else if (what <= 8) {
    Close();
  } else if (what <= 11) {
    Flood();
  } else {
    SendFrame();
  }
  Later();
}

void SimulatedClient::SendFrame() {
  const int side = kFrameSide + (is_careless_ && world_.dice.Chance(5) ? 2 : 0);
  const bool goes_back = is_careless_ && world_.dice.Chance(1);
  number_ = goes_back ? std::max<int64_t>(1, number_ - 1) : number_ + world_.dice.Uniform(1, 2);
  ClientMessage message;
  message.is_expected = side == kFrameSide;
  message.request.emplace();
  *message.request->mutable_frame() = FrameHeaderFor(number_, side);
  if (is_careless_) SpoilHeader(*message.request->mutable_frame(), message);
  if (world_.dice.Chance(15)) {
    *message.request->mutable_frame()->mutable_deadline() = DurationToProto(world_.dice.Microseconds(1, 50000));
  }
  stream_->Send(std::move(message));
  SendChunks(number_, side);
}

void SimulatedClient::SpoilHeader(v1::FrameHeader& header, ClientMessage& message) {
  if (!world_.dice.Chance(5)) return;
  message.is_valid = false;
  header.set_total_bytes(header.total_bytes() + 1);
}

// In pieces, some of which may lack or come twice; a careless client forgets some.
void SimulatedClient::SendChunks(int64_t number, int side) {
  const auto count = static_cast<int>(world_.dice.Uniform(1, 3));
  auto delay = microseconds(0);
  for (v1::Chunk& chunk : FrameChunks(number, side, count)) {
    if (is_careless_ && world_.dice.Chance(3)) continue;
    ClientMessage message;
    message.request.emplace();
    *message.request->mutable_chunk() = std::move(chunk);
    if (is_hasty_) {
      stream_->Send(std::move(message));
      continue;
    }
    // In order, and before the next frame.
    delay += microseconds(world_.dice.Uniform(1, 100));
    world_.time.After(delay, [stream = stream_, message = std::move(message)] { stream->Send(message); });
  }
}

void SimulatedClient::Flood() {
  ++world_.tally["floods"];
  const int64_t frames = world_.dice.Uniform(5, world_.dice.Chance(10) ? 300 : 40);
  const bool only_headers = world_.dice.Chance(50);
  for (int64_t i = 0; i < frames; ++i) {
    ClientMessage header;
    header.request.emplace();
    *header.request->mutable_frame() = FrameHeaderFor(++number_, kFrameSide);
    stream_->Send(std::move(header));
    if (only_headers) continue;
    ClientMessage chunk;
    chunk.request.emplace();
    *chunk.request->mutable_chunk() = FrameChunks(number_, kFrameSide, 1)[0];
    stream_->Send(std::move(chunk));
  }
}

// As DeleteSession does.
void SimulatedClient::Close() {
  if (seen_->session == nullptr) return;
  ++world_.tally["sessions deleted"];
  seen_->closed = true;
  seen_->session->Close(SessionEnded("closed"));
}

void SimulatedClient::Vanish() {
  for (const auto& stream : streams_) stream->Break();
}

void SimulatedClient::CheckSessions() const {
  for (const auto& seen : sessions_) {
    if (seen->session == nullptr) continue;
    const v1::SessionStatistics said = seen->session->Describe().statistics();
    const std::array<int64_t, kFrameFates> fates = {said.frames_ok(),      said.frames_late(),
                                                    said.frames_missed(),  said.frames_superseded(),
                                                    said.frames_refused(), said.frames_failed()};
    world_.rules.Check(fates == seen->fates, "the statistics of a session are those of its answers");
    const int64_t all = std::accumulate(fates.begin(), fates.end(), said.frames_dropped());
    // A header that was held back when its stream broke has not begun.
    world_.rules.Check(all <= seen->headers && all >= seen->headers - seen->streams,
                       "each frame that began was answered or dropped");
    world_.rules.Check(said.frames_in_flight() == 0, "no frame is in flight at last");
    world_.tally["frames dropped"] += said.frames_dropped();
  }
}

}  // namespace intrawarp::server
