// SPDX-License-Identifier: Apache-2.0
#include "server/page/page_stream.h"

#include <algorithm>
#include <cstring>

#include "server/session/navigate_session.h"

namespace intrawarp::server {
namespace {

constexpr std::chrono::milliseconds kStatePeriod{500};
// A stream says something, so that its viewer knows that it is there, and its end is noticed.
constexpr std::chrono::seconds kSilence{1};
// A piece that takes longer holds the picture for too long.
constexpr std::chrono::seconds kLongestPiece{60};

}  // namespace

std::optional<size_t> PageStream::Read(char* to, size_t most) {
  if (!has_piece_) {
    if (ended_) return std::nullopt;
    if (!recorded_ || !Begin()) return ended_ ? std::nullopt : std::optional<size_t>(0);
    has_piece_ = true;
    offset_ = 0;
    began_ = now();
  }
  if (now() - began_ > kLongestPiece) return std::nullopt;
  const size_t count = ReadPiece(offset_, to, most);
  offset_ += count;
  has_piece_ = offset_ < piece_bytes();
  return count;
}

bool StateStream::Begin() {
  if (now() < due_) return false;
  due_ = now() + kStatePeriod;
  const absl::StatusOr<Identity> caller = who_();
  if (!caller.ok() || caller->name != caller_.name) {
    End();
    return false;
  }
  line_ = state_.NextLine(*caller);
  return true;
}

size_t StateStream::ReadPiece(size_t offset, char* to, size_t most) const {
  const size_t count = std::min(most, line_.size() - offset);
  std::memcpy(to, line_.data() + offset, count);
  return count;
}

bool PacketStream::Begin() {
  const bool is_asked = now() - asked_ < kSilence;
  if (!is_asked) asked_ = now();
  if (session_->state() == NavigateSession::State::kClosed || (!is_asked && !may_see_())) {
    End();
    return false;
  }
  const bool has_packet = kind_ == PacketKind::kReference ? BeginReference() : BeginPicture();
  if (has_packet) packet_time_ = SecondsOf(now());
  return has_packet;
}

bool PacketStream::BeginReference() {
  if (packet_ != nullptr) {
    End();
    return false;
  }
  packet_ = view_->reference();
  return packet_ != nullptr;
}

bool PacketStream::BeginPicture() {
  std::shared_ptr<const FramePicture> newest = view_->picture();
  if (newest != nullptr && newest != shown_) {
    packet_ = kind_ == PacketKind::kHeads ? newest->head : newest->packet;
    shown_ = std::move(newest);
  } else if (now() >= due_) {
    packet_ = std::make_shared<const Packet>(Json::object(), std::vector<Packet::Part>());
  } else {
    return false;
  }
  due_ = now() + kSilence;
  return true;
}

size_t PacketStream::ReadPiece(size_t offset, char* to, size_t most) const {
  return packet_->Read(packet_time_, offset, to, most);
}

}  // namespace intrawarp::server
