// SPDX-License-Identifier: Apache-2.0
// Memory that a server shares with clients on its host: answers as over the connection, slots, sockets, options.
#include "server/session/shared_memory.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "client/cpp/client.h"
#include "client/cpp/rpc_status.h"
#include "server/options.h"
#include "server/session/session_store.h"
#include "tests/client/process.h"
#include "tests/server/navigate_frames.h"
#include "tests/server/service_fixture.h"
#include "tests/server/session/shared_memory_fixture.h"

namespace intrawarp::server {
namespace {

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
  Registry registry;
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
    const auto first = SharedMemory::Start({path, {}}, registry);
    ASSERT_OK(first.status());
    EXPECT_EQ(SharedMemory::Start({path, {}}, registry).status().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);
  std::ofstream(path) << "somebody's file";
  EXPECT_EQ(SharedMemory::Start({path, {}}, registry).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace intrawarp::server
