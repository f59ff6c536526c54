// SPDX-License-Identifier: Apache-2.0
// Memory that a server shares with clients on its host: answers as over the connection, and clients that mean no good.
#include "server/session/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "client/cpp/client.h"
#include "client/cpp/rpc_status.h"
#include "io/crc32c.h"
#include "server/options.h"
#include "server/session/navigate_session.h"
#include "server/session/session_store.h"
#include "server/session/shared_offer.h"
#include "tests/client/process.h"
#include "tests/server/navigate_frames.h"
#include "tests/server/service_fixture.h"
#include "tests/server/stages.h"

namespace intrawarp::server {
namespace {

// No test takes so long.
constexpr std::chrono::hours kReadingTime{1};

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
  bool Scraped(const std::string& line) { return memory().Scrape().find(line + "\n") != std::string::npos; }

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
INTRAWARP_INSTANTIATE_DEVICE_TEST(SharedMemoryTest);

constexpr v1::FieldEncoding kEncodings[] = {v1::FIELD_ENCODING_FLOAT32, v1::FIELD_ENCODING_INT16,
                                            v1::FIELD_ENCODING_FLOAT16, v1::FIELD_ENCODING_CONTROL_POINTS,
                                            v1::FIELD_ENCODING_VELOCITY};

// The same frames in chunks, through slots into the client's memory, and made and read in the slots.
TEST_P(SharedMemoryTest, AnswersAreThoseOfTheConnectionBitByBit) {
  for (const v1::FieldEncoding encoding : kEncodings) {
    SCOPED_TRACE(v1::FieldEncoding_Name(encoding));
    std::vector<client::GridData> in_chunks;
    std::string viewed;
    for (const std::string way : {"chunks", "slots", "in place"}) {
      SCOPED_TRACE(way);
      const auto stream = client_->Navigate(ConfigFor(encoding));
      if (way != "chunks") {
        ASSERT_OK(stream->ShareMemory({.checksum = way == "slots"}));
      }
      for (int n = 1; n <= 3; ++n) {
        const std::vector<float> voxels = MovingFrame(Grid(), n);
        client::Frame frame = FrameOf(n, voxels);
        if (way == "in place") {
          const absl::Span<char> space = stream->FrameSpace(static_cast<int64_t>(frame.bytes.size()));
          ASSERT_EQ(space.size(), frame.bytes.size());
          std::memcpy(space.data(), voxels.data(), space.size());
          frame.bytes = {space.data(), space.size()};
        }
        ASSERT_OK(stream->Send(frame));
        client::GridData field;
        std::string seen;
        client::FieldView view;
        if (way == "in place") {
          view = [&seen](const v1::FrameField& header, absl::Span<const char> bytes) {
            EXPECT_EQ(static_cast<int64_t>(bytes.size()), header.field().total_bytes());
            seen.assign(bytes.data(), bytes.size());
            return absl::OkStatus();
          };
        }
        const auto answer = stream->Receive(client::SinkInto(&field), {}, view);
        ASSERT_OK(answer.status());
        ASSERT_TRUE(answer->has_value() && (*answer)->has_field);
        EXPECT_EQ((*answer)->result.status().code(), 0) << (*answer)->result.status().message();
        EXPECT_EQ((*answer)->was_shared, way != "chunks");
        EXPECT_EQ((*answer)->was_viewed, way == "in place");
        const size_t at = static_cast<size_t>(n) - 1;
        if (way == "chunks") in_chunks.push_back(std::move(field));
        if (way == "slots") {
          EXPECT_TRUE(field.geometry == in_chunks[at].geometry);
          EXPECT_TRUE(Bytes(field.values) == Bytes(in_chunks[at].values));
        }
        // The encodings of 32 bits are the client's floats.
        if (way == "in place" && encoding != v1::FIELD_ENCODING_INT16 && encoding != v1::FIELD_ENCODING_FLOAT16) {
          EXPECT_TRUE(seen == Bytes(in_chunks[at].values));
        }
        EXPECT_EQ(seen.empty(), way != "in place");
      }
      ASSERT_OK(stream->CloseSend());
      const auto end = stream->Receive(nullptr);
      ASSERT_OK(end.status());
      EXPECT_FALSE(end->has_value());
      const client::Transfers transfers = stream->transfers();
      EXPECT_EQ(transfers.frames_shared, way == "chunks" ? 0 : 3);
      EXPECT_EQ(transfers.frames_in_chunks, way == "chunks" ? 3 : 0);
      EXPECT_EQ(transfers.fields_shared, way == "chunks" ? 0 : 3);
      EXPECT_EQ(transfers.fields_in_chunks, way == "chunks" ? 3 : 0);
    }
  }
  EXPECT_TRUE(Scraped("intrawarp_shared_memory_transfers_total{what=\"frame\"} 30"));
  EXPECT_TRUE(Scraped("intrawarp_shared_memory_transfers_total{what=\"field\"} 30"));
}

TEST_P(SharedMemoryTest, CoarseFieldsComeInSlotsToo) {
  v1::NavigateConfig config = ConfigFor(v1::FIELD_ENCODING_VELOCITY);
  config.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  config.set_coarse_field(true);
  std::map<bool, std::vector<std::string>> fields;
  for (const bool shared : {false, true}) {
    const auto stream = client_->Navigate(config);
    if (shared) {
      ASSERT_OK(stream->ShareMemory());
    }
    const std::vector<float> voxels = MovingFrame(Grid(), 2);
    ASSERT_OK(stream->Send(FrameOf(1, voxels)));
    client::GridData field, coarse;
    int told = 0;
    const client::CoarseFieldSink sink{client::SinkInto(&coarse), [&told](const v1::FrameField&) {
                                         ++told;
                                         return absl::OkStatus();
                                       }};
    const auto answer = stream->Receive(client::SinkInto(&field), sink);
    ASSERT_OK(answer.status());
    EXPECT_EQ(told, 1);
    fields[shared] = {Bytes(coarse.values), Bytes(field.values)};
    EXPECT_EQ(stream->transfers().fields_shared, shared ? 2 : 0);
  }
  EXPECT_TRUE(fields[false] == fields[true]);
  EXPECT_FALSE(fields[true][0] == fields[true][1]);
}

// More frames than slots, sent as fast as slots come free, while the answers are read.
TEST_P(SharedMemoryTest, SlotsAreUsedAgain) {
  for (const bool latest : {false, true}) {
    v1::NavigateConfig config = ConfigFor(v1::FIELD_ENCODING_FLOAT32);
    if (latest) config.set_overload_policy(v1::OVERLOAD_POLICY_LATEST_WINS);
    const auto stream = client_->Navigate(config);
    ASSERT_OK(stream->ShareMemory({.frame_slots = 2, .field_slots = 2}));
    std::thread sender([&] {
      for (int n = 1; n <= 12; ++n) {
        const std::vector<float> voxels = MovingFrame(Grid(), 1 + n % 3);
        EXPECT_OK(stream->Send(FrameOf(n, voxels)));
      }
      EXPECT_OK(stream->CloseSend());
    });
    int answers = 0;
    while (true) {
      client::GridData field;
      const auto answer = stream->Receive(client::SinkInto(&field));
      EXPECT_OK(answer.status()) << answer.status();
      if (!answer.ok() || !answer->has_value()) break;
      ++answers;
      EXPECT_TRUE((*answer)->is_superseded() || (*answer)->result.status().code() == 0);
    }
    sender.join();
    EXPECT_EQ(answers, 12);
    EXPECT_EQ(stream->transfers().frames_shared, 12);
  }
}

// The client has sent its last frame before it reads the first answer, and is slow: by then the stream is over.
class LateReaderTest : public SharedMemoryTest {
 protected:
  static constexpr int kFrames = 2;

  std::unique_ptr<client::NavigateStream> StreamThatIsOver() {
    auto stream = client_->Navigate(ConfigFor(v1::FIELD_ENCODING_FLOAT32));
    EXPECT_OK(stream->ShareMemory());
    for (int n = 1; n <= kFrames; ++n) {
      const std::vector<float> voxels = MovingFrame(Grid(), n);
      EXPECT_OK(stream->Send(FrameOf(n, voxels)));
    }
    EXPECT_OK(stream->CloseSend());
    EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 0; }));
    return stream;
  }
  // The server's job may hold its fields for a moment longer than the stream.
  bool HousekeepingFreesTheMemory() {
    server_->Housekeep();
    return Eventually([this] { return memory().use().bytes == 0 && Pinned() == 0; });
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(LateReaderTest);

TEST_P(LateReaderTest, ReadsWhatTheServerHasWritten) {
  const auto stream = StreamThatIsOver();
  server_->Housekeep();
  EXPECT_EQ(memory().use().field_slots_in_use, kFrames);
  for (int n = 1; n <= kFrames; ++n) {
    client::GridData field;
    const auto answer = stream->Receive(client::SinkInto(&field));
    ASSERT_TRUE(answer.ok() && answer->has_value()) << answer.status();
    EXPECT_TRUE((*answer)->was_shared);
    // A field that was taken back would be zeros.
    EXPECT_TRUE(std::any_of(field.values.begin(), field.values.end(), [](float each) { return each != 0; }));
  }
  const auto end = stream->Receive({});
  EXPECT_TRUE(end.ok() && !end->has_value()) << end.status();
  EXPECT_TRUE(HousekeepingFreesTheMemory());
}

TEST_P(LateReaderTest, HasTheReadingTime) {
  const auto stream = StreamThatIsOver();
  AdvanceClock(kReadingTime);
  EXPECT_TRUE(HousekeepingFreesTheMemory());
  client::GridData field;
  const auto answer = stream->Receive(client::SinkInto(&field));
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kDataLoss) << answer.status();
}

TEST_P(LateReaderTest, GivesTheMemoryBackByGoing) {
  auto stream = StreamThatIsOver();
  EXPECT_GT(memory().use().bytes, 0);
  stream.reset();
  EXPECT_TRUE(HousekeepingFreesTheMemory());
}

// A larger frame than the slots have room for goes in chunks, and says so.
TEST_P(SharedMemoryTest, AFrameWithoutRoomGoesInChunks) {
  const auto stream = client_->Navigate(ConfigFor(v1::FIELD_ENCODING_FLOAT32));
  ASSERT_OK(stream->ShareMemory({.frame_slot_bytes = 4096}));
  const std::vector<float> voxels = MovingFrame(Grid(), 1);
  EXPECT_TRUE(stream->FrameSpace(4097).empty());
  EXPECT_EQ(stream->FrameSpace(4096).size(), 4096u);
  ASSERT_OK(stream->Send(FrameOf(1, voxels)));
  client::GridData field;
  const auto answer = stream->Receive(client::SinkInto(&field));
  ASSERT_OK(answer.status());
  EXPECT_EQ((*answer)->result.status().code(), 0);
  EXPECT_EQ(stream->transfers().frames_in_chunks, 1);
  EXPECT_EQ(stream->transfers().fields_shared, 1);
}

// Each is an error of its frame alone; the slot keeps its generation, and the next frame finds it as it was.
TEST_P(SharedMemoryTest, SlotsThatAreNoneAreRefused) {
  const auto call = Open(RigidConfig());
  // Before there is a segment.
  v1::NavigateRequest early = FrameRequests(1, Grid(), MovingFrame(Grid(), 1))[0];
  early.mutable_frame()->mutable_slot()->set_generation(1);
  ASSERT_TRUE(call->Write(early));
  Answered answered = ReadAnswer(*call);
  EXPECT_EQ(answered.result.status().code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(FieldOf(answered.result.status()), "frame.slot");

  v1::SharedMemoryRequest slots;
  slots.set_frame_slots(2);
  slots.set_frame_slot_bytes(4 * Grid().voxels());
  const Peer peer = Share(*call, slots);
  int64_t number = 1;
  const auto expect_refused = [&](const std::function<void(v1::FrameHeader&)>& change, const std::string& field,
                                  int code) {
    v1::NavigateRequest request = peer.Frame(1, 0);
    request.mutable_frame()->set_frame_number(++number);
    change(*request.mutable_frame());
    ASSERT_TRUE(call->Write(request));
    const Answered refused = ReadAnswer(*call);
    EXPECT_EQ(refused.result.frame_number(), number);
    EXPECT_EQ(refused.result.status().code(), code) << refused.result.status().message();
    EXPECT_EQ(FieldOf(refused.result.status()), field);
  };
  for (const int slot : {-1, 2, 16, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    expect_refused([slot](v1::FrameHeader& frame) { frame.mutable_slot()->set_slot(slot); }, "frame.slot.slot",
                   grpc::INVALID_ARGUMENT);
  }
  for (const uint64_t generation : {uint64_t{0}, uint64_t{2}, ~uint64_t{0}}) {
    expect_refused([=](v1::FrameHeader& frame) { frame.mutable_slot()->set_generation(generation); },
                   "frame.slot.generation", grpc::INVALID_ARGUMENT);
  }
  EXPECT_EQ(peer.header().frame_generation[0], 1u);
  // Errors of the frame's bytes take the slot.
  expect_refused(
      [](v1::FrameHeader& frame) {
        frame.mutable_geometry()->set_size(2, 21);
        frame.set_total_bytes(frame.total_bytes() / 20 * 21);
      },
      "frame.slot.slot", grpc::INVALID_ARGUMENT);
  EXPECT_TRUE(Eventually([&] { return peer.header().frame_generation[0] == 2; }));
  expect_refused([](v1::FrameHeader& frame) { frame.mutable_slot()->set_crc32c(7); }, "frame.slot.crc32c",
                 grpc::DATA_LOSS);
  EXPECT_TRUE(Eventually([&] { return peer.header().frame_generation[0] == 3; }));
  expect_refused([](v1::FrameHeader& frame) { frame.set_total_bytes(1); }, "frame.total_bytes", grpc::INVALID_ARGUMENT);
  EXPECT_TRUE(Eventually([&] { return peer.header().frame_generation[0] == 4; }));
  // A slot that was given back, with the generation it had.
  v1::NavigateRequest good = peer.Frame(1, 0), again = good;
  good.mutable_frame()->set_frame_number(++number);
  again.mutable_frame()->set_frame_number(++number);
  ASSERT_TRUE(call->Write(good));
  ASSERT_TRUE(call->Write(again));
  EXPECT_EQ(ReadAnswer(*call).result.status().code(), 0);
  answered = ReadAnswer(*call);
  EXPECT_EQ(answered.result.status().code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(FieldOf(answered.result.status()), "frame.slot.generation");
  EXPECT_EQ(peer.header().frame_generation[0], 5u);
  call->stream->WritesDone();
  EXPECT_TRUE(call->Finish().ok());
}

// The server copies once and checks the copy: a frame is good or refused, and never something in between.
TEST_P(SharedMemoryTest, AFrameThatIsOverwrittenWhileItIsRead) {
  const auto call = Open(RigidConfig());
  const Peer peer = Share(*call);
  std::atomic<bool> stop{false};
  const std::vector<float> good = MovingFrame(Grid(), 1);
  const uint32_t checksum = io::Crc32c(good.data(), 4 * good.size());
  std::thread vandal([&] {
    const std::vector<float> bad(good.size(), std::numeric_limits<float>::quiet_NaN());
    while (!stop) {
      std::memcpy(peer.frame(0), bad.data(), 4 * bad.size());
      std::memcpy(peer.frame(0), good.data(), 4 * good.size());
      // Words of the server's, which it does not believe.
      peer.header().frame_generation[1] = 77;
      peer.header().field_generation[0] = 78;
    }
  });
  for (int n = 1; n <= 40; ++n) {
    v1::NavigateRequest request = FrameRequests(n, Grid(), good)[0];
    v1::SharedSlot& slot = *request.mutable_frame()->mutable_slot();
    slot.set_generation(static_cast<uint64_t>(n));
    slot.set_crc32c(checksum);
    ASSERT_TRUE(call->Write(request));
    const Answered answered = ReadAnswer(*call);
    if (answered.result.status().code() != 0) {
      EXPECT_EQ(answered.result.status().code(), grpc::DATA_LOSS) << answered.result.status().message();
    } else {
      EXPECT_LT(Distance(*AffineMapFromProto(answered.result.report().affine()), MapOfFrame(1)), 0.25);
    }
  }
  stop = true;
  vandal.join();
  EXPECT_TRUE(server_->context().device.health().ok());
}

// A client that lets go of no slot gets its fields in chunks; one that lets go too early harms itself alone.
TEST_P(SharedMemoryTest, SlotsThatAreNeverReleased) {
  const auto call = Open(ConfigFor(v1::FIELD_ENCODING_FLOAT32));
  v1::SharedMemoryRequest slots;
  slots.set_field_slots(2);
  const Peer peer = Share(*call, slots);
  const int64_t field_bytes = 12 * Grid().voxels();
  std::vector<std::string> fields;
  for (int n = 1; n <= 4; ++n) {
    // The start is the same, so that the same image gives the same field from the second frame on.
    v1::NavigateRequest request = peer.Frame(1, 0);
    request.mutable_frame()->set_frame_number(n);
    ASSERT_TRUE(call->Write(request));
    const Answered answered = ReadAnswer(*call);
    ASSERT_EQ(answered.result.status().code(), 0) << answered.result.status().message();
    ASSERT_TRUE(answered.field.has_value());
    ASSERT_EQ(answered.field->has_slot(), n <= 2);
    if (n > 2) {
      EXPECT_EQ(static_cast<int64_t>(answered.chunks.size()), field_bytes);
      continue;
    }
    const int slot = answered.field->slot().slot();
    EXPECT_EQ(peer.header().field_generation[slot], answered.field->slot().generation());
    fields.emplace_back(peer.field(slot), field_bytes);
  }
  // Nobody has written to them meanwhile.
  for (const int slot : {0, 1}) EXPECT_TRUE(std::string(peer.field(slot), field_bytes) == fields[slot]);
  EXPECT_TRUE(Scraped("intrawarp_shared_memory_fields_in_chunks_total 2"));
  EXPECT_TRUE(Scraped("intrawarp_shared_memory_field_slots_used 2"));
  // Another generation releases nothing; the right one does.
  for (const uint64_t generation : {uint64_t{0}, uint64_t{9}, ~uint64_t{0}, uint64_t{1}}) {
    peer.header().field_released[1] = generation;
    EXPECT_EQ(memory().use().field_slots_in_use, generation == 1 ? 1 : 2);
  }
  v1::NavigateRequest request = peer.Frame(1, 0);
  request.mutable_frame()->set_frame_number(5);
  ASSERT_TRUE(call->Write(request));
  const Answered answered = ReadAnswer(*call);
  ASSERT_TRUE(answered.field.has_value() && answered.field->has_slot());
  EXPECT_EQ(answered.field->slot().slot(), 1);
  EXPECT_EQ(answered.field->slot().generation(), 2u);
}

// The client can neither take the memory from under the server nor keep it.
TEST_P(SharedMemoryTest, TheSizeIsSealedAndTheMemoryComesBack) {
  const int64_t before = Pinned();
  auto call = Open(ConfigFor(v1::FIELD_ENCODING_FLOAT32));
  const int64_t session = Pinned();
  const Peer peer = Share(*call);
  EXPECT_EQ(Pinned() - session, peer.layout().total_bytes());
  EXPECT_EQ(memory().use().bytes, peer.layout().total_bytes());
  EXPECT_NE(ftruncate(peer.fd(), 0), 0);
  EXPECT_NE(ftruncate(peer.fd(), 2 * peer.layout().total_bytes()), 0);
  EXPECT_NE(fcntl(peer.fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  // Pages that the client punches out are pages of zeros for the server.
  ASSERT_EQ(fallocate(peer.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, peer.layout().total_bytes()), 0);
  v1::NavigateRequest request = peer.Frame(1, 0);
  request.mutable_frame()->mutable_slot()->set_generation(1);
  ASSERT_TRUE(call->Write(request));
  EXPECT_EQ(ReadAnswer(*call).result.status().code(), 0);
  std::memset(peer.frame(0), 'x', 4096);
  // The client vanishes, and keeps its descriptor and its mapping.
  call->rpc.TryCancel();
  (void)call->Finish();
  call.reset();
  EXPECT_TRUE(Eventually([&] { return Pinned() == before && memory().use().bytes == 0; }));
  EXPECT_TRUE(peer.IsEmpty());
}

// The client library says so when the memory goes while a field is read.
TEST_P(SharedMemoryTest, AFieldThatGoesWhileItIsReadIsAnError) {
  const auto stream = client_->Navigate(ConfigFor(v1::FIELD_ENCODING_FLOAT32));
  ASSERT_OK(stream->ShareMemory());
  const std::vector<float> voxels = MovingFrame(Grid(), 1);
  ASSERT_OK(stream->Send(FrameOf(1, voxels)));
  const client::FieldView view = [this](const v1::FrameField&, absl::Span<const char>) {
    context().sessions.CloseAll(absl::CancelledError("closed by an operator"));
    EXPECT_TRUE(Eventually([this] { return memory().use().bytes == 0; }));
    return absl::OkStatus();
  };
  const auto answer = stream->Receive(nullptr, {}, view);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kDataLoss) << answer.status();
}

TEST_P(SharedMemoryTest, ATokenIsForOneFetch) {
  const auto call = Open(RigidConfig());
  const v1::SharedMemoryOffer offer = Ask(*call);
  for (const std::string& token :
       {std::string(), std::string("x"), std::string(16, '\0'), offer.token() + "x", std::string(100000, 'x')}) {
    const absl::StatusOr<int> fd = wire::FetchSegment(offer.socket(), token);
    EXPECT_FALSE(fd.ok());
  }
  const Peer peer(offer);
  EXPECT_EQ(wire::FetchSegment(offer.socket(), offer.token()).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Scraped("intrawarp_shared_memory_fetches_total{outcome=\"given\"} 1"));
}

// Connections that say nothing are more than there are places for, and hold up nobody.
TEST_P(SharedMemoryTest, SilentConnectionsDoNotBlockTheSocket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, socket_path().c_str());
  std::vector<Fd> silent;
  for (int i = 0; i < 200; ++i) {
    silent.emplace_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // EAGAIN where others fill the backlog.
    ASSERT_EQ(connect(silent.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0) << i;
  }
  const auto stream = client_->Navigate(RigidConfig());
  EXPECT_OK(stream->ShareMemory());
}

TEST_P(SharedMemoryTest, ProofAndOrder) {
  const auto end_of = [&](const std::function<void(const Call&)>& body) {
    const auto call = Open(RigidConfig());
    body(*call);
    return call->Finish();
  };
  // Attached without an offer, with a nonce that is none, with the token instead.
  EXPECT_EQ(FieldOf(end_of([](const Call& call) { call.Write(AttachRequest("")); })), "shared_memory_attach.nonce");
  EXPECT_EQ(FieldOf(end_of([](const Call& call) {
              (void)Ask(call);
              call.Write(AttachRequest(std::string(16, '\0')));
            })),
            "shared_memory_attach.nonce");
  EXPECT_EQ(FieldOf(end_of([](const Call& call) { call.Write(AttachRequest(Ask(call).token())); })),
            "shared_memory_attach.nonce");
  EXPECT_EQ(FieldOf(end_of([](const Call& call) {
              (void)Ask(call);
              v1::NavigateRequest request;
              request.mutable_shared_memory();
              call.Write(request);
            })),
            "shared_memory");
  // Before the config.
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  v1::NavigateRequest request;
  request.mutable_shared_memory();
  stream->Write(request);
  v1::NavigateResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(FieldOf(stream->Finish()), "config");
}

TEST_P(SharedMemoryTest, RequestsOutOfBounds) {
  const std::pair<const char*, std::function<void(v1::SharedMemoryRequest&)>> wrong[] = {
      {"shared_memory.frame_slots", [](v1::SharedMemoryRequest& r) { r.set_frame_slots(17); }},
      {"shared_memory.frame_slots", [](v1::SharedMemoryRequest& r) { r.set_frame_slots(-1); }},
      {"shared_memory.field_slots", [](v1::SharedMemoryRequest& r) { r.set_field_slots(17); }},
      {"shared_memory.frame_slots",
       [](v1::SharedMemoryRequest& r) {
         r.set_frame_slots(0);
         r.set_field_slots(0);
       }},
      {"shared_memory.frame_slot_bytes", [](v1::SharedMemoryRequest& r) { r.set_frame_slot_bytes(0); }},
      {"shared_memory.frame_slot_bytes", [](v1::SharedMemoryRequest& r) { r.set_frame_slot_bytes(-4096); }},
      {"shared_memory.frame_slot_bytes",
       [](v1::SharedMemoryRequest& r) { r.set_frame_slot_bytes(std::numeric_limits<int64_t>::max()); }},
      {"shared_memory.field_slot_bytes",
       [](v1::SharedMemoryRequest& r) { r.set_field_slot_bytes(std::numeric_limits<int64_t>::max()); }}};
  for (const auto& [field, change] : wrong) {
    const auto call = Open(ConfigFor(v1::FIELD_ENCODING_FLOAT32));
    v1::NavigateRequest request;
    change(*request.mutable_shared_memory());
    ASSERT_TRUE(call->Write(request));
    const grpc::Status status = call->Finish();
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << status.error_message();
    EXPECT_EQ(FieldOf(status), field);
  }
  // Within bounds, but more than there is: refused, and the stream goes on.
  const auto call = Open(RigidConfig());
  v1::SharedMemoryRequest large;
  large.set_frame_slots(16);
  large.set_frame_slot_bytes(context().limits.max_volume_bytes);
  const int64_t before = Pinned();
  const v1::SharedMemoryOffer offer = Ask(*call, large);
  EXPECT_EQ(ReasonOf(offer.status()), v1::EXCEEDS_CAPACITY);
  EXPECT_EQ(Pinned(), before);
  const Peer peer = Share(*call);
  ASSERT_TRUE(call->Write(peer.Frame(1, 0)));
  EXPECT_EQ(ReadAnswer(*call).result.status().code(), 0);
}

// The segment is the stream's: a session that another stream takes up gets a new one, and the old one is gone.
TEST_P(SharedMemoryTest, AResumedSessionGetsANewSegment) {
  v1::NavigateConfig config = ConfigFor(v1::FIELD_ENCODING_FLOAT32);
  config.set_session_id("theatre");
  auto call = Open(config);
  const Peer old = Share(*call);
  ASSERT_TRUE(call->Write(old.Frame(1, 0)));
  EXPECT_EQ(ReadAnswer(*call).result.status().code(), 0);
  call->rpc.TryCancel();
  (void)call->Finish();
  call.reset();
  EXPECT_TRUE(Eventually([this] { return memory().use().bytes == 0; }));
  config.set_resume(true);
  call = Open(config);
  const Peer peer = Share(*call);
  EXPECT_NE(peer.nonce(), old.nonce());
  ASSERT_TRUE(call->Write(peer.Frame(2, 0)));
  const Answered answered = ReadAnswer(*call);
  EXPECT_EQ(answered.result.status().code(), 0) << answered.result.status().message();
  EXPECT_TRUE(answered.field->has_slot());
  EXPECT_TRUE(old.IsEmpty());
}

// By the client library: the connection is cut, and the session goes on with new memory.
TEST_P(SharedMemoryTest, TheClientSharesAgainWhenItResumes) {
  v1::NavigateConfig config = RigidConfig();
  config.set_session_id("theatre");
  const auto stream = client_->Navigate(config);
  ASSERT_OK(stream->ShareMemory());
  const std::vector<float> voxels = MovingFrame(Grid(), 1);
  ASSERT_OK(stream->Send(FrameOf(1, voxels)));
  ASSERT_OK(stream->Receive(nullptr).status());
  stream->Cancel();
  EXPECT_FALSE(stream->Receive(nullptr).ok());
  ASSERT_OK(stream->Resume());
  EXPECT_OK(stream->memory_status());
  ASSERT_OK(stream->Send(FrameOf(2, voxels)));
  const auto answer = stream->Receive(nullptr);
  ASSERT_OK(answer.status());
  EXPECT_EQ((*answer)->result.status().code(), 0);
  EXPECT_EQ(stream->transfers().frames_shared, 2);
}

// A child of another user; the exit status is that of `body`.
int AsAnotherUser(uid_t user, const std::function<absl::StatusCode()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(setgid(user) != 0 || setuid(user) != 0 ? 99 : static_cast<int>(body()));
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

constexpr uid_t kStranger = 65534;
constexpr uid_t kFriend = 65533;

TEST_P(SharedMemoryTest, TheSocketIsForTheServersUserAlone) {
  struct stat is {};
  ASSERT_EQ(stat(socket_path().c_str(), &is), 0);
  EXPECT_EQ(is.st_mode & 0777, 0600u);
  if (geteuid() != 0) GTEST_SKIP() << "another user needs root";
  EXPECT_EQ(AsAnotherUser(kStranger, [&] { return wire::FetchSegment(socket_path(), "token").status().code(); }),
            static_cast<int>(absl::StatusCode::kPermissionDenied));
}

class NamedUsersTest : public SharedMemoryTest {
 protected:
  NamedUsersTest() : SharedMemoryTest({kFriend}) {}
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(NamedUsersTest);

TEST_P(NamedUsersTest, OnlyTheyAndTheServersUserMayFetch) {
  if (geteuid() != 0) GTEST_SKIP() << "another user needs root";
  const auto call = Open(RigidConfig());
  const v1::SharedMemoryOffer offer = Ask(*call);
  const auto fetch = [&] { return wire::FetchSegment(offer.socket(), offer.token()).status().code(); };
  EXPECT_EQ(AsAnotherUser(kStranger, fetch), static_cast<int>(absl::StatusCode::kPermissionDenied));
  EXPECT_EQ(AsAnotherUser(kFriend, fetch), 0);
  EXPECT_TRUE(Scraped("intrawarp_shared_memory_fetches_total{outcome=\"user_refused\"} 1"));
}

class NoSharedMemoryTest : public ServiceTest {};
INTRAWARP_INSTANTIATE_DEVICE_TEST(NoSharedMemoryTest);

TEST_P(NoSharedMemoryTest, AServerWithoutItSaysSo) {
  PutVolume("resident", Grid(), ResidentImage());
  const auto client = *client::Client::Connect(server_->grpc_address());
  const auto stream = client->Navigate(RigidConfig());
  const absl::Status status = stream->ShareMemory();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("--shared_memory"));
  EXPECT_EQ(stream->memory_status(), status);
  // The stream goes on.
  const std::vector<float> voxels = MovingFrame(Grid(), 1);
  client::Frame frame;
  frame.number = 1;
  frame.geometry = Grid();
  frame.bytes = {reinterpret_cast<const char*>(voxels.data()), 4 * voxels.size()};
  ASSERT_OK(stream->Send(frame));
  const auto answer = stream->Receive(nullptr);
  ASSERT_OK(answer.status());
  EXPECT_EQ((*answer)->result.status().code(), 0);
  EXPECT_EQ(stream->transfers().frames_in_chunks, 1);
}

// Each refusal is an answer that waits until the client reads it.
TEST_P(NoSharedMemoryTest, AClientThatGoesOnAskingIsRefused) {
  PutVolume("resident", Grid(), ResidentImage());
  grpc::ClientContext rpc;
  const auto stream = registration_->Navigate(&rpc);
  v1::NavigateRequest request;
  *request.mutable_config() = RigidConfig();
  ASSERT_TRUE(stream->Write(request));
  request.mutable_shared_memory();
  // The writes may fail once the stream has ended.
  for (int i = 0; i < 100; ++i) (void)stream->Write(request);
  (void)stream->WritesDone();
  v1::NavigateResponse response;
  int refused = 0;
  while (stream->Read(&response)) refused += response.has_shared_memory() ? 1 : 0;
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << status.error_message();
  EXPECT_EQ(FieldOf(status), "shared_memory");
  EXPECT_LE(refused, 16);
}

TEST(SharedMemoryOptionsTest, SocketsThatCannotBe) {
  const client::TemporaryFolder folder;
  EXPECT_OK(CheckSharedMemoryOptions({}));
  EXPECT_OK(CheckSharedMemoryOptions({folder / "socket", {}}));
  for (const std::string& path : {std::string("relative"), folder / "missing/socket", folder / std::string(100, 'x')}) {
    EXPECT_EQ(CheckSharedMemoryOptions({path, {}}).code(), absl::StatusCode::kFailedPrecondition) << path;
  }
  EXPECT_EQ(CheckSharedMemoryOptions({"", {1000}}).code(), absl::StatusCode::kInvalidArgument);
}

TEST(SharedMemoryOptionsTest, FlagsAreParsed) {
  const auto parsed = ParseCommandLine({"--shared_memory=/run/x", "--shared_memory_uids=1000,0"});
  ASSERT_OK(parsed.status());
  EXPECT_EQ(parsed->options.shared_memory.socket, "/run/x");
  EXPECT_EQ(parsed->options.shared_memory.users, (std::vector<uid_t>{1000, 0}));
  for (const char* wrong : {"--shared_memory=", "--shared_memory_uids=", "--shared_memory_uids=me",
                            "--shared_memory_uids=-1", "--shared_memory_uids=1,,2"}) {
    EXPECT_FALSE(ParseCommandLine({wrong}).ok()) << wrong;
  }
}

// The socket of a server that was killed is replaced; a file of another kind and a living server's socket are not.
TEST(SharedMemoryOptionsTest, TheSocketOfADeadServerIsReplaced) {
  const client::TemporaryFolder folder;
  const std::string path = folder / "socket";
  {
    const Fd dead(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path.c_str());
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  {
    const auto first = SharedMemory::Start({path, {}});
    ASSERT_OK(first.status());
    EXPECT_EQ(SharedMemory::Start({path, {}}).status().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);
  std::ofstream(path) << "somebody's file";
  EXPECT_EQ(SharedMemory::Start({path, {}}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
}

// Streams that end well, one after the other, whose clients read nothing: 64 segments stay, and an earlier one goes.
TEST(SharedSegmentTest, KeptOnesAreBounded) {
  constexpr size_t kMostKept = 64;
  const client::TemporaryFolder folder;
  const auto memory = SharedMemory::Start({folder / "socket", {}});
  ASSERT_OK(memory.status());
  const SharedMemory::Time now{};
  const wire::SegmentLayout layout = *wire::RoundLayout({0, 1, 0, 100});
  std::vector<std::weak_ptr<SharedSegment>> kept;
  for (size_t i = 0; i < kMostKept + 3; ++i) {
    auto segment =
        SharedSegment::Create(layout, std::string(wire::kSharedNonceBytes, 'n'), Grant(), (*memory)->metrics());
    ASSERT_OK(segment.status());
    const auto field = (*segment)->TakeField(100);
    ASSERT_NE(field, nullptr);
    (*segment)->Publish(*field, 100);
    kept.push_back(*segment);
    (*memory)->KeepWhileRead(*std::move(segment), now);
  }
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(kept[i].expired(), i < 3) << i;
  (*memory)->Expire(now + SharedMemoryOptions().reading_time);
  for (const auto& each : kept) EXPECT_TRUE(each.expired());
}

TEST(SharedSegmentTest, Layouts) {
  EXPECT_EQ(wire::RoundLayout({2, 1, 1, 4097})->total_bytes(), 4096 + 2 * 4096 + 8192);
  EXPECT_EQ(wire::RoundLayout({0, 1, -1, 4096})->frame_slot_bytes, 0);
  for (const wire::SegmentLayout& wrong :
       {wire::SegmentLayout{17, 0, 1, 1}, wire::SegmentLayout{-1, 0, 1, 1}, wire::SegmentLayout{1, 1, 0, 1},
        wire::SegmentLayout{1, 1, 1, std::numeric_limits<int64_t>::max()}}) {
    EXPECT_FALSE(wire::RoundLayout(wrong).ok());
  }
}

// A frame is copied in pieces of 1 MiB.
TEST(SharedSegmentTest, FramesOfAnySizeAreCopiedWhole) {
  constexpr int64_t kPiece = 1 << 20, kMost = 3 * kPiece + 7;
  SharedMemoryMetrics metrics;
  const wire::SegmentLayout layout = *wire::RoundLayout({1, 0, kMost, 0});
  const auto segment = SharedSegment::Create(layout, std::string(wire::kSharedNonceBytes, 'n'), Grant(), metrics);
  ASSERT_OK(segment);
  const wire::Mapping client = *wire::Mapping::Map((*segment)->fd(), 0, layout.total_bytes(), /*writable=*/true);
  char* const frame = client.data() + layout.frame_offset(0);
  std::mt19937 random(7);
  std::generate(frame, frame + kMost, [&] { return static_cast<char>(random()); });
  for (const int64_t bytes : {int64_t{1}, kPiece - 1, kPiece, kPiece + 1, 2 * kPiece, kMost}) {
    std::string copy(bytes + 1, 'x');
    v1::SharedSlot slot;
    slot.set_generation(1);
    slot.set_crc32c(io::Crc32c(frame, bytes));
    const absl::StatusOr<uint32_t> checksum = (*segment)->CopyFrame(slot, bytes, copy.data());
    ASSERT_TRUE(checksum.ok()) << bytes << " bytes: " << checksum.status();
    EXPECT_EQ(*checksum, slot.crc32c());
    EXPECT_TRUE(std::equal(frame, frame + bytes, copy.begin())) << bytes;
    EXPECT_EQ(copy.back(), 'x') << bytes;
  }
}

// A client believes its server no more: a descriptor that could be cut short is not mapped.
TEST(SharedSegmentTest, TheClientChecksTheDescriptor) {
  const wire::SegmentLayout layout = *wire::RoundLayout({1, 1, 100, 100});
  const Fd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), layout.total_bytes()), 0);
  EXPECT_FALSE(wire::CheckSegment(unsealed.get(), layout).ok());
  ASSERT_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_OK(wire::CheckSegment(unsealed.get(), layout));
  EXPECT_FALSE(wire::CheckSegment(unsealed.get(), *wire::RoundLayout({2, 1, 100, 100})).ok());
  const Fd file(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(wire::CheckSegment(file.get(), layout).ok());
}

}  // namespace
}  // namespace intrawarp::server
