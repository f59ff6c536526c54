// SPDX-License-Identifier: Apache-2.0
// The server as a process that is killed at random moments under load: whatever it acknowledged is there after a new
// start, bit for bit, and whatever it did not acknowledge is whole or absent. Sessions go on from the transform that
// their client was told of, or a later one. An operation that was begun is found: done with its result, or failed.
// INTRAWARP_KILLS sets the number of kills.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "client/cpp/rpc_status.h"
#include "tests/client/process.h"

namespace intrawarp::client {
namespace {

using ::testing::HasSubstr;

constexpr int kClients = 3;
// Each client has so many at most, so that the largest set fits.
constexpr size_t kMostObjects = 12;

int Kills() {
  const char* const kills = std::getenv("INTRAWARP_KILLS");
  return kills == nullptr ? 20 : std::atoi(kills);
}

Geometry Box(int side) {
  Geometry geometry;
  geometry.size = {side, side, side};
  return geometry;
}

std::vector<float> Voxels(const Geometry& geometry, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> voxels(static_cast<size_t>(geometry.voxels()));
  for (float& voxel : voxels) voxel = static_cast<float>(random() % 1000);
  return voxels;
}

// A soft ball, so that two of them register.
std::vector<float> Ball(const Geometry& geometry, double shift) {
  std::vector<float> voxels;
  const Int3 n = geometry.size;
  for (int z = 0; z < n.z; ++z) {
    for (int y = 0; y < n.y; ++y) {
      for (int x = 0; x < n.x; ++x) {
        const double r2 = (x - n.x / 2.0 - shift) * (x - n.x / 2.0 - shift) + (y - n.y / 2.0) * (y - n.y / 2.0) +
                          2 * (z - n.z / 2.0) * (z - n.z / 2.0);
        voxels.push_back(static_cast<float>(1000 * std::exp(-r2 / 30)));
      }
    }
  }
  return voxels;
}

HostCsr<float> Diagonal(int32_t size, float value) {
  HostCsr<float> csr;
  csr.rows = csr.columns = size;
  for (int32_t i = 0; i < size; ++i) {
    csr.column_indices.push_back(i);
    csr.values.push_back(value);
    csr.row_offsets.push_back(i + 1);
  }
  return csr;
}

bool Same(const HostCsr<float>& a, const HostCsr<float>& b) {
  return a.rows == b.rows && a.columns == b.columns && a.row_offsets == b.row_offsets &&
         a.column_indices == b.column_indices && a.values == b.values;
}

absl::string_view BytesOf(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// The content of an object: the floats of a volume or field, or the value on the diagonal of a matrix; and the report
// of a computed one.
struct Content {
  std::vector<float> values;
  int32_t side = 0;  // of a matrix
  std::string report;
};

// One client's objects by name, as the server acknowledged them.
struct Model {
  // Sessions that were opened, with the last frame that the disk is said to have; and those of which the server said
  // that they are closed.
  std::map<std::string, int64_t> sessions;
  std::set<std::string> closed_sessions;
  // Sessions that a kill interrupted while they opened or closed.
  std::set<std::string> open_sessions;
  std::map<std::string, Content> kept;
  // The object of the operation that the kill interrupted: present or not, but never damaged. A deletion leaves its
  // content here.
  std::map<std::string, Content> open;
};

// `kept` gets the frame of which the answer says that the disk has it.
absl::Status SendFrame(NavigateStream& stream, int64_t number, int64_t* kept) {
  const std::vector<float> voxels = Ball(Box(16), 1.5);
  Frame frame;
  frame.number = number;
  frame.geometry = Box(16);
  frame.bytes = BytesOf(voxels);
  if (!stream.Send(frame).ok()) return absl::UnavailableError("the stream has ended");
  const auto answer = stream.Receive(nullptr);
  if (!answer.ok()) return answer.status();
  if (!answer->has_value()) return absl::InternalError("no answer");
  const v1::FrameResult& result = (*answer)->result;
  EXPECT_EQ(result.frame_number(), number);
  EXPECT_EQ(result.status().code(), 0) << result.status().message();
  if (result.has_kept_frame_number()) *kept = result.kept_frame_number();
  return absl::OkStatus();
}

// OK once the server has said that the session is closed.
absl::Status CloseStream(NavigateStream& stream) {
  const absl::Status sent = stream.CloseSend();
  if (!sent.ok()) return absl::UnavailableError(sent.message());
  return stream.Receive(nullptr).status();
}

class Worker {
 public:
  Worker(int number, uint32_t seed) : number_(number), random_(seed) {}

  Model& model() { return model_; }
  // Acknowledged operations by kind.
  const std::map<std::string, int>& acknowledged() const { return acknowledged_; }

  // Works until the server is gone.
  void Work(Client& client) {
    while (Step(client)) {
    }
  }

 private:
  std::string NextId() { return absl::StrCat("c", number_, "-", next_++); }

  bool Step(Client& client) {
    if (model_.kept.size() >= kMostObjects) return DeleteOne(client);
    switch (random_() % 7) {
      case 0:
      case 1:
        return PutVolume(client);
      case 2:
        return PutMatrix(client);
      case 3:
        return PutField(client);
      case 4:
        return Register(client);
      case 5:
        return Navigate(client);
      default:
        return random_() % 2 == 0 ? Multiply(client) : DeleteOne(client);
    }
  }

  // Counts an operation that ended well; another one ended with the server.
  bool Count(const std::string& kind, const std::string& name, const absl::Status& status) {
    EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << name << ": " << status;
    if (status.ok()) ++acknowledged_[kind];
    return status.ok();
  }
  bool Acknowledge(const std::string& kind, const std::string& name, const absl::Status& status) {
    if (!Count(kind, name, status)) return false;
    model_.kept[name] = std::move(model_.open[name]);
    model_.open.erase(name);
    return true;
  }

  bool PutVolume(Client& client) {
    const Geometry grid = Box(8 + static_cast<int>(random_() % 40));
    const std::string id = NextId();
    Content& content = model_.open["volumes/" + id];
    content.values = Voxels(grid, random_());
    VolumeUpload upload;
    upload.id = id;
    upload.geometry = grid;
    upload.bytes = BytesOf(content.values);
    return Acknowledge("volume", "volumes/" + id, client.UploadVolume(upload).status());
  }

  bool PutMatrix(Client& client) {
    const std::string id = NextId();
    Content& content = model_.open["sparseMatrices/" + id];
    content.side = static_cast<int32_t>(1 + random_() % 1000);
    content.values = {static_cast<float>(random_() % 1000)};
    const SparseMatrix matrix = Diagonal(content.side, content.values[0]);
    return Acknowledge("matrix", "sparseMatrices/" + id, client.UploadSparseMatrix({id, &matrix, nullptr}).status());
  }

  bool PutField(Client& client) {
    const Geometry grid = Box(4 + static_cast<int>(random_() % 12));
    const std::string id = NextId();
    Content& content = model_.open["transforms/" + id];
    for (int c = 0; c < 3; ++c) {
      const std::vector<float> part = Voxels(grid, random_());
      content.values.insert(content.values.end(), part.begin(), part.end());
    }
    return Acknowledge("field", "transforms/" + id, client.UploadField(id, grid, content.values).status());
  }

  bool Register(Client& client) {
    const std::string id = NextId();
    Content& content = model_.open["transforms/" + id];
    v1::RegisterRequest request;
    request.set_fixed("volumes/fixed");
    request.set_moving("volumes/moving");
    request.set_transform_id(id);
    request.set_request_id(id);
    v1::FfdStage& ffd = *request.mutable_options()->add_stages()->mutable_ffd();
    ffd.set_levels(1);
    ffd.set_iterations(2);
    request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
    GridData field;
    const auto result = client.Register(request, nullptr, SinkInto(&field));
    if (result.ok()) {
      content.values = std::move(field.values);
      content.report = result->report().SerializeAsString();
    }
    return Acknowledge("registration", "transforms/" + id, result.status());
  }

  bool Multiply(Client& client) {
    const std::string id = NextId();
    Content& content = model_.open["sparseMatrices/" + id];
    content.side = 100;
    content.values = {6};
    v1::MultiplyRequest request;
    request.set_a("sparseMatrices/two");
    request.set_b("sparseMatrices/three");
    request.mutable_keep()->set_id(id);
    const auto result = client.Multiply(request, nullptr, nullptr);
    return Acknowledge("product", "sparseMatrices/" + id, result.status());
  }

  bool DeleteOne(Client& client) {
    if (model_.kept.empty()) return true;
    auto it = model_.kept.begin();
    std::advance(it, static_cast<int>(random_() % model_.kept.size()));
    const std::string name = it->first;
    model_.open[name] = std::move(it->second);
    model_.kept.erase(it);
    if (!Count("deletion", name, Delete(client, name))) return false;
    model_.open.erase(name);
    return true;
  }

  // A few frames; then the session is closed, or its stream breaks.
  bool Navigate(Client& client) {
    const std::string id = NextId();
    v1::NavigateConfig config;
    config.set_fixed("volumes/fixed");
    config.set_session_id(id);
    config.mutable_resume_window()->set_seconds(300);
    v1::FfdStage& ffd = *config.mutable_options()->add_stages()->mutable_ffd();
    ffd.set_levels(1);
    ffd.set_iterations(2);
    model_.open_sessions.insert(id);
    const std::unique_ptr<NavigateStream> stream = client.Navigate(config);
    if (!Count("session", id, stream->WaitUntilOpened())) return false;
    model_.open_sessions.erase(id);
    model_.sessions[id] = 0;
    const int frames = static_cast<int>(random_() % 4);
    for (int n = 1; n <= frames; ++n) {
      if (!Count("frame", id, SendFrame(*stream, n, &model_.sessions[id]))) return false;
    }
    // So that the sessions of all workers have room.
    if (random_() % 2 == 0 && model_.sessions.size() < 2) {
      stream->Cancel();
      return true;
    }
    model_.sessions.erase(id);
    model_.open_sessions.insert(id);
    if (!Count("closing", id, CloseStream(*stream))) return false;
    model_.open_sessions.erase(id);
    model_.closed_sessions.insert(id);
    return true;
  }

  static absl::Status Delete(Client& client, const std::string& name) {
    if (absl::StartsWith(name, "volumes/")) return client.DeleteVolume(name);
    if (absl::StartsWith(name, "transforms/")) return client.DeleteTransform(name);
    return client.DeleteSparseMatrix(name);
  }

  const int number_;
  std::mt19937 random_;
  int next_ = 0;
  std::map<std::string, int> acknowledged_;
  Model model_;
};

class KillTest : public testing::Test {
 protected:
  std::unique_ptr<Client> Start() {
    const auto begin = std::chrono::steady_clock::now();
    server_ = std::make_unique<Process>(
        std::vector<std::string>{INTRAWARPD, "--device=cpu", "--listen=127.0.0.1:0", "--http=127.0.0.1:0",
                                 "--resident_bytes=256MiB", "--pinned_bytes=64MiB", "--state_dir=" + folder_.path()});
    const std::string line = server_->WaitForLine("ready ");
    EXPECT_NE(line, "") << server_->Wait().err;
    slowest_start_ = std::max(slowest_start_, std::chrono::steady_clock::now() - begin);
    const std::string address = Word(line, "grpc=");
    ClientOptions options;
    options.transfer_attempts = 1;  // a server that was killed does not come back
    auto client = Client::Connect(address, options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  void PutInputs(Client& client) {
    const Geometry grid = Box(16);
    for (const char* id : {"fixed", "moving"}) {
      const std::vector<float> voxels = Ball(grid, id[0] == 'f' ? 0 : 1.5);
      VolumeUpload upload;
      upload.id = id;
      upload.geometry = grid;
      upload.bytes = BytesOf(voxels);
      ASSERT_TRUE(client.UploadVolume(upload).ok());
    }
    const SparseMatrix two = Diagonal(100, 2), three = Diagonal(100, 3);
    ASSERT_TRUE(client.UploadSparseMatrix({"two", &two, nullptr}).ok());
    ASSERT_TRUE(client.UploadSparseMatrix({"three", &three, nullptr}).ok());
  }

  // NOT_FOUND, or OK with what was compared.
  absl::Status Compare(Client& client, const std::string& name, const Content& content) {
    if (absl::StartsWith(name, "sparseMatrices/")) {
      SparseMatrix matrix;
      const auto got = client.DownloadSparseMatrix(name, &matrix);
      if (!got.ok()) return got.status();
      const HostCsr<float> expected = Diagonal(content.side, content.values[0]);
      EXPECT_TRUE(Same(std::get<HostCsr<float>>(matrix), expected)) << name;
      return absl::OkStatus();
    }
    GridData data;
    if (absl::StartsWith(name, "volumes/")) {
      const auto got = client.DownloadVolume(name, SinkInto(&data));
      if (!got.ok()) return got.status();
    } else {
      v1::DownloadRequest request;
      request.set_name(name);
      request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
      const auto got = client.DownloadField(request, SinkInto(&data));
      if (!got.ok()) return got.status();
    }
    // A registration whose answer did not come is not known.
    EXPECT_TRUE(content.values.empty() || data.values == content.values) << name;
    if (!content.report.empty()) {
      const auto transform = client.GetTransform(name);
      EXPECT_TRUE(transform.ok() && transform->report().SerializeAsString() == content.report) << name;
    }
    return absl::OkStatus();
  }

  // Compares everything, and settles what was open.
  void Compare(Client& client, Model& model) {
    for (const auto& [name, content] : model.kept) {
      const absl::Status status = Compare(client, name, content);
      if (!status.ok()) ++lost_;
      EXPECT_TRUE(status.ok()) << name << " was acknowledged: " << status;
      ++compared_[name.substr(0, name.find('/'))];
    }
    for (auto& [name, content] : std::exchange(model.open, {})) {
      const absl::Status status = Compare(client, name, content);
      EXPECT_TRUE(status.ok() || absl::IsNotFound(status)) << name << ": " << status;
      if (status.ok()) model.kept[name] = std::move(content);
    }
  }

  // Takes a session up, sends a frame and closes it. `kept`: what it must go on from. SESSION_NOT_RESUMABLE when it is
  // not there.
  absl::Status GoOn(Client& client, const std::string& id, int64_t kept) {
    v1::NavigateConfig config;
    config.set_session_id(id);
    config.set_resume(true);
    const std::unique_ptr<NavigateStream> stream = client.Navigate(config);
    const absl::Status opened = stream->WaitUntilOpened();
    if (!opened.ok()) return opened;
    EXPECT_GE(stream->opened()->resumed_from_frame(), kept) << id;
    int64_t ignored = 0;
    const absl::Status sent = SendFrame(*stream, 1000, &ignored);
    return sent.ok() ? CloseStream(*stream) : sent;
  }

  // Goes on with every session, and leaves none.
  void CompareSessions(Client& client, Model& model) {
    for (const auto& [id, kept] : std::exchange(model.sessions, {})) {
      const absl::Status status = GoOn(client, id, kept);
      if (!status.ok()) ++lost_;
      EXPECT_TRUE(status.ok()) << id << " was opened: " << status;
      ++compared_["session"];
    }
    for (const std::string& id : std::exchange(model.open_sessions, {})) {
      const absl::Status status = GoOn(client, id, 0);
      EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << id << ": " << status;
    }
    for (const std::string& id : std::exchange(model.closed_sessions, {})) {
      EXPECT_TRUE(absl::IsFailedPrecondition(GoOn(client, id, 0))) << id << " was closed";
      ++compared_["closed session"];
    }
  }

  // Nothing is there that nobody brought.
  void CountObjects(Client& client, const std::vector<std::unique_ptr<Worker>>& workers) {
    std::set<std::string> expected = {"volumes/fixed", "volumes/moving", "sparseMatrices/two", "sparseMatrices/three"};
    for (const auto& worker : workers) {
      for (const auto& [name, content] : worker->model().kept) expected.insert(name);
    }
    std::set<std::string> found;
    const auto volumes = client.ListVolumes();
    const auto matrices = client.ListSparseMatrices();
    const auto transforms = client.ListTransforms();
    ASSERT_TRUE(volumes.ok() && matrices.ok() && transforms.ok());
    for (const auto& volume : *volumes) found.insert(volume.name());
    for (const auto& matrix : *matrices) found.insert(matrix.name());
    for (const auto& transform : *transforms) found.insert(transform.name());
    EXPECT_EQ(found, expected);
  }

  TemporaryFolder folder_;
  std::unique_ptr<Process> server_;
  std::chrono::steady_clock::duration slowest_start_{};
  int lost_ = 0;
  // By kind, over all kills.
  std::map<std::string, int64_t> compared_;
};

TEST_F(KillTest, NothingAcknowledgedIsLost) {
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < kClients; ++i) workers.push_back(std::make_unique<Worker>(i, static_cast<uint32_t>(i + 1)));
  std::mt19937 random(7);
  std::unique_ptr<Client> client = Start();
  PutInputs(*client);
  const int kills = Kills();
  for (int kill = 0; kill < kills && !HasFailure(); ++kill) {
    SCOPED_TRACE(absl::StrCat("kill ", kill));
    std::vector<std::thread> threads;
    for (const auto& worker : workers) threads.emplace_back([&] { worker->Work(*client); });
    // Any moment will do.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 400'000));
    server_->Signal(SIGKILL);
    for (std::thread& thread : threads) thread.join();
    server_->Wait();
    client = Start();
    for (const auto& worker : workers) {
      Compare(*client, worker->model());
      CompareSessions(*client, worker->model());
    }
    CountObjects(*client, workers);
  }
  std::map<std::string, int> acknowledged;
  int total = 0;
  for (const auto& worker : workers) {
    for (const auto& [kind, count] : worker->acknowledged()) {
      acknowledged[kind] += count;
      total += count;
    }
  }
  std::printf("%d kills, %d operations acknowledged, %d lost, slowest start %.0f ms\n", kills, total, lost_,
              std::chrono::duration<double, std::milli>(slowest_start_).count());
  for (const auto& [kind, count] : acknowledged) std::printf("  acknowledged %-14s %d\n", kind.c_str(), count);
  for (const auto& [kind, count] : compared_) {
    std::printf("  came back    %-14s %lld\n", kind.c_str(), static_cast<long long>(count));
  }
  EXPECT_GT(total, kills);
}

v1::RegisterRequest RegistrationOf(const std::string& id) {
  v1::RegisterRequest request;
  request.set_fixed("volumes/fixed");
  request.set_moving("volumes/moving");
  request.set_request_id(id);
  request.set_transform_id(id);
  v1::FfdStage& ffd = *request.mutable_options()->add_stages()->mutable_ffd();
  ffd.set_levels(1);
  ffd.set_iterations(2);
  return request;
}

// Every operation of whose beginning the server has told is there after a kill: DONE with a result that can be had, or
// FAILED for the restart, and then the same request makes what it would have made.
TEST_F(KillTest, AnOperationIsDoneOrFailedAfterAKill) {
  constexpr int kRounds = 8;
  std::mt19937 random(11);
  std::unique_ptr<Client> client = Start();
  PutInputs(*client);
  GridData expected;
  v1::RegisterRequest undisturbed = RegistrationOf("undisturbed");
  undisturbed.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  ASSERT_TRUE(client->Register(undisturbed, nullptr, SinkInto(&expected)).ok());

  int done = 0, failed = 0;
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const std::string ended = absl::StrCat("ended-", round), open = absl::StrCat("open-", round);
    ASSERT_TRUE(client->StartRegister(RegistrationOf(ended)).ok());
    const auto before = client->WaitOperation("operations/" + ended);
    ASSERT_TRUE(before.ok()) << before.status();
    ASSERT_EQ(before->state(), v1::OPERATION_STATE_DONE) << before->ShortDebugString();
    const auto begun = client->StartRegister(RegistrationOf(open));
    ASSERT_TRUE(begun.ok()) << begun.status();
    EXPECT_EQ(begun->name(), "operations/" + open);
    // The kill comes before, within or after the work of `open`.
    if (round > 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 150'000));
    server_->Signal(SIGKILL);
    server_->Wait();
    client = Start();

    const auto after = client->GetOperation("operations/" + ended);
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_EQ(after->SerializeAsString(), before->SerializeAsString());
    auto found = client->GetOperation("operations/" + open);
    ASSERT_TRUE(found.ok()) << found.status();
    if (found->state() == v1::OPERATION_STATE_FAILED) {
      ++failed;
      EXPECT_EQ(ReasonOf(FromRpcStatus(found->error())), "SERVER_RESTARTED") << found->ShortDebugString();
      EXPECT_TRUE(absl::IsNotFound(client->GetTransform("transforms/" + open).status()));
      ASSERT_TRUE(client->StartRegister(RegistrationOf(open)).ok());
      found = client->WaitOperation("operations/" + open);
      ASSERT_TRUE(found.ok()) << found.status();
    } else {
      ++done;
    }
    EXPECT_EQ(found->state(), v1::OPERATION_STATE_DONE) << found->ShortDebugString();
    for (const v1::Operation& operation : {*after, *found}) {
      ASSERT_EQ(operation.results_size(), 1);
      v1::DownloadRequest field;
      field.set_name(operation.results(0));
      field.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
      GridData data;
      const absl::Status got = client->DownloadField(field, SinkInto(&data)).status();
      EXPECT_TRUE(got.ok()) << operation.results(0) << ": " << got;
      EXPECT_EQ(data.values, expected.values) << operation.results(0);
    }
  }
  std::printf("operations under way at a kill: %d done, %d failed\n", done, failed);
}

TEST_F(KillTest, StateCheckVerifiesADirectoryThatNoServerUses) {
  const std::vector<std::string> check = {INTRAWARP_CLI, "state", "check", folder_.path()};
  const std::unique_ptr<Client> client = Start();
  PutInputs(*client);
  const ProcessResult in_use = RunProcess(check);
  EXPECT_EQ(in_use.exit_status, 1);
  EXPECT_THAT(in_use.err, HasSubstr("FAILED_PRECONDITION"));
  server_->Signal(SIGKILL);
  server_->Wait();
  const ProcessResult sound = RunProcess(check);
  EXPECT_EQ(sound.exit_status, 0) << sound.err;
  EXPECT_THAT(sound.out, HasSubstr("4 objects"));

  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "spool")) {
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(7).put('\xa5');
  }
  const ProcessResult damaged = RunProcess(check);
  EXPECT_EQ(damaged.exit_status, 1);
  EXPECT_THAT(damaged.err, HasSubstr("DATA_LOSS"));
  for (const char* name : {"volumes/fixed: spool/", "volumes/moving: spool/", "sparseMatrices/two: spool/"}) {
    EXPECT_THAT(damaged.out, HasSubstr(name));
  }
}

}  // namespace
}  // namespace intrawarp::client
