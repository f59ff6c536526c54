// SPDX-License-Identifier: Apache-2.0
// The records of calls and frames, on a disk in memory. audit_service_test.cc has refusals, and whole servers.
#include "server/trail/audit_trail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/status/errors.h"
#include "tests/server/state/test_files.h"

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::system_clock;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using Json = nlohmann::ordered_json;

const AuditedCall kCall = {"intrawarp.v1.RegistrationService/Register", "ann", "ipv4:10.0.0.1:5"};

class AuditTrailTest : public testing::Test {
 protected:
  void Open(std::vector<std::pair<std::string, std::string>> notes = {}) {
    audit::AuditOptions options;
    options.directory = "audit";
    options.retry = milliseconds(1);
    ASSERT_TRUE(trail_.Open(files_, options, std::move(notes)).ok());
  }
  // Ends the log: its text.
  std::string Text() {
    trail_.Close();
    const auto file = locked_.Open("audit/audit-00000001.log", state::OpenMode::kRead);
    EXPECT_TRUE(file.ok());
    if (!file.ok()) return "";
    std::string text(static_cast<size_t>(*(*file)->Size()), ' ');
    EXPECT_TRUE((*file)->ReadAt(0, text.data(), text.size()).ok());
    return text;
  }
  // The records between start and stop.
  std::vector<Json> Records() {
    std::vector<Json> records;
    const std::string text = Text();
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      records.push_back(Json::parse(line.substr(audit::kHashDigits + 1)));
    }
    EXPECT_GE(records.size(), 2);
    if (records.size() < 2) return {};
    EXPECT_EQ(records.front()["action"], "start");
    EXPECT_EQ(records.back()["action"], "stop");
    return {records.begin() + 1, records.end() - 1};
  }
  // Waits for the answer of what `begin` begins.
  static absl::Status Answer(const std::function<void(audit::AuditLog::DoneFn)>& begin) {
    const auto answer = std::make_shared<std::promise<absl::Status>>();
    std::future<absl::Status> answered = answer->get_future();
    begin([answer](const absl::Status& status) { answer->set_value(status); });
    return answered.get();
  }
  absl::Status Close(CallAudit& call, const AuditedOutcome& outcome = {}) {
    return Answer(
        [&](audit::AuditLog::DoneFn done) { call.Close(kCall, outcome, milliseconds(250), std::move(done)); });
  }
  absl::Status Begin(CallAudit& call) {
    return Answer([&](audit::AuditLog::DoneFn done) { call.Begin(kCall, std::move(done)); });
  }

  state::MemoryDisk disk_;
  state::LockedFiles locked_{disk_};
  state::FaultyFiles files_{locked_, state::Fault::kBroken};
  Seams seams_ = [] {
    Seams seams = SystemSeams();
    seams.system_now = [] { return system_clock::time_point(std::chrono::seconds(1'700'000'000)); };
    return seams;
  }();
  AuditTrail trail_{seams_};
};

TEST_F(AuditTrailTest, WithoutALogEverythingGoesOn) {
  EXPECT_FALSE(trail_.enabled());
  EXPECT_TRUE(trail_.Available().ok());
  EXPECT_EQ(trail_.NameDigest("volumes/ct"), "");
  EXPECT_EQ(trail_.head().seq, 0);
  EXPECT_EQ(trail_.lost(), 0);
  trail_.Check(std::chrono::steady_clock::now());
  CallAudit call(&trail_), nobodys;
  for (CallAudit* const each : {&call, &nobodys}) {
    each->Digest("fixed", "digest");
    each->Name("fixed", "volumes/ct");
    each->Frame("sessions/s", {}, nullptr);
    bool told = false;
    each->Begin(kCall, [&](const absl::Status& status) { told = status.ok(); });
    EXPECT_TRUE(told) << "at once";
    told = false;
    each->Close(kCall, {}, nanoseconds(0), [&](const absl::Status& status) { told = status.ok(); });
    EXPECT_TRUE(told);
  }
  bool told = false;
  trail_.AppendRefusal(kCall, {"UNAUTHENTICATED", ""}, [&](const absl::Status& status) { told = status.ok(); });
  EXPECT_TRUE(told);
  trail_.Close();
}

TEST_F(AuditTrailTest, TheFirstRecordTellsOfTheServer) {
  Open({{"version", "1.2.3"}});
  EXPECT_TRUE(trail_.enabled());
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr(R"("action":"start","version":"1.2.3")"));
  EXPECT_THAT(text, HasSubstr("2023-11-14T22:13:20.000Z"));
  trail_.Close();
  EXPECT_EQ(Text(), text) << "a second end is none";
}

TEST_F(AuditTrailTest, ACallHasOneRecordWithAllThatItUsed) {
  Open();
  CallAudit call(&trail_);
  call.Trace("0af7651916cd43dd8448eb211c80319c");
  call.Digest("fixed", std::string(32, '\1'));
  call.Name("moving", "volumes/jane-doe");
  v1::FieldRequest options;
  options.set_encoding(v1::FIELD_ENCODING_FLOAT32);
  call.Options(options);
  call.Device("cuda:1");
  EXPECT_TRUE(Close(call, {"NOT_FOUND", "RESOURCE_NOT_FOUND"}).ok());
  const std::string digest = trail_.NameDigest("volumes/jane-doe");
  const std::vector<Json> records = Records();
  ASSERT_THAT(records, SizeIs(1));
  const Json& record = records[0];
  EXPECT_EQ(record["action"], kCall.method);
  EXPECT_EQ(record["who"], "ann");
  EXPECT_EQ(record["peer"], "ipv4:10.0.0.1:5");
  EXPECT_EQ(record["sha256"]["fixed"], absl::BytesToHexString(std::string(32, '\1')));
  EXPECT_EQ(record["names"]["moving"], digest);
  EXPECT_EQ(digest.size(), 32);
  EXPECT_EQ(record["options"]["encoding"], "FIELD_ENCODING_FLOAT32");
  EXPECT_EQ(record["device"], "cuda:1");
  EXPECT_EQ(record["outcome"], "NOT_FOUND");
  EXPECT_EQ(record["reason"], "RESOURCE_NOT_FOUND");
  EXPECT_EQ(record["ms"], 250);
  EXPECT_EQ(record["trace"], "0af7651916cd43dd8448eb211c80319c");
}

TEST_F(AuditTrailTest, ACallThatSendsContentHasTwoRecordsThatBelongTogether) {
  Open();
  CallAudit first(&trail_), second(&trail_);
  EXPECT_TRUE(Begin(first).ok());
  EXPECT_TRUE(Begin(second).ok());
  first.Digest("result", std::string(32, '\2'));
  EXPECT_TRUE(Close(first).ok());
  const std::vector<Json> records = Records();
  ASSERT_THAT(records, SizeIs(3));
  EXPECT_EQ(records[0]["outcome"], "BEGUN");
  EXPECT_FALSE(records[0].contains("ms"));
  EXPECT_EQ(records[2]["outcome"], "OK");
  EXPECT_EQ(records[0]["call"], records[2]["call"]);
  EXPECT_NE(records[0]["call"], records[1]["call"]);
  EXPECT_FALSE(records[0].contains("sha256"));
  EXPECT_TRUE(records[2].contains("sha256")) << "what was told since";
}

v1::Report Report() {
  v1::Report report;
  report.set_device("cpu");
  report.set_verdict(v1::VERDICT_REVIEW);
  report.add_reasons()->set_message("too little overlap");
  report.set_overlap(0.25);
  v1::RegistrationOptions& options = *report.mutable_options();
  options.set_fixed_mask("volumes/jane-doe");
  options.set_moving_mask("volumes/jane-doe");
  options.set_fixed_weight("volumes/jane-doe");
  options.set_moving_weight("volumes/jane-doe");
  options.set_initial_transform("transforms/jane-doe");
  options.mutable_error()->add_points(12345);
  v1::Landmark& landmark = *options.add_landmarks();
  landmark.add_fixed(54321);
  options.mutable_budget()->set_seconds(3);
  return report;
}

TEST_F(AuditTrailTest, AReportTellsOptionsAndQualityAndNoPatient) {
  Open();
  CallAudit call(&trail_);
  call.Report(Report());
  EXPECT_TRUE(Close(call).ok());
  const std::vector<Json> records = Records();
  ASSERT_THAT(records, SizeIs(1));
  EXPECT_EQ(records[0]["device"], "cpu");
  EXPECT_EQ(records[0]["options"], Json::parse(R"({"budget":"3s"})"));
  EXPECT_EQ(records[0]["quality"]["verdict"], "VERDICT_REVIEW");
  EXPECT_EQ(records[0]["quality"]["overlap"], 0.25);
  EXPECT_EQ(records[0]["quality"]["reasons"][0]["message"], "too little overlap");
  const std::string text = Text();
  for (const char* const secret : {"jane-doe", "12345", "54321"}) EXPECT_THAT(text, Not(HasSubstr(secret)));
}

// A start that is a matrix is the server's to tell.
TEST_F(AuditTrailTest, AStartByItsNumbersIsAnOption) {
  Open();
  v1::Report report = Report();
  report.mutable_options()->mutable_initial_affine()->add_values(1.5);
  CallAudit call(&trail_);
  call.Report(report);
  EXPECT_TRUE(Close(call).ok());
  EXPECT_EQ(Records()[0]["options"]["initial_affine"]["values"][0], 1.5);
}

TEST_F(AuditTrailTest, EachFrameHasARecord) {
  Open();
  CallAudit call(&trail_);
  call.Trace("0af7");
  call.Digest("fixed", std::string(32, '\1'));
  const v1::Report report = Report();
  call.Frame("sessions/or3", {7, 0xbeef, absl::OkStatus(), milliseconds(40)}, &report);
  call.Frame("sessions/or3",
             {8, 0, WithReason(absl::DeadlineExceededError("late"), v1::DEADLINE_PASSED), milliseconds(90)}, nullptr);
  call.Frame("sessions/or3", {9, 0, absl::OkStatus(), milliseconds(40), {{"mask", std::string(32, '\2')}}}, &report);
  const std::string digest = trail_.NameDigest("sessions/or3");
  const std::vector<Json> records = Records();
  ASSERT_THAT(records, SizeIs(3));
  EXPECT_EQ(records[0]["action"], "frame");
  EXPECT_EQ(records[0]["frame"], 7);
  EXPECT_EQ(records[0]["crc32c"], "0000beef");
  EXPECT_EQ(records[0]["outcome"], "OK");
  EXPECT_EQ(records[0]["ms"], 40);
  EXPECT_EQ(records[0]["device"], "cpu");
  EXPECT_EQ(records[0]["quality"]["overlap"], 0.25);
  EXPECT_EQ(records[0]["names"], Json({{"session", digest}}));
  EXPECT_EQ(records[0]["trace"], "0af7");
  EXPECT_FALSE(records[0].contains("sha256") || records[0].contains("reason") || records[0].contains("options"));
  EXPECT_EQ(records[1]["outcome"], "DEADLINE_EXCEEDED");
  EXPECT_EQ(records[1]["reason"], "DEADLINE_PASSED");
  EXPECT_FALSE(records[1].contains("quality"));
  std::string mask;
  for (int i = 0; i < 32; ++i) mask += "02";
  EXPECT_EQ(records[2]["sha256"], Json({{"mask", mask}}));
}

TEST_F(AuditTrailTest, WhileNothingCanBeWrittenCallsAreToldSo) {
  Open();
  CallAudit before(&trail_);
  EXPECT_TRUE(Close(before).ok());
  files_.set_fails_writes(true);
  CallAudit during(&trail_);
  EXPECT_TRUE(absl::IsUnavailable(Close(during)));
  const absl::Status status = trail_.Available();
  EXPECT_EQ(ReasonOf(status), v1::AUDIT_UNAVAILABLE) << status;
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status, Unrecorded());
  files_.set_fails_writes(false);
  while (!trail_.Available().ok()) std::this_thread::yield();
  EXPECT_THAT(Records(), SizeIs(2)) << "it is written once the disk is back";
}

TEST_F(AuditTrailTest, ACallIsToldOfFromManyThreads) {
  Open();
  CallAudit call(&trail_);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        call.Name(absl::StrCat("role-", t, "-", i), "volumes/x");
        call.Frame("sessions/s", {t * 25 + i, 0, absl::OkStatus(), nanoseconds(0)}, nullptr);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Close(call).ok());
  const std::vector<Json> records = Records();
  ASSERT_THAT(records, SizeIs(101));
  EXPECT_EQ(records.back()["names"].size(), 100);
}

TEST(IsExport, IsOfMethodsThatAreRecordedToo) {
  int exports = 0;
  for (const char* const method :
       {"intrawarp.v1.BulkService/Download", "intrawarp.v1.BulkService/Upload",
        "intrawarp.v1.RegistrationService/Register", "intrawarp.v1.RegistrationService/Navigate",
        "intrawarp.v1.SparseMatrixService/Multiply", "intrawarp.v1.TransformService/WarpVolume",
        "intrawarp.v1.TransformService/MapPoints", "intrawarp.v1.VolumeService/DeleteVolume"}) {
    EXPECT_TRUE(IsAudited(method)) << method;
    exports += IsExport(method) ? 1 : 0;
  }
  EXPECT_EQ(exports, 4);
  EXPECT_TRUE(IsExport("intrawarp.v1.BulkService/Download"));
  EXPECT_FALSE(IsExport("intrawarp.v1.BulkService/Upload"));
  EXPECT_FALSE(IsExport("") || IsAudited("") || IsAudited("intrawarp.v1.BulkService/"));
}

TEST(CodeName, IsGrpcs) {
  EXPECT_EQ(CodeName(0), "OK");
  EXPECT_EQ(CodeName(5), "NOT_FOUND");
  EXPECT_EQ(CodeName(16), "UNAUTHENTICATED");
}

}  // namespace
}  // namespace intrawarp::server
