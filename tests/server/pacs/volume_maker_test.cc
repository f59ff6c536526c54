// SPDX-License-Identifier: Apache-2.0
// Series that become no volume here; those that do, storage_test.cc and retrieve_test.cc ask a whole server for.
#include "server/pacs/volume_maker.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/context/limits.h"
#include "server/status/errors.h"
#include "tests/io/io_test.h"
#include "tests/server/pacs/series_maker.h"
#include "tests/server/partial_context.h"
#include "tests/support/eventually.h"

namespace intrawarp::server {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::IsEmpty;
using Time = std::chrono::steady_clock::time_point;

class VolumeMakerTest : public io::FileTest {
 protected:
  VolumeMakerTest() {
    seams_.steady_now = [this] { return Time(now_.load()); };
    parts_.seams = &seams_;
    parts_.limits = &limits_;
    context_.emplace(parts_.Make());
    std::filesystem::create_directories(folder_ / "spool");
    std::filesystem::create_directories(folder_ / "made");
    SpoolOptions options;
    options.folder = Path("spool");
    options.max_bytes = 1 << 20;
    options.quiet = seconds(2);
    options.patience = std::chrono::minutes(10);
    options.now = seams_.steady_now;
    spool_ = *InstanceSpool::Open(options);
    maker_ = std::make_unique<VolumeMaker>(
        *context_, *spool_, metrics_, audit_,
        [this](const SeriesKey&) { return has_owner_ ? std::optional<std::string>("ann") : std::nullopt; },
        [this](int64_t bytes) { return Room(bytes); });
  }
  ~VolumeMakerTest() override { maker_.reset(); }

  // Slices of a series that somebody waits for.
  std::unique_ptr<GatheredSeries> Gathered(const std::string& uid, const std::vector<std::string>& files) {
    auto series = *spool_->NewSeries({"remote/main", uid});
    for (size_t k = 0; k < files.size(); ++k) {
      auto file = *spool_->NewPassingFile(peer_);
      EXPECT_TRUE(file->Append(files[k]).ok() && file->Close().ok());
      EXPECT_TRUE(spool_->AddTo(*series, absl::StrCat("instance", k), std::move(file)).ok());
    }
    return series;
  }
  // A series that peers have sent, ready once the spool is asked.
  void Spool(const std::string& uid, const std::vector<std::string>& files, int64_t association) {
    for (size_t k = 0; k < files.size(); ++k) {
      auto file = *spool_->NewFile(peer_);
      EXPECT_TRUE(file->Append(files[k]).ok() && file->Close().ok());
      EXPECT_TRUE(spool_
                      ->Add({peer_.ae_title, uid}, absl::StrCat(uid, k), std::move(file), association,
                            static_cast<int64_t>(files.size()))
                      .ok());
    }
    spool_->EndAssociation(association, /*complete=*/true, association);
  }
  std::vector<std::string> Slices(int count, int announced = 0) {
    return MakeSlices(Path("made"), "1.2.5.1", count, announced);
  }
  // An order whose outcome `ended` has.
  SeriesOrder Order() {
    SeriesOrder order;
    order.owner = "ann";
    order.done = [this](const SeriesOutcome& outcome) {
      instances_at_end_ = spool_->instances();
      end_thread_ = std::this_thread::get_id();
      ended_.set_value(outcome);
    };
    return order;
  }
  SeriesOutcome Await() { return ended_.get_future().get(); }
  double Metric(const std::string& outcome) const {
    const std::string text = registry_.Scrape(), line = absl::StrCat("volumes_total{outcome=\"", outcome, "\"} ");
    const size_t at = text.find(line);
    return at == std::string::npos ? -1 : std::atof(text.c_str() + at + line.size());
  }
  bool Becomes(const std::string& outcome, double times) const {
    return Eventually([&] { return Metric(outcome) == times; });
  }
  void Advance(std::chrono::nanoseconds by) { now_ = now_.load() + by; }

  // Memory to read files.
  absl::StatusOr<std::shared_ptr<const void>> Room(int64_t /*bytes*/) {
    ++asked_;
    std::lock_guard<std::mutex> lock(mutex_);
    if (!room_.ok()) return room_;
    return std::make_shared<int>(0);
  }
  void SetRoom(const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    room_ = status;
  }

  const DicomPeer peer_{"PEER", "127.0.0.1", ""};
  std::atomic<std::chrono::nanoseconds> now_{std::chrono::hours(1)};
  std::atomic<bool> has_owner_{true};
  std::atomic<int> asked_{0};
  std::mutex mutex_;
  absl::Status room_;
  Seams seams_ = SystemSeams();
  const ServerLimits limits_;
  Registry registry_;
  const PacsMetrics metrics_{registry_};
  AuditTrail audit_{seams_};
  PartialContext parts_;
  std::optional<ServerContext> context_;
  std::unique_ptr<InstanceSpool> spool_;
  std::promise<SeriesOutcome> ended_;
  int64_t instances_at_end_ = -1;
  std::thread::id end_thread_;
  std::unique_ptr<VolumeMaker> maker_;
};

const absl::Status kOthersHaveIt = WithReason(absl::ResourceExhaustedError("others have it"), v1::RESIDENT_MEMORY);

TEST_F(VolumeMakerTest, ASeriesWithFewerImagesThanTheyAnnounceIsRefused) {
  maker_->Make(Gathered("ab", Slices(3, /*announced=*/5)), Order());
  const SeriesOutcome outcome = Await();
  EXPECT_TRUE(absl::IsDataLoss(outcome.status)) << outcome.status;
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("slices: "));
  EXPECT_THAT(outcome.volumes, IsEmpty());
  EXPECT_EQ(outcome.key, (SeriesKey{"remote/main", "ab"}));
  EXPECT_EQ(instances_at_end_, 0) << "the files go before it is told";
  EXPECT_NE(end_thread_, std::this_thread::get_id());
  EXPECT_EQ(Metric("incomplete"), 1);
}

TEST_F(VolumeMakerTest, FilesThatAreNoImagesMakeNoVolume) {
  maker_->Make(Gathered("ab", {"neither", "DICOM"}), Order());
  EXPECT_THAT(Await().volumes, IsEmpty());
  EXPECT_EQ(instances_at_end_, 0);
}

// The reader refuses a gap by its rules.
TEST_F(VolumeMakerTest, AGapIsRefused) {
  std::vector<std::string> slices = Slices(5);
  slices.erase(slices.begin() + 1);
  maker_->Make(Gathered("ab", slices), Order());
  EXPECT_FALSE(Await().status.ok());
  EXPECT_EQ(Metric("refused"), 1);
  EXPECT_EQ(Metric("incomplete"), 0);
}

TEST_F(VolumeMakerTest, NobodyWantsItAnyMore) {
  SeriesOrder order = Order();
  order.cancelled = [] { return true; };
  maker_->Make(Gathered("ab", Slices(3)), std::move(order));
  EXPECT_TRUE(absl::IsCancelled(Await().status));
  EXPECT_EQ(instances_at_end_, 0);
  EXPECT_EQ(asked_, 0) << "nothing is read for it";
}

TEST_F(VolumeMakerTest, AfterAStopAnOrderEndsInItsCall) {
  maker_->Stop();
  maker_->Make(Gathered("ab", Slices(3)), Order());
  EXPECT_EQ(end_thread_, std::this_thread::get_id());
  const SeriesOutcome outcome = Await();
  EXPECT_TRUE(absl::IsUnavailable(outcome.status)) << outcome.status;
  EXPECT_EQ(ReasonOf(outcome.status), v1::SERVER_STOPPING);
  EXPECT_EQ(spool_->instances(), 0);
  maker_->Stop();
}

TEST_F(VolumeMakerTest, AStopEndsTheOrdersThatWait) {
  SetRoom(kOthersHaveIt);
  maker_->Make(Gathered("ab", Slices(3)), Order());
  ASSERT_TRUE(Becomes("deferred", 1));
  maker_->Stop();
  EXPECT_EQ(ReasonOf(Await().status), v1::SERVER_STOPPING);
  EXPECT_EQ(spool_->instances(), 0);
}

TEST_F(VolumeMakerTest, AnOrderWithoutMemoryIsTriedAgainForAMinute) {
  SetRoom(kOthersHaveIt);
  maker_->Make(Gathered("ab", Slices(3)), Order());
  ASSERT_TRUE(Becomes("deferred", 1));
  // Others have their turn.
  std::promise<SeriesOutcome> other;
  SeriesOrder order = Order();
  order.done = [&](const SeriesOutcome& outcome) { other.set_value(outcome); };
  order.cancelled = [] { return true; };
  maker_->Make(Gathered("cd", Slices(1)), std::move(order));
  EXPECT_TRUE(absl::IsCancelled(other.get_future().get().status));
  int asked = asked_;
  Advance(seconds(5));
  ASSERT_TRUE(Eventually([&] { return asked_ > asked; })) << "after a pause";
  EXPECT_EQ(instances_at_end_, -1);
  asked = asked_;
  Advance(seconds(60));
  const SeriesOutcome outcome = Await();
  EXPECT_EQ(ReasonOf(outcome.status), v1::RESIDENT_MEMORY) << outcome.status;
  EXPECT_GT(asked_, asked);
  EXPECT_EQ(Metric("deferred"), 1) << "it is counted once";
  EXPECT_EQ(spool_->instances(), 0);
}

TEST_F(VolumeMakerTest, AnOrderThatWaitsEndsOnceNobodyWantsIt) {
  SetRoom(kOthersHaveIt);
  std::atomic<bool> cancelled{false};
  SeriesOrder order = Order();
  order.cancelled = [&] { return cancelled.load(); };
  maker_->Make(Gathered("ab", Slices(3)), std::move(order));
  ASSERT_TRUE(Becomes("deferred", 1));
  cancelled = true;
  EXPECT_TRUE(absl::IsCancelled(Await().status)) << "without its pause";
}

// An image stays if its sender was told that it is stored.
TEST_F(VolumeMakerTest, ASeriesOfTheSpoolWithoutMemoryStaysThere) {
  SetRoom(kOthersHaveIt);
  Spool("ab", Slices(3), 1);
  ASSERT_TRUE(Becomes("deferred", 1));
  EXPECT_TRUE(Eventually([&] { return spool_->instances() == 3; }));
  const int asked = asked_;
  Advance(seconds(30));
  ASSERT_TRUE(Eventually([&] { return asked_ > asked; })) << "it is tried again after a pause";
  maker_->Stop();
  EXPECT_EQ(spool_->instances(), 3);
  EXPECT_EQ(spool_->unmade_instances(), 0);
  EXPECT_EQ(Metric("deferred"), 1);
}

TEST_F(VolumeMakerTest, ASeriesOfTheSpoolThatIsRefusedIsSettledThere) {
  Spool("ab", Slices(3, /*announced=*/5), 1);
  ASSERT_TRUE(Becomes("incomplete", 1));
  EXPECT_TRUE(Eventually([&] { return spool_->unmade_instances() == 3; })) << "a late image may come";
  EXPECT_EQ(spool_->made_instances(), 0);
}

TEST_F(VolumeMakerTest, ASeriesWhosePeerIsNotListedIsNotRead) {
  has_owner_ = false;
  Spool("ab", Slices(3), 1);
  EXPECT_TRUE(Eventually([&] { return spool_->unmade_instances() == 3; }));
  EXPECT_EQ(asked_, 0);
}

// Its association broke off, and nobody sends it again.
TEST_F(VolumeMakerTest, ASeriesThatIsGivenUpMakesNoVolume) {
  const std::vector<std::string> slices = Slices(3);
  auto file = *spool_->NewFile(peer_);
  ASSERT_TRUE(file->Append(slices[0]).ok() && file->Close().ok());
  ASSERT_TRUE(spool_->Add({peer_.ae_title, "ab"}, "1", std::move(file), 1).ok());
  spool_->EndAssociation(1, /*complete=*/false, 1);
  Advance(std::chrono::minutes(11));
  ASSERT_TRUE(Becomes("incomplete", 1));
  EXPECT_EQ(asked_, 0);
}

}  // namespace
}  // namespace intrawarp::server
