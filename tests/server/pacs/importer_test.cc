// SPDX-License-Identifier: Apache-2.0
// Imports that end without a volume; how volumes come of them, retrieve_test.cc asks a whole server.
#include "server/pacs/importer.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "server/context/limits.h"
#include "server/status/errors.h"
#include "tests/io/io_test.h"
#include "tests/server/pacs/series_maker.h"
#include "tests/server/partial_context.h"
#include "tests/support/eventually.h"

namespace intrawarp::server {
namespace {

using std::chrono::steady_clock;
using testing::ElementsAre;
using testing::HasSubstr;

// An archive that does what a test says.
class ScriptedSource final : public SeriesSource {
 public:
  using Retrieval = std::function<absl::Status(SeriesIntake&)>;

  explicit ScriptedSource(const Retrieval& retrieval) : retrieval_(retrieval) {}
  absl::Status Echo(const SourceCall& /*call*/) override { return absl::OkStatus(); }
  absl::StatusOr<SeriesMatches> Find(const SeriesQuery& /*query*/, const SourceCall& /*call*/) override {
    return SeriesMatches();
  }
  absl::Status Retrieve(SeriesIntake& intake) override { return retrieval_(intake); }

 private:
  const Retrieval& retrieval_;
};

// Where retrievals wait until the test lets them go on, or their import is cancelled.
class Hold {
 public:
  absl::Status Pass(const SeriesIntake& intake, const absl::Status& end) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      held_.push_back(intake.name().series);
    }
    while (!open_) {
      if (intake.cancelled()) return absl::CancelledError("the intake was cancelled");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return end;
  }
  void Open() { open_ = true; }
  // The series whose retrieval has begun, in their order.
  std::vector<std::string> held() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return held_;
  }
  bool Await(size_t count) const {
    return Eventually([&] { return held().size() >= count; });
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> held_;
  std::atomic<bool> open_{false};
};

class ImporterTest : public io::FileTest {
 protected:
  static LedgerOptions Places() {
    LedgerOptions options;
    options.capacity.operations = 100;
    return options;
  }
  ImporterTest() {
    parts_.seams = &seams_;
    parts_.limits = &limits_;
    context_.emplace(parts_.Make());
    std::filesystem::create_directories(folder_ / "spool");
    std::filesystem::create_directories(folder_ / "made");
    SpoolOptions options;
    options.folder = Path("spool");
    options.max_bytes = 1 << 20;
    spool_ = *InstanceSpool::Open(options);
    maker_ = std::make_unique<VolumeMaker>(*context_, *spool_, metrics_, audit_,
                                           [](const SeriesKey&) { return std::nullopt; });
    std::vector<Archive> archives;
    for (const char* name : {"main", "other"}) {
      Archive archive;
      archive.remote.name = name;
      archive.remote.limits.ae_title = absl::StrCat("remote/", name);
      archive.source = std::make_unique<ScriptedSource>(retrieval_);
      archives.push_back(std::move(archive));
    }
    importer_ = std::make_unique<Importer>(std::move(archives), *spool_, *maker_, metrics_, audit_, nullptr);
  }
  ~ImporterTest() override {
    importer_.reset();
    maker_.reset();
  }

  // Begins an import as the operation `id`.
  void Begin(const std::string& id, const std::string& series, const std::string& archive = "main") {
    RequestKey key;
    key.owner = "ann";
    key.id = id;
    const auto begun = operations_.Begin(OperationKind::kImport, key);
    ASSERT_TRUE(begun.ok()) << begun.status();
    importer_->Begin({*importer_->Find(archive), {kMadeStudy, series}, "ann", begun->work});
  }
  Operation Find(const std::string& id) const { return *operations_.Find(id, kAnn); }
  // The operation once it has ended.
  Operation Await(const std::string& id) {
    EXPECT_TRUE(Eventually([&] { return Find(id).has_ended(); })) << id;
    return Find(id);
  }
  static absl::StatusCode CodeOf(const Operation& operation) {
    return static_cast<absl::StatusCode>(operation.error.code());
  }
  static std::string ReasonIn(const Operation& operation) {
    google::rpc::ErrorInfo info;
    for (const auto& detail : operation.error.details()) {
      if (detail.UnpackTo(&info)) return info.reason();
    }
    return "";
  }
  bool IsCounted(const std::string& outcome, int times) const {
    const std::string line = absl::StrCat("intrawarp_dicom_imports_total{outcome=\"", outcome, "\"} ", times, "\n");
    return registry_.Scrape().find(line) != std::string::npos;
  }
  // Puts a slice into an intake, as a source does.
  static absl::Status Bring(SeriesIntake& intake, int k, const std::string& slice) {
    auto file = intake.NewFile();
    if (!file.ok()) return file.status();
    absl::Status status = (*file)->Append(slice);
    status.Update((*file)->Close());
    if (!status.ok()) return status;
    return intake.Add(InstanceUid(intake.name().series, k), *std::move(file));
  }

  const Identity kAnn{"ann", Role::kStage};
  const Seams seams_ = SystemSeams();
  const ServerLimits limits_;
  Registry registry_;
  const PacsMetrics metrics_{registry_};
  AuditTrail audit_{seams_};
  Ledger ledger_{Places()};
  OperationTable operations_{ledger_, seams_};
  PartialContext parts_;
  std::optional<ServerContext> context_;
  std::unique_ptr<InstanceSpool> spool_;
  std::unique_ptr<VolumeMaker> maker_;
  Hold hold_;
  // Before the first import.
  ScriptedSource::Retrieval retrieval_ = [this](SeriesIntake& intake) {
    return hold_.Pass(intake, absl::NotFoundError("no such series"));
  };
  std::unique_ptr<Importer> importer_;
};

TEST_F(ImporterTest, AnArchiveIsFoundByItsName) {
  EXPECT_EQ((*importer_->Find("other"))->remote.name, "other");
  const absl::Status status = importer_->Find("another").status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_EQ(ReasonOf(status), v1::RESOURCE_NOT_FOUND);
  EXPECT_THAT(std::string(status.message()), HasSubstr("remotes/another"));
  EXPECT_EQ(importer_->archives().size(), 2);
}

TEST(SourceErrors, HaveReasonsForCallers) {
  const std::map<absl::StatusCode, v1::ErrorReason> reasons = {
      {absl::StatusCode::kUnavailable, v1::ARCHIVE_UNAVAILABLE},
      {absl::StatusCode::kDeadlineExceeded, v1::ARCHIVE_TOO_SLOW},
      {absl::StatusCode::kFailedPrecondition, v1::ARCHIVE_REFUSED},
      {absl::StatusCode::kDataLoss, v1::RETRIEVAL_INCOMPLETE},
      {absl::StatusCode::kResourceExhausted, v1::RETRIEVAL_TOO_LARGE}};
  for (const auto& [code, reason] : reasons) {
    const absl::Status status = ForCaller(absl::Status(code, "why"));
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(ReasonOf(status), reason) << status;
    // One that has a reason keeps it.
    EXPECT_EQ(ReasonOf(ForCaller(WithReason(absl::Status(code, "why"), v1::SPOOL_FULL))), v1::SPOOL_FULL);
  }
  for (const absl::Status& other : {absl::OkStatus(), absl::NotFoundError("x"), absl::UnimplementedError("x")}) {
    EXPECT_EQ(ForCaller(other), other);
  }
  EXPECT_EQ(ReasonOf(OfSpool(absl::ResourceExhaustedError("x"))), v1::SPOOL_FULL);
  EXPECT_EQ(ReasonOf(OfSpool(absl::UnavailableError("x"))), v1::SPOOL_UNAVAILABLE);
  EXPECT_EQ(OfSpool(absl::OkStatus()), absl::OkStatus());
  EXPECT_EQ(ReasonOf(IdentityRefused("x")), v1::ARCHIVE_IDENTITY_REFUSED);
  EXPECT_TRUE(absl::IsFailedPrecondition(IdentityRefused("x")));
}

TEST_F(ImporterTest, AnErrorOfTheArchiveEndsTheImport) {
  retrieval_ = [](SeriesIntake&) { return absl::FailedPreconditionError("says no"); };
  Begin("a", "1.2.5.1");
  const Operation operation = Await("a");
  EXPECT_EQ(operation.state, OperationState::kFailed);
  EXPECT_EQ(CodeOf(operation), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonIn(operation), "ARCHIVE_REFUSED");
  EXPECT_TRUE(operation.start_time.has_value());
  EXPECT_TRUE(Eventually([&] { return importer_->running() == 0; }));
  EXPECT_TRUE(IsCounted("failed", 1));
}

TEST_F(ImporterTest, AFullSpoolEndsTheImportInItsOwnWords) {
  retrieval_ = [](SeriesIntake& intake) {
    auto file = intake.NewFile();
    return file.ok() ? OfSpool((*file)->Append(std::string((1 << 20) + 1, 'x'))) : file.status();
  };
  Begin("a", "1.2.5.1");
  const Operation operation = Await("a");
  EXPECT_EQ(CodeOf(operation), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonIn(operation), "SPOOL_FULL");
  EXPECT_TRUE(Eventually([&] { return spool_->bytes() == 0; }));
}

TEST_F(ImporterTest, TheOperationTellsHowManyHaveCome) {
  const std::vector<std::string> slices = MakeSlices(Path("made"), "1.2.5.1", 2);
  retrieval_ = [&](SeriesIntake& intake) {
    intake.set_total(3);
    for (int k = 0; k < 2; ++k) {
      if (const absl::Status status = Bring(intake, k, slices[k]); !status.ok()) return status;
    }
    return hold_.Pass(intake, absl::DataLossError("one is missing"));
  };
  Begin("a", "1.2.5.1");
  ASSERT_TRUE(hold_.Await(1));
  EXPECT_EQ(Find("a").state, OperationState::kRunning);
  EXPECT_EQ(Find("a").progress, (OperationProgress{"receiving", 2, 3, "instances"}));
  EXPECT_EQ(spool_->instances(), 2);
  hold_.Open();
  const Operation operation = Await("a");
  EXPECT_EQ(CodeOf(operation), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReasonIn(operation), "RETRIEVAL_INCOMPLETE");
  EXPECT_TRUE(Eventually([&] { return spool_->instances() == 0; })) << "what has come goes";
}

// The source says that all is well.
TEST_F(ImporterTest, AnInstanceWithTwoContentsEndsTheImport) {
  std::vector<std::string> slices = MakeSlices(Path("made"), "1.2.5.1", 1);
  retrieval_ = [&](SeriesIntake& intake) {
    EXPECT_TRUE(Bring(intake, 0, slices[0]).ok());
    slices[0].back() = static_cast<char>(slices[0].back() + 1);
    EXPECT_TRUE(absl::IsAlreadyExists(Bring(intake, 0, slices[0])));
    return absl::OkStatus();
  };
  Begin("a", "1.2.5.1");
  const Operation operation = Await("a");
  EXPECT_EQ(CodeOf(operation), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReasonIn(operation), "RETRIEVAL_INCOMPLETE");
}

TEST_F(ImporterTest, ASeriesThatAnnouncesMoreMakesNoVolume) {
  const std::vector<std::string> slices = MakeSlices(Path("made"), "1.2.5.1", 3, /*announced=*/5);
  retrieval_ = [&](SeriesIntake& intake) {
    for (int k = 0; k < 3; ++k) EXPECT_TRUE(Bring(intake, k, slices[k]).ok());
    return absl::OkStatus();
  };
  Begin("a", "1.2.5.1");
  const Operation operation = Await("a");
  EXPECT_EQ(CodeOf(operation), absl::StatusCode::kDataLoss) << operation.error.message();
  EXPECT_EQ(ReasonIn(operation), "RETRIEVAL_INCOMPLETE");
  EXPECT_EQ(operation.progress.step, "making volumes");
  EXPECT_EQ(spool_->instances(), 0);
}

TEST_F(ImporterTest, ImportsOfOneSeriesRunOneAfterTheOther) {
  Begin("a", "1.2.5.1");
  ASSERT_TRUE(hold_.Await(1));
  Begin("b", "1.2.5.1");
  Begin("c", "1.2.5.2");
  Begin("d", "1.2.5.1", "other");  // the same series of another archive
  ASSERT_TRUE(hold_.Await(3));
  EXPECT_EQ(importer_->running(), 3);
  EXPECT_EQ(importer_->waiting(), 1);
  EXPECT_EQ(Find("b").state, OperationState::kQueued);
  hold_.Open();
  for (const char* id : {"a", "b", "c", "d"}) EXPECT_EQ(CodeOf(Await(id)), absl::StatusCode::kNotFound) << id;
  EXPECT_EQ(hold_.held().size(), 4);
}

TEST_F(ImporterTest, FourRunAtOnce) {
  for (int k = 0; k < 6; ++k) {
    Begin(absl::StrCat("import", k), absl::StrCat("1.2.5.", k));
    ASSERT_TRUE(hold_.Await(k < 4 ? k + 1 : 4));
  }
  // A fifth would begin meanwhile.
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(importer_->running(), 4);
    ASSERT_EQ(importer_->waiting(), 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  hold_.Open();
  for (int k = 0; k < 6; ++k) Await(absl::StrCat("import", k));
  EXPECT_TRUE(Eventually([&] { return importer_->running() == 0; }));
  EXPECT_TRUE(IsCounted("failed", 6));
}

TEST_F(ImporterTest, AnImportThatWaitsIsCancelledAtOnce) {
  Begin("a", "1.2.5.1");
  ASSERT_TRUE(hold_.Await(1));
  Begin("b", "1.2.5.1");
  ASSERT_TRUE(operations_.Cancel("b", kAnn).ok());
  EXPECT_TRUE(Find("b").has_ended()) << "within the call";
  EXPECT_EQ(CodeOf(Find("b")), absl::StatusCode::kCancelled);
  EXPECT_EQ(importer_->waiting(), 0);
  EXPECT_TRUE(IsCounted("cancelled", 1));
  EXPECT_EQ(Find("a").state, OperationState::kRunning);
  hold_.Open();
  Await("a");
  EXPECT_THAT(hold_.held(), ElementsAre("1.2.5.1")) << "the archive is not asked for it";
}

TEST_F(ImporterTest, AnImportThatRunsIsToldToEnd) {
  Begin("a", "1.2.5.1");
  ASSERT_TRUE(hold_.Await(1));
  ASSERT_TRUE(operations_.Cancel("a", kAnn).ok());
  EXPECT_EQ(CodeOf(Await("a")), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Eventually([&] { return importer_->running() == 0; }));
  EXPECT_TRUE(IsCounted("cancelled", 1));
}

TEST_F(ImporterTest, AStopEndsWhatRunsAndWhatWaits) {
  Begin("a", "1.2.5.1");
  ASSERT_TRUE(hold_.Await(1));
  Begin("b", "1.2.5.1");
  EXPECT_FALSE(importer_->stopping());
  importer_->Stop(steady_clock::now());
  EXPECT_TRUE(importer_->stopping());
  Begin("c", "1.2.5.3");
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_TRUE(Find(id).has_ended()) << id;
    EXPECT_EQ(CodeOf(Find(id)), absl::StatusCode::kUnavailable) << id;
    EXPECT_EQ(ReasonIn(Find(id)), "SERVER_STOPPING") << id;
  }
  const absl::Status status = importer_->Ask([] { ADD_FAILURE(); });
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(ReasonOf(status), v1::SERVER_STOPPING);
  EXPECT_EQ(hold_.held().size(), 1);
  importer_->Stop(steady_clock::now());
}

TEST_F(ImporterTest, AStopGivesImportsTheirTime) {
  Begin("a", "1.2.5.1");
  ASSERT_TRUE(hold_.Await(1));
  std::thread stop([&] { importer_->Stop(steady_clock::now() + std::chrono::hours(1)); });
  EXPECT_FALSE(importer_->stopping());
  hold_.Open();
  stop.join();
  EXPECT_EQ(CodeOf(Find("a")), absl::StatusCode::kNotFound) << "it came to its own end";
  EXPECT_EQ(importer_->running(), 0);
}

TEST_F(ImporterTest, AQuestionRunsOnAnotherThread) {
  std::promise<std::thread::id> asked;
  ASSERT_TRUE(importer_->Ask([&] { asked.set_value(std::this_thread::get_id()); }).ok());
  EXPECT_NE(asked.get_future().get(), std::this_thread::get_id());
}

TEST_F(ImporterTest, QuestionsAreBounded) {
  constexpr int kMost = 32;
  std::promise<void> open;
  const std::shared_future<void> opened = open.get_future().share();
  std::atomic<int> done{0};
  const auto question = [&] {
    opened.wait();
    ++done;
  };
  for (int k = 0; k < kMost; ++k) ASSERT_TRUE(importer_->Ask(question).ok()) << k;
  const absl::Status status = importer_->Ask(question);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ReasonOf(status), v1::QUEUE_FULL);
  // Imports have threads of their own.
  retrieval_ = [](SeriesIntake&) { return absl::NotFoundError("no such series"); };
  Begin("a", "1.2.5.1");
  Await("a");
  open.set_value();
  ASSERT_TRUE(Eventually([&] { return done == kMost; }));
  EXPECT_TRUE(Eventually([&] { return importer_->Ask([] {}).ok(); }));
}

TEST_F(ImporterTest, AStopEndsTheQuestionsThatLookForIt) {
  std::promise<void> begun;
  std::atomic<bool> ended{false};
  ASSERT_TRUE(importer_
                  ->Ask([&] {
                    begun.set_value();
                    while (!importer_->stopping()) std::this_thread::yield();
                    std::this_thread::sleep_for(std::chrono::milliseconds(50));
                    ended = true;
                  })
                  .ok());
  begun.get_future().wait();
  importer_->Stop(steady_clock::now());
  EXPECT_TRUE(ended) << "it waits for them";
}

}  // namespace
}  // namespace intrawarp::server
