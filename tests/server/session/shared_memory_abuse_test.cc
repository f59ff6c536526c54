// SPDX-License-Identifier: Apache-2.0
// Clients of shared memory that mean no good, and users who may not have it.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "client/cpp/rpc_status.h"
#include "io/file/crc32c.h"
#include "server/session/shared_memory.h"
#include "tests/server/navigate_frames.h"
#include "tests/server/session/shared_memory_fixture.h"

namespace intrawarp::server {
namespace {

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

}  // namespace
}  // namespace intrawarp::server
