// SPDX-License-Identifier: Apache-2.0
// A session over gRPC whose frames and fields go through shared memory, with the client's end by hand.
#ifndef INTRAWARP_TESTS_SERVER_SESSION_SHARED_MEMORY_FIXTURE_H_
#define INTRAWARP_TESTS_SERVER_SESSION_SHARED_MEMORY_FIXTURE_H_

#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "client/cpp/client.h"
#include "client/cpp/rpc_status.h"
#include "server/monitor/registry.h"
#include "server/options.h"
#include "server/session/session_store.h"
#include "server/session/shared_memory.h"
#include "tests/client/process.h"
#include "tests/server/navigate_frames.h"
#include "tests/server/service_fixture.h"
#include "tests/server/stages.h"

namespace intrawarp::server {

// No test takes so long.
inline constexpr std::chrono::hours kReadingTime{1};

// The client's end of a segment, by hand.
class Peer {
 public:
  Peer() = default;
  // Fetches and maps what `offer` names.
  explicit Peer(const v1::SharedMemoryOffer& offer) {
    const v1::SharedMemoryRequest& of = offer.slots();
    layout_ = *wire::RoundLayout({of.frame_slots(), of.field_slots(), of.frame_slot_bytes(), of.field_slot_bytes()});
    EXPECT_EQ(layout_.total_bytes(), offer.segment_bytes());
    const absl::StatusOr<int> fd = wire::FetchSegment(offer.socket(), offer.token());
    EXPECT_OK(fd.status());
    fd_ = Fd(fd.value_or(-1));
    mapping_ = *wire::Mapping::Map(fd_.get(), 0, layout_.total_bytes(), /*writable=*/true);
  }
  Peer(Peer&&) = default;
  Peer& operator=(Peer&&) = default;
  // Lets go of its fields, so that the server does not keep them for it.
  ~Peer() {
    if (mapping_.data() == nullptr) return;
    for (int slot = 0; slot < layout_.field_slots; ++slot) {
      header().field_released[slot] = header().field_generation[slot].load();
    }
  }

  int fd() const { return fd_.get(); }
  const wire::SegmentLayout& layout() const { return layout_; }
  wire::SegmentHeader& header() const { return *reinterpret_cast<wire::SegmentHeader*>(mapping_.data()); }
  std::string nonce() const { return {header().nonce, wire::kSharedNonceBytes}; }
  char* frame(int slot) const { return mapping_.data() + layout_.frame_offset(slot); }
  const char* field(int slot) const { return mapping_.data() + layout_.field_offset(slot); }
  bool IsEmpty() const {
    const char* const all = mapping_.data();
    return std::all_of(all, all + mapping_.bytes(), [](char byte) { return byte == 0; });
  }

  // Frame `n` in a slot, with the slot's generation.
  v1::NavigateRequest Frame(int n, int slot) const {
    const std::vector<float> voxels = MovingFrame(Grid(), n);
    std::memcpy(frame(slot), voxels.data(), 4 * voxels.size());
    v1::NavigateRequest request = FrameRequests(n, Grid(), voxels)[0];
    request.mutable_frame()->mutable_slot()->set_slot(slot);
    request.mutable_frame()->mutable_slot()->set_generation(header().frame_generation[slot]);
    return request;
  }

 private:
  wire::SegmentLayout layout_;
  Fd fd_;
  wire::Mapping mapping_;
};

class SharedMemoryTest : public ServiceTest {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::NavigateRequest, v1::NavigateResponse>;

  explicit SharedMemoryTest(std::vector<uid_t> users = {}, const ServerLimits& limits = {})
      : SharedMemoryTest(std::make_shared<client::TemporaryFolder>(), std::move(users), limits) {}

  void SetUp() override {
    PutVolume("resident", Grid(), ResidentImage());
    client_ = *client::Client::Connect(server_->grpc_address());
  }
  void TearDown() override {
    context().sessions.CloseAll(absl::CancelledError("the test is over"));
    ServiceTest::TearDown();
    // Whatever the peers of the test did, nothing of theirs is left.
    EXPECT_TRUE(Eventually([this] { return Pinned() == 0 && memory().use().bytes == 0; })) << Pinned();
  }

  SharedMemory& memory() { return *context().sessions.shared_memory(); }
  int64_t Pinned() { return context().ledger.in_use(Resource::kPinned); }
  std::string socket_path() const { return *folder_ / "segments"; }

  static v1::NavigateConfig ConfigFor(v1::FieldEncoding encoding) {
    v1::NavigateConfig config = RigidConfig();
    v1::Stage& stage = *config.mutable_options()->mutable_stages(0);
    if (encoding == v1::FIELD_ENCODING_CONTROL_POINTS) SetMethod(stage, StageKind::kFfd);
    if (encoding == v1::FIELD_ENCODING_VELOCITY) SetMethod(stage, StageKind::kLogDemons);
    SetIterations(stage, 3);
    config.mutable_field()->set_encoding(encoding);
    return config;
  }
  static client::Frame FrameOf(int64_t number, const std::vector<float>& voxels) {
    client::Frame frame;
    frame.number = number;
    frame.geometry = Grid();
    frame.bytes = {reinterpret_cast<const char*>(voxels.data()), 4 * voxels.size()};
    return frame;
  }

  // A stream by hand that has been opened.
  struct Call {
    grpc::ClientContext rpc;
    std::unique_ptr<Stream> stream;

    bool Write(const v1::NavigateRequest& request) const { return stream->Write(request); }
    // The next message; fails the test at the stream's end.
    v1::NavigateResponse Read() const {
      v1::NavigateResponse response;
      EXPECT_TRUE(stream->Read(&response));
      return response;
    }
    grpc::Status Finish() const {
      v1::NavigateResponse response;
      while (stream->Read(&response)) {
      }
      return stream->Finish();
    }
  };
  std::unique_ptr<Call> Open(const v1::NavigateConfig& config) {
    auto call = std::make_unique<Call>();
    call->stream = registration_->Navigate(&call->rpc);
    v1::NavigateRequest request;
    *request.mutable_config() = config;
    EXPECT_TRUE(call->Write(request));
    EXPECT_TRUE(call->Read().has_opened());
    return call;
  }
  static v1::SharedMemoryOffer Ask(const Call& call, const v1::SharedMemoryRequest& slots = {}) {
    v1::NavigateRequest request;
    *request.mutable_shared_memory() = slots;
    EXPECT_TRUE(call.Write(request));
    const v1::NavigateResponse response = call.Read();
    EXPECT_TRUE(response.has_shared_memory()) << response.ShortDebugString();
    return response.shared_memory();
  }
  static v1::NavigateRequest AttachRequest(const std::string& nonce) {
    v1::NavigateRequest request;
    request.mutable_shared_memory_attach()->set_nonce(nonce);
    return request;
  }
  static Peer Share(const Call& call, const v1::SharedMemoryRequest& slots = {}) {
    const v1::SharedMemoryOffer offer = Ask(call, slots);
    EXPECT_EQ(offer.status().code(), 0) << offer.status().message();
    Peer peer(offer);
    EXPECT_TRUE(call.Write(AttachRequest(peer.nonce())));
    return peer;
  }
  // The answer to a frame that has no field in chunks.
  struct Answered {
    v1::FrameResult result;
    std::optional<v1::FrameField> field;
    std::string chunks;
  };
  static Answered ReadAnswer(const Call& call) {
    Answered answered;
    while (true) {
      const v1::NavigateResponse response = call.Read();
      if (response.has_field()) answered.field = response.field();
      if (response.has_chunk()) answered.chunks += response.chunk().data();
      if (response.has_result()) answered.result = response.result();
      if (response.has_result() || response.payload_case() == v1::NavigateResponse::PAYLOAD_NOT_SET) return answered;
    }
  }
  // Whether the scrape has this line.
  bool Scraped(const std::string& line) {
    return context().metrics.registry.Scrape().find(line + "\n") != std::string::npos;
  }

  std::unique_ptr<client::Client> client_;

 private:
  SharedMemoryTest(std::shared_ptr<client::TemporaryFolder> folder, std::vector<uid_t> users,
                   const ServerLimits& limits)
      : ServiceTest(limits,
                    [&](ServerOptions& options) {
                      chmod(folder->path().c_str(), 0755);
                      options.shared_memory.socket = *folder / "segments";
                      options.shared_memory.users = std::move(users);
                      options.shared_memory.reading_time = kReadingTime;
                    }),
        folder_(std::move(folder)) {}

  const std::shared_ptr<client::TemporaryFolder> folder_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_SESSION_SHARED_MEMORY_FIXTURE_H_
