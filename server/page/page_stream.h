// SPDX-License-Identifier: Apache-2.0
// PageStream: what one connection is sent piece by piece: lines of the server's state, or packets of a session. The
// next piece is made when the one before has left, so that a viewer who is slow skips to the newest.
//
// Thread safety: Read is one thread's; the rest is safe for concurrent use.
#ifndef INTRAWARP_SERVER_PAGE_PAGE_STREAM_H_
#define INTRAWARP_SERVER_PAGE_PAGE_STREAM_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/seams.h"
#include "server/identity/identity.h"
#include "server/page/page_state.h"
#include "server/page/session_view.h"

namespace intrawarp::server {

class PageStream {
 public:
  using Time = std::chrono::steady_clock::time_point;
  virtual ~PageStream() = default;
  // At most `most` bytes; 0: nothing for now; nullopt: the stream has ended.
  std::optional<size_t> Read(char* to, size_t most);

  // No piece begins after it.
  void End() { ended_ = true; }
  // Nothing is sent before the record of the stream is written.
  void SetRecorded() { recorded_ = true; }

 protected:
  explicit PageStream(const Seams& seams) : seams_(seams) {}
  Time now() const { return seams_.steady_now(); }

 private:
  // Begins the next piece: true when there is one. May end the stream.
  virtual bool Begin() = 0;
  virtual size_t piece_bytes() const = 0;
  virtual size_t ReadPiece(size_t offset, char* to, size_t most) const = 0;

  const Seams& seams_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> recorded_{false};
  bool has_piece_ = false;
  size_t offset_ = 0;
  Time began_;
};

class StateStream final : public PageStream {
 public:
  // Asked before each line; the stream ends with the caller's name.
  using WhoFn = std::function<absl::StatusOr<Identity>()>;
  StateStream(const Seams& seams, ServerContext& context, const ViewerHub& hub, WhoFn who, Identity caller)
      : PageStream(seams), state_(context, hub), who_(std::move(who)), caller_(std::move(caller)) {}

 private:
  bool Begin() override;
  size_t piece_bytes() const override { return line_.size(); }
  size_t ReadPiece(size_t offset, char* to, size_t most) const override;

  PageState state_;
  const WhoFn who_;
  const Identity caller_;
  std::string line_;
  Time due_;
};

enum class PacketKind { kPictures, kHeads, kReference };

class PacketStream final : public PageStream {
 public:
  PacketStream(const Seams& seams, std::shared_ptr<NavigateSession> session, std::shared_ptr<SessionView> view,
               PacketKind kind, std::function<bool()> may_see)
      : PageStream(seams),
        session_(std::move(session)),
        view_(std::move(view)),
        kind_(kind),
        may_see_(std::move(may_see)) {}

 private:
  bool Begin() override;
  bool BeginPicture();
  bool BeginReference();
  size_t piece_bytes() const override { return packet_->bytes(); }
  size_t ReadPiece(size_t offset, char* to, size_t most) const override;

  const std::shared_ptr<NavigateSession> session_;
  const std::shared_ptr<SessionView> view_;
  const PacketKind kind_;
  const std::function<bool()> may_see_;  // asked once a second
  Time asked_;
  std::shared_ptr<const FramePicture> shown_;
  std::shared_ptr<const Packet> packet_;
  double packet_time_ = 0;
  Time due_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_PAGE_STREAM_H_
