// SPDX-License-Identifier: Apache-2.0
// An object of a kind of the test's own, on a scheduler and a copy lane of every device present.
#include "server/object/make_object.h"

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/schedule/copy_lane.h"
#include "engine/schedule/scheduler.h"
#include "server/device/device_set.h"
#include "server/store/transform_store.h"
#include "tests/engine/device_test.h"
#include "tests/server/partial_context.h"

namespace intrawarp::server {
namespace {

// Brings its bytes to the device and back.
class FakeObject final : public NewObjectOf<StoredTransform> {
 public:
  FakeObject(ObjectSpec spec, std::optional<int64_t> workspace_bytes)
      : NewObjectOf(std::move(spec)), workspace_bytes_(workspace_bytes) {}

  absl::Status Validate(const void*) const override { return absl::OkStatus(); }
  std::optional<int64_t> JobWorkspaceBytes() const override { return workspace_bytes_; }
  absl::Status Make(const ExecContext& ctx, StagedUpload& upload) override {
    made = std::string(static_cast<size_t>(spec().total_bytes), '?');
    INTRAWARP_ASSIGN_OR_RETURN(Buffer buffer, ctx.device().Allocate(made.size(), ctx.stream()));
    INTRAWARP_RETURN_IF_ERROR(upload.CopyTo(ctx, buffer.as<void>(), 0, spec().total_bytes));
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(made.data(), buffer.as<void>(), made.size(), ctx.stream()));
    return ctx.device().Synchronize(ctx.stream());
  }
  absl::StatusOr<std::shared_ptr<StoredTransform>> Take(Grant reservation, const std::string& description) override {
    if (description == "damaged") return absl::DataLossError(description);
    return std::make_shared<StoredTransform>(StoredTransform{
        "", {}, std::nullopt, std::make_shared<Grant>(std::move(reservation)), Transform(AffineMap::Identity())});
  }

  std::string made;

 private:
  void Describe(const StoredTransform& stored, v1::UploadResponse& answer) const override {
    answer.mutable_transform()->set_name(StoredTransform::Name(stored.id));
  }

  const std::optional<int64_t> workspace_bytes_;
};

// A scheduler whose jobs can be looked at, or refused.
class WatchedQueue final : public JobQueue {
 public:
  explicit WatchedQueue(JobQueue& inner) : inner_(inner) {}

  absl::Status Submit(Job job) override {
    if (!refusal.ok()) return refusal;
    last.emplace();
    last->owner = job.owner;
    last->party = job.party;
    last->is_short = job.is_short;
    last->workspace_bytes = job.workspace_bytes;
    last->checkpoint = job.checkpoint;
    if (reason_not_to_run.ok()) return inner_.Submit(std::move(job));
    job.run(reason_not_to_run);
    return absl::OkStatus();
  }
  void Cancel(const void* owner) override { inner_.Cancel(owner); }
  int capacity(JobClass job_class) const override { return inner_.capacity(job_class); }
  int64_t waiting(JobClass job_class) const override { return inner_.waiting(job_class); }
  int64_t started(JobClass job_class) const override { return inner_.started(job_class); }
  int64_t pending() const override { return inner_.pending(); }
  SchedulerClock::Duration PredictedWait(JobClass job_class) override { return inner_.PredictedWait(job_class); }
  CostModel& costs() override { return inner_.costs(); }

  absl::Status refusal, reason_not_to_run;
  std::optional<Job> last;

 private:
  JobQueue& inner_;
};

class MakeObjectTest : public DeviceTest {
 protected:
  static constexpr char kBytes[] = "the bytes of an object";

  MakeObjectTest() {
    parts_.transforms = &transforms_;
    parts_.seams = &seams_;
    parts_.durable = &durable_;
    parts_.ledger = &ledger_;
    devices_.Add(
        {parts_.Make(), 0, device(), *NoPart<const DeviceProbe>(), *NoPart<const Watchdog>(), queue_, *copies_});
  }

  static ObjectSpec Spec() {
    ObjectSpec spec;
    spec.owner = "ann";
    spec.total_bytes = sizeof(kBytes);
    spec.identity_digest = "identity";
    spec.transforms = 1;
    return spec;
  }
  static StagedUpload Bytes() { return StagedUpload(kBytes, nullptr); }
  static std::string Made() { return std::string(kBytes, sizeof(kBytes)); }

  // Makes the object, and waits.
  absl::Status Make(NewObject& object, MakingJob job = {}) {
    absl::StatusOr<std::future<absl::Status>> made = MakeObject(devices_[0], object, Bytes, std::move(job));
    return made.ok() ? made->get() : made.status();
  }
  absl::StatusOr<v1::UploadResponse> Store(NewObject& object, const ObjectOrigin& origin = {}) {
    ServerContext context = parts_.Make();
    const auto reserve = [this, &object]() -> absl::StatusOr<Grant> {
      ++asked_;
      INTRAWARP_ASSIGN_OR_RETURN(Grant grant, ledger_.Admit(ObjectClaim(object.spec(), 0)));
      return TakeReservation(grant, object.spec());
    };
    return StoreObject(context, object, reserve, origin);
  }

  std::unique_ptr<Scheduler> scheduler_ = *Scheduler::Create(device(), DefaultScheduling(device()));
  WatchedQueue queue_{*scheduler_};
  std::unique_ptr<CopyLane> copies_ = *CopyLane::Create(device());
  Ledger ledger_{{.capacity = {.resident_bytes = 1, .uploading_bytes = 1000, .transforms = 1}}};
  Seams seams_ = SystemSeams();
  TransformStore transforms_;
  DurableObjects durable_;
  DeviceSet devices_;
  PartialContext parts_;
  int asked_ = 0;  // times, for a reservation
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(MakeObjectTest);

TEST_P(MakeObjectTest, AnObjectThatComputesIsAShortJobOfItsOwners) {
  FakeObject object(Spec(), 4096);
  const int owner = 0;
  ASSERT_OK(Make(object, {.owner = &owner, .checkpoint = [](const Progress&) { return Decision::kContinue; }}));
  EXPECT_EQ(object.made, Made());
  ASSERT_TRUE(queue_.last);
  EXPECT_EQ(queue_.last->owner, &owner);
  EXPECT_EQ(queue_.last->party, "ann");
  EXPECT_TRUE(queue_.last->is_short);
  EXPECT_EQ(queue_.last->workspace_bytes, 4096);
  EXPECT_TRUE(queue_.last->checkpoint);
}

TEST_P(MakeObjectTest, AnObjectThatIsCopiedTakesTheCopyLane) {
  FakeObject object(Spec(), std::nullopt);
  ASSERT_OK(Make(object));
  EXPECT_EQ(object.made, Made());
  EXPECT_FALSE(queue_.last);
  copies_->Shutdown();
  EXPECT_TRUE(absl::IsUnavailable(Make(object)));
}

TEST_P(MakeObjectTest, TheBytesHaveGoneWhenTheMakerIsTold) {
  FakeObject object(Spec(), 4096);
  // Without memory, which a job that does not run has no use for.
  auto pair = std::make_shared<SlabPair>();
  const std::weak_ptr<SlabPair> slabs = pair;
  auto bytes = [pair = std::move(pair)]() mutable { return StagedUpload(kBytes, std::move(pair)); };
  queue_.reason_not_to_run = absl::CancelledError();
  bool have_gone = false;
  ASSERT_OK(
      MakeObject(devices_[0], object, std::move(bytes), [&](const absl::Status&) { have_gone = slabs.expired(); }));
  EXPECT_TRUE(have_gone);
}

// A call that has ended lets go of its upload: nothing of it may be touched.
TEST_P(MakeObjectTest, NobodyIsToldOfAnObjectThatNobodyWants) {
  FakeObject computed(Spec(), 4096), copied(Spec(), std::nullopt);
  for (FakeObject* const object : {&computed, &copied}) {
    std::promise<void> asked;
    const auto bytes = [&]() -> std::optional<StagedUpload> {
      asked.set_value();
      return std::nullopt;
    };
    const auto never = [](const absl::Status&) { ADD_FAILURE() << "nobody waits for it"; };
    ASSERT_OK(MakeObject(devices_[0], *object, bytes, never));
    asked.get_future().wait();
  }
  scheduler_->Shutdown();
  copies_->Shutdown();
  EXPECT_EQ(computed.made, "");
  EXPECT_EQ(copied.made, "");
}

TEST_P(MakeObjectTest, AQueueThatIsFullIsToldAtOnce) {
  FakeObject object(Spec(), 4096);
  queue_.refusal = absl::ResourceExhaustedError("full");
  const auto never = [](const auto&...) { ADD_FAILURE() << "the making was refused"; };
  EXPECT_EQ(MakeObject(
                devices_[0], object,
                [&] {
                  never();
                  return Bytes();
                },
                never),
            queue_.refusal);
  EXPECT_EQ(Make(object), queue_.refusal);
}

// Whoever takes the bytes is told, also when there is no device for them.
TEST_P(MakeObjectTest, AJobThatDoesNotRunTellsWhy) {
  FakeObject object(Spec(), 4096);
  queue_.reason_not_to_run = absl::UnavailableError("stopping");
  bool asked = false;
  absl::Status told;
  ASSERT_OK(MakeObject(
      devices_[0], object,
      [&] {
        asked = true;
        return Bytes();
      },
      [&](const absl::Status& status) { told = status; }));
  EXPECT_TRUE(asked);
  EXPECT_EQ(told, queue_.reason_not_to_run);
  EXPECT_EQ(object.made, "");
}

TEST_P(MakeObjectTest, AnObjectIsStoredOnce) {
  FakeObject first(Spec(), std::nullopt), second(Spec(), std::nullopt);
  const absl::StatusOr<v1::UploadResponse> stored = Store(first);
  ASSERT_OK(stored) << stored.status();
  EXPECT_FALSE(stored->already_resident());
  EXPECT_EQ(transforms_.size(), 1);
  EXPECT_EQ(ledger_.in_use(Resource::kTransforms), 1);
  const absl::StatusOr<v1::UploadResponse> same = Store(second);
  ASSERT_OK(same) << same.status();
  EXPECT_TRUE(same->already_resident());
  EXPECT_EQ(same->transform().name(), stored->transform().name());
  EXPECT_EQ(transforms_.size(), 1);
  EXPECT_EQ(asked_, 1) << "it needs no place";
}

TEST_P(MakeObjectTest, WithoutAReservationNothingIsStored) {
  FakeObject first(Spec(), std::nullopt);
  ASSERT_OK(Store(first));
  ObjectSpec other = Spec();
  other.identity_digest = "another";
  FakeObject second(other, std::nullopt);
  EXPECT_TRUE(absl::IsResourceExhausted(Store(second).status())) << "there is one place";
  EXPECT_EQ(transforms_.size(), 1);
}

TEST_P(MakeObjectTest, ADamagedDescriptionIsNotStored) {
  FakeObject object(Spec(), std::nullopt);
  ObjectOrigin origin;
  origin.description = "damaged";
  EXPECT_TRUE(absl::IsDataLoss(Store(object, origin).status()));
  EXPECT_EQ(transforms_.size(), 0);
  EXPECT_EQ(ledger_.in_use(Resource::kTransforms), 0);
}

TEST_P(MakeObjectTest, ARestoredObjectIsWhatItWas) {
  FakeObject object(Spec(), std::nullopt);
  DurableIdentity identity;
  identity.id = "was";
  identity.owner = "bob";
  identity.id_was_chosen = true;
  identity.digest = "digest";
  identity.request = RequestKey{"request", "fingerprint", "bob"};
  ServerContext context = parts_.Make();
  ASSERT_OK(object.Restore(context, Grant(), identity));
  const auto restored = transforms_.FindOf("bob", "was");
  ASSERT_OK(restored) << restored.status();
  EXPECT_EQ(transforms_.FindByDigest("digest", "bob"), *restored);
  EXPECT_EQ(transforms_.FindByRequest("request", "bob"), *restored);
  FakeObject again(Spec(), std::nullopt);
  EXPECT_TRUE(absl::IsAlreadyExists(again.Restore(context, Grant(), identity)));
}

}  // namespace
}  // namespace intrawarp::server
