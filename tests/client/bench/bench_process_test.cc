// SPDX-License-Identifier: Apache-2.0
// intrawarp bench against a server on the CPU, both as processes. No time is asserted: the machine may be busy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/client/process.h"
#include "tests/support/eventually.h"
#include "tests/support/server_process.h"

namespace intrawarp::client {
namespace {

using ::testing::HasSubstr;

class CliBenchTest : public testing::Test {
 protected:
  void SetUp() override {
    server_ = std::make_unique<ServerProcess>(INTRAWARPD, ServerFlags());
    address_ = server_->grpc();
    ASSERT_FALSE(address_.empty());
  }

  virtual std::vector<std::string> ServerFlags() const { return {"--max_sessions=2"}; }

  // Whatever a test did, nothing is left.
  void TearDown() override {
    // A call has ended for its client a moment before it has for the server.
    std::string info;
    (void)Eventually([&] {
      info = Info();
      return info.find("uploads 0, streams 0, jobs 0") != std::string::npos;
    });
    EXPECT_THAT(info, HasSubstr("resident: 0 of"));
    EXPECT_THAT(info, HasSubstr("volumes 0, transforms 0, matrices 0"));
    EXPECT_THAT(info, HasSubstr("uploads 0, streams 0, jobs 0"));
    server_->Stop();
  }

  std::string Info() const { return RunProcess({INTRAWARP_CLI, "--server=" + address_, "server", "info"}).out; }

  std::vector<std::string> Command(const std::vector<std::string>& arguments) const {
    std::vector<std::string> all = {INTRAWARP_CLI, "--server=" + address_, "bench"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return all;
  }

  // Runs what has to succeed; what it wrote as JSON.
  nlohmann::json Succeed(std::vector<std::string> arguments) {
    arguments.push_back("--json=" + (folder_ / "bench.json"));
    const ProcessResult result = RunProcess(Command(arguments));
    EXPECT_EQ(result.exit_status, 0) << result.out;
    EXPECT_EQ(result.err, "");
    out_ = result.out;
    nlohmann::json json = nlohmann::json::parse(FileContents(folder_ / "bench.json"), nullptr, false);
    EXPECT_FALSE(json.is_discarded());
    EXPECT_EQ(json["not_deleted"], 0);
    return json;
  }

  void Wrong(const std::vector<std::string>& arguments, const std::string& cause) const {
    const ProcessResult result = RunProcess(Command(arguments));
    EXPECT_EQ(result.exit_status, 2) << cause;
    EXPECT_THAT(result.err, HasSubstr(cause));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }

  // Every call has one fate, and the list of calls agrees with the counts.
  static void ExpectCallsAddUp(const nlohmann::json& load) {
    const nlohmann::json& calls = load["calls"];
    int64_t sum = 0;
    for (const auto& [fate, count] : calls.items()) {
      if (fate == "due") continue;
      sum += count.get<int64_t>();
      EXPECT_EQ(std::count(load["each"]["fate"].begin(), load["each"]["fate"].end(), fate), count) << fate;
    }
    EXPECT_EQ(sum, calls["due"]);
    EXPECT_GT(calls["ok"], 0);
    EXPECT_EQ(load["latency_ms"]["count"], calls["ok"]);
    EXPECT_EQ(load["server_ms"]["total"]["count"], calls["ok"]);
    EXPECT_EQ(load["verdicts"]["ok"].get<int64_t>() + load["verdicts"]["review"].get<int64_t>(), calls["ok"]);
    // What a server measures is a part of what its client does.
    EXPECT_LT(load["server_ms"]["total"]["mean"], load["from_send_ms"]["mean"]);
    EXPECT_LE(load["from_send_ms"]["mean"], load["latency_ms"]["mean"]);
  }

  // What the server counted is what the client sent, with the frame that opened each session.
  static void ExpectTheServerAgrees(const nlohmann::json& load) {
    const nlohmann::json& calls = load["calls"];
    int64_t frames = 0, good = 0;
    for (const nlohmann::json& session : load["sessions"]) {
      ASSERT_FALSE(session.is_null());
      for (const auto& [fate, count] : session["frames"].items()) frames += count.get<int64_t>();
      good += session["frames"]["ok"].get<int64_t>() + session["frames"]["late"].get<int64_t>();
    }
    const auto sessions = static_cast<int64_t>(load["sessions"].size());
    EXPECT_EQ(frames, calls["due"].get<int64_t>() - calls["not_sent"].get<int64_t>() + sessions);
    EXPECT_EQ(good, calls["ok"].get<int64_t>() + sessions);
  }

  TemporaryFolder folder_;
  std::unique_ptr<ServerProcess> server_;
  std::string address_;
  std::string out_;
};

TEST_F(CliBenchTest, AnOpenLoopOfSessionsBesideEveryFlood) {
  const nlohmann::json json =
      Succeed({"--sessions=2", "--size=24", "--rate=4", "--seconds=3", "--iterations=5", "--field_encoding=int16",
               "--fem_products=1", "--random_products=1", "--matrix_rows=300", "--uploads=2", "--upload_mb=1",
               "--registrations=1", "--registration_method=affine", "--warmup=0.5", "--grace=60",
               "--plot=" + (folder_ / "bench.svg")});
  const nlohmann::json& load = json["load"];
  ExpectCallsAddUp(load);
  ExpectTheServerAgrees(load);
  // Four a second for three seconds, by schedule and not by answers.
  EXPECT_EQ(load["calls"]["due"], 24);
  const int64_t sent = load["calls"]["due"].get<int64_t>() - load["calls"]["not_sent"].get<int64_t>();
  EXPECT_EQ(load["bytes_sent"], sent * 24 * 24 * 24 * 2);
  EXPECT_EQ(load["bytes_received"], load["calls"]["ok"].get<int64_t>() * 24 * 24 * 24 * 3 * 2);
  ASSERT_EQ(json["floods"].size(), 4u);
  for (const nlohmann::json& flood : json["floods"]) {
    EXPECT_GT(flood["done"], 0) << flood["name"];
    EXPECT_TRUE(flood["failed"].empty()) << flood;
  }
  EXPECT_GE(json["floods"][2]["bytes_sent"].get<int64_t>(), json["floods"][2]["done"].get<int64_t>() * 1000000);
  EXPECT_THAT(FileContents(folder_ / "bench.svg"), testing::StartsWith("<svg "));
  EXPECT_THAT(out_, HasSubstr("client, from due"));
  EXPECT_THAT(out_, HasSubstr("flood registrations: 1 clients"));
}

TEST_F(CliBenchTest, AClosedLoopWaitsForEveryAnswer) {
  const nlohmann::json load = Succeed(
      {"--size=24", "--seconds=2", "--method=affine,ffd", "--iterations=3", "--field_encoding=control_points"})["load"];
  ExpectCallsAddUp(load);
  ExpectTheServerAgrees(load);
  EXPECT_EQ(load["calls"]["ok"], load["calls"]["due"]);
  EXPECT_TRUE(load["limit_ms"].is_null());
  EXPECT_GT(load["bytes_received"], 0);
  // A frame is due when the one before is answered.
  const nlohmann::json& each = load["each"];
  for (size_t i = 1; i < each["due_s"].size(); ++i) EXPECT_GE(each["due_s"][i], each["answered_s"][i - 1]);
}

TEST_F(CliBenchTest, RegistrationsAreALoadToo) {
  const nlohmann::json load =
      Succeed({"--load=register", "--sessions=2", "--size=24", "--seconds=2", "--iterations=5"})["load"];
  ExpectCallsAddUp(load);
  EXPECT_EQ(load["calls"]["ok"], load["calls"]["due"]);
  EXPECT_TRUE(load["sessions"][0].is_null());
}

TEST_F(CliBenchTest, ALoadThatIsTooMuchIsLateAndNoFailure) {
  // A frame a millisecond, and a deadline that no registration keeps.
  const nlohmann::json load =
      Succeed({"--size=32", "--seconds=1", "--rate=1000", "--deadline_ms=1", "--latest"})["load"];
  const nlohmann::json& calls = load["calls"];
  EXPECT_EQ(calls["due"], 1000);
  EXPECT_EQ(calls["failed"], 0);
  EXPECT_EQ(calls["unanswered"], 0);
  EXPECT_GT(calls["missed"].get<int64_t>() + calls["refused"].get<int64_t>() + calls["superseded"].get<int64_t>() +
                calls["not_sent"].get<int64_t>(),
            0);
  EXPECT_LT(load["in_time"], 1000);
}

// With a server that shares memory with its clients.
class SharedMemoryBenchTest : public CliBenchTest {
 protected:
  std::vector<std::string> ServerFlags() const override {
    return {"--max_sessions=2", "--shared_memory=" + (folder_ / "segments")};
  }
};

TEST_F(SharedMemoryBenchTest, FramesAndFieldsGoThroughSharedMemory) {
  for (const bool is_open_loop : {true, false}) {
    std::vector<std::string> arguments = {"--sessions=2",   "--size=24",  "--seconds=2",
                                          "--iterations=3", "--grace=60", "--field_encoding=int16",
                                          "--shared_memory"};
    if (is_open_loop) arguments.push_back("--rate=4");
    const nlohmann::json json = Succeed(arguments);
    const nlohmann::json& load = json["load"];
    ExpectCallsAddUp(load);
    ExpectTheServerAgrees(load);
    EXPECT_EQ(json["options"]["shared_memory"], true);
    const nlohmann::json& transfers = load["transfers"];
    const int64_t sent = load["calls"]["due"].get<int64_t>() - load["calls"]["not_sent"].get<int64_t>();
    // Each session begins with a frame that is not counted.
    EXPECT_EQ(transfers["frames_shared"], sent + 2);
    EXPECT_EQ(transfers["frames_in_chunks"], 0);
    EXPECT_EQ(transfers["fields_shared"].get<int64_t>() + transfers["fields_in_chunks"].get<int64_t>(),
              load["calls"]["ok"].get<int64_t>() + 2);
    EXPECT_GT(transfers["fields_shared"], 0);
    EXPECT_EQ(load["bytes_sent"], sent * 24 * 24 * 24 * 2);
    EXPECT_EQ(load["bytes_received"], load["calls"]["ok"].get<int64_t>() * 24 * 24 * 24 * 3 * 2);
    EXPECT_THAT(out_, HasSubstr(", through shared memory"));
    EXPECT_THAT(out_, HasSubstr(absl::StrCat("shared memory: ", sent + 2, " frames and ")));
  }
}

TEST_F(CliBenchTest, AServerThatSharesNoMemoryFailsALoadThroughIt) {
  const ProcessResult result = RunProcess(Command({"--size=24", "--seconds=1", "--iterations=3", "--shared_memory"}));
  EXPECT_EQ(result.exit_status, 1) << result.out;
  EXPECT_THAT(result.err, HasSubstr("FAILED_PRECONDITION"));
  EXPECT_THAT(result.err, HasSubstr("SHARED_MEMORY_UNAVAILABLE"));
  EXPECT_TRUE(Succeed({"--size=24", "--seconds=1", "--iterations=3"})["load"]["transfers"].is_null());
}

TEST_F(CliBenchTest, RefusedSessionsAreCounted) {
  const nlohmann::json json = Succeed({"--sessions=3", "--size=24", "--rate=2", "--seconds=1", "--iterations=3"});
  EXPECT_EQ(json["load"]["clients"], 3);
  EXPECT_EQ(json["load"]["not_opened"]["RESOURCE_EXHAUSTED TOO_MANY_SESSIONS"], 1);
  EXPECT_EQ(json["load"]["calls"]["due"], 4);
}

TEST_F(CliBenchTest, CapacityEndsAtWhatTheServerTakes) {
  const nlohmann::json json = Succeed({"--find_capacity", "--sizes=16,24", "--methods=affine", "--rate=1",
                                       "--seconds=1", "--iterations=2", "--limit_ms=100000", "--max_sessions=8"});
  ASSERT_EQ(json["capacity"].size(), 2u);
  for (const nlohmann::json& row : json["capacity"]) {
    // The third session is refused.
    EXPECT_EQ(row["sessions"], 2) << row;
    EXPECT_EQ(row["open"], false);
    ASSERT_EQ(row["steps"].size(), 3u);
    EXPECT_EQ(row["steps"][2]["not_opened"]["RESOURCE_EXHAUSTED TOO_MANY_SESSIONS"], 1);
  }
  EXPECT_THAT(out_, HasSubstr("\n|---|"));
  EXPECT_THAT(out_, HasSubstr("| 24^3 | affine | none | 2 |"));
}

TEST_F(CliBenchTest, AnInterruptEndsItAndLeavesNothing) {
  Process bench(Command({"--sessions=2", "--size=24", "--rate=5", "--seconds=3600", "--fem_products=1",
                         "--matrix_rows=300", "--uploads=2", "--upload_mb=8", "--registrations=1",
                         "--registration_method=affine", "--json=" + (folder_ / "bench.json")}));
  // Until the load runs: sessions and floods hold streams.
  EXPECT_TRUE(Eventually([&] { return Info().find("streams 0") == std::string::npos; }));
  std::this_thread::sleep_for(std::chrono::seconds(2));
  bench.Signal(SIGINT);
  const ProcessResult result = bench.Wait();
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_EQ(result.err, "intrawarp: CANCELLED: interrupted\n");
}

TEST_F(CliBenchTest, AServerThatGoesAwayIsAFailure) {
  ServerProcess other(INTRAWARPD);
  const std::string address = other.grpc();
  Process bench({INTRAWARP_CLI, "--server=" + address, "bench", "--size=24", "--rate=5", "--seconds=3600",
                 "--iterations=3", "--json=" + (folder_ / "gone.json")});
  EXPECT_TRUE(Eventually([&] {
    const std::string info = RunProcess({INTRAWARP_CLI, "--server=" + address, "server", "info"}).out;
    return info.find("streams 0") == std::string::npos;
  }));
  other.process().Signal(SIGKILL);
  const ProcessResult result = bench.Wait();
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.err, testing::StartsWith("intrawarp: UNAVAILABLE: "));
}

TEST_F(CliBenchTest, WrongCommandLinesAreNamed) {
  Wrong({"--sessions=0"}, "--sessions: must be at least 1");
  Wrong({"--seconds=1e9"}, "--seconds: must be at most 3600");
  Wrong({"--method=snake"}, "--method: ");
  Wrong({"--upload_mb=3"}, "--upload_mb: only --uploads uses it");
  Wrong({"--json=out.txt"}, "--json: must end in .json");
  Wrong({"--plot=out.png"}, "--plot: must end in .svg");
  Wrong({"--nothing"}, "--nothing: unknown option");
  const ProcessResult elsewhere = RunProcess({INTRAWARP_CLI, "--server=192.0.2.1:50051", "bench"});
  EXPECT_EQ(elsewhere.exit_status, 2);
  EXPECT_THAT(elsewhere.err, HasSubstr("--any_address: "));
}

}  // namespace
}  // namespace intrawarp::client
