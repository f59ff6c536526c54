// SPDX-License-Identifier: Apache-2.0
// The life that all computing calls share, with a kind of work that only writes down what it is asked. No client calls:
// the stream's writes stay with gRPC, which never takes them.
#include "server/service/work_call.h"

#include <gmock/gmock.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "intrawarp/v1/sparse_matrix.pb.h"
#include "server/rpc/chunk_codec.h"
#include "tests/server/service_fixture.h"

namespace intrawarp::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

grpc::ByteBuffer OperationMessage(const v1::Operation& operation) { return SerializeMessage(operation); }

constexpr WorkKind kFakeKind{OperationKind::kMultiply, JobClass::kInteractive, LogRoom::kSparse, "fake",
                             OperationMessage};

// A fake call does what its script says, and notes there what it was asked. Thread-safe once the call has begun.
struct Script {
  WorkRequest request;
  bool keeps = true;
  std::optional<EarlierResult> earlier;
  absl::Status resolved, claimed, ran, stored;

  std::mutex mutex;
  std::condition_variable added;
  std::vector<std::string> events;
  void Add(std::string event) {
    std::lock_guard<std::mutex> lock(mutex);
    events.push_back(std::move(event));
    added.notify_all();
  }
  std::vector<std::string> Events() {
    std::lock_guard<std::mutex> lock(mutex);
    return events;
  }
  // Until nobody holds the call, its job included. The limit guards against a hang.
  bool WaitGone() {
    std::unique_lock<std::mutex> lock(mutex);
    return added.wait_for(lock, std::chrono::seconds(120),
                          [this] { return !events.empty() && events.back() == "gone"; });
  }
};

class FakeCall final : public WorkCall {
 public:
  FakeCall(Script& script, RequestTable& requests, ServerContext& context, const grpc::CallbackServerContext& rpc)
      : WorkCall(kFakeKind, requests, context, rpc), script_(script), requests_(requests) {}
  ~FakeCall() override { script_.Add("gone"); }
  const std::shared_ptr<JobStream>& reactor() const { return shared_stream(); }

 private:
  // An event with the number of requests that are under way at that time.
  void AddWithRequests(const std::string& event) { script_.Add(event + " " + std::to_string(requests_.size())); }

  absl::StatusOr<WorkRequest> Parse(const grpc::ByteBuffer&) override { return script_.request; }
  std::vector<InputPrint> NamedInputs() const override { return {InputPrint::OfText("input")}; }
  absl::StatusOr<std::optional<EarlierResult>> FindEarlier(const RequestKey&) override { return script_.earlier; }
  absl::Status Repeat() override {
    AnswerRepetition(grpc::ByteBuffer());
    return absl::OkStatus();
  }
  absl::Status Resolve() override {
    script_.Add("resolve");
    return script_.resolved;
  }
  std::vector<InputPrint> FoundInputs() const override { return NamedInputs(); }
  absl::StatusOr<WorkNeeds> Needs() override { return WorkNeeds(); }
  absl::StatusOr<WorkJob> ClaimJob() override {
    script_.Add("claim");
    if (!script_.claimed.ok()) return script_.claimed;
    return WorkJob();
  }
  absl::StatusOr<ObjectContent> Run(const ExecContext&) override {
    AddWithRequests("run");
    if (!script_.ran.ok()) return script_.ran;
    return ObjectContent();
  }
  bool result_stays() const override { return script_.keeps; }
  void Describe() override { script_.Add("describe"); }
  absl::StatusOr<std::string> Store(ObjectOrigin) override {
    AddWithRequests("store");
    if (!script_.stored.ok()) return script_.stored;
    return std::string("made");
  }
  grpc::ByteBuffer Encode() const override {
    script_.Add("encode " + std::to_string(requests_.size()));
    return grpc::ByteBuffer();
  }
  void Erase() override { script_.Add("erase"); }
  void Release() override { script_.Add("release"); }
  void RecordFailure(const absl::Status& status) override {
    script_.Add("failure " + absl::StatusCodeToString(status.code()));
  }
  void RecordRepetition() override { script_.Add("repetition"); }
  void RecordSuccess() override { script_.Add("success"); }

  Script& script_;
  RequestTable& requests_;
};

// A call, to the end of its stream.
class FakeRpc {
 public:
  FakeRpc(Script& script, RequestTable& requests, ServerContext& context) : script_(script) {
    auto call = std::make_shared<FakeCall>(script, requests, context, rpc_);
    stream_ = call->reactor();
    call->Start(grpc::ByteBuffer());
  }
  // gRPC is done with the call. Waits until everybody is.
  ~FakeRpc() {
    std::exchange(stream_, nullptr)->OnDone();
    EXPECT_TRUE(script_.WaitGone());
  }
  JobStream& stream() { return *stream_; }

 private:
  Script& script_;
  const grpc::CallbackServerContext rpc_;
  std::shared_ptr<JobStream> stream_;
};

class WorkCallTest : public ServiceTest {
 protected:
  static WorkRequest RequestOf(const std::string& id, bool detach = false) {
    WorkRequest request;
    request.id = id;
    request.detach = detach;
    request.print = Fingerprint("Fake", v1::MultiplyRequest());
    return request;
  }
  // Until no job waits or runs.
  void WaitForJobs() {
    ASSERT_TRUE(Eventually([this] { return context().jobs.pending() == 0; }));
  }
  absl::StatusOr<Operation> FindOperation(const std::string& id) { return context().operations.Find(id, Identity()); }

  RequestTable requests_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(WorkCallTest);

TEST_P(WorkCallTest, AResultIsStoredBeforeItsRequestLeavesTheTableAndAnsweredAfter) {
  Script script;
  script.request = RequestOf("r");
  {
    FakeRpc rpc(script, requests_, context());
    WaitForJobs();
  }
  EXPECT_THAT(script.Events(),
              ElementsAre("resolve", "claim", "run 1", "describe", "store 1", "success", "encode 0", "gone"));
}

TEST_P(WorkCallTest, AResultThatNobodyLearnedOfIsErasedUnlessItsRequestCanBeRepeated) {
  Script script;
  script.request = RequestOf("");
  {
    FakeRpc rpc(script, requests_, context());
    WaitForJobs();
  }
  EXPECT_THAT(script.Events(),
              ElementsAre("resolve", "claim", "run 0", "describe", "store 0", "success", "encode 0", "erase", "gone"));
}

TEST_P(WorkCallTest, AResultThatIsNotKeptIsNotStored) {
  Script script;
  script.request = RequestOf("");
  script.keeps = false;
  {
    FakeRpc rpc(script, requests_, context());
    WaitForJobs();
  }
  EXPECT_THAT(script.Events(), ElementsAre("resolve", "claim", "run 0", "describe", "success", "encode 0", "gone"));
}

TEST_P(WorkCallTest, ARepetitionIsAnsweredWithoutWork) {
  Script script;
  script.request = RequestOf("r");
  script.earlier = EarlierResult{RequestKey{"r", script.request.print}, "made"};
  { FakeRpc rpc(script, requests_, context()); }
  EXPECT_THAT(script.Events(), ElementsAre("repetition", "gone"));
  EXPECT_EQ(requests_.size(), 0);
}

TEST_P(WorkCallTest, ARequestThatIsUnderWayIsRefused) {
  Script first, second;
  first.request = second.request = RequestOf("r");
  JobBlocker blocker(context().jobs);
  FakeRpc rpc(first, requests_, context());
  { FakeRpc again(second, requests_, context()); }
  EXPECT_THAT(second.Events(), ElementsAre("failure ABORTED", "release", "gone"));
  EXPECT_EQ(requests_.size(), 1) << "the refusal must not take the first request out of the table";
  blocker.Release();
  WaitForJobs();
  EXPECT_EQ(requests_.size(), 0);
}

TEST_P(WorkCallTest, EachFailureReleasesTheCallOnce) {
  const absl::Status broken = absl::InternalError("broken");
  {
    Script script;
    script.request = RequestOf("r");
    script.resolved = broken;
    { FakeRpc rpc(script, requests_, context()); }
    EXPECT_THAT(script.Events(), ElementsAre("resolve", "failure INTERNAL", "release", "gone"));
  }
  {
    Script script;
    script.request = RequestOf("r");
    script.claimed = broken;
    { FakeRpc rpc(script, requests_, context()); }
    EXPECT_THAT(script.Events(), ElementsAre("resolve", "claim", "failure INTERNAL", "release", "gone"));
  }
  {
    Script script;
    script.request = RequestOf("r");
    script.ran = broken;
    {
      FakeRpc rpc(script, requests_, context());
      WaitForJobs();
      EXPECT_TRUE(rpc.stream().closed());
    }
    EXPECT_THAT(script.Events(), ElementsAre("resolve", "claim", "run 1", "failure INTERNAL", "release", "gone"));
  }
  EXPECT_EQ(requests_.size(), 0);
}

TEST_P(WorkCallTest, AResultThatCannotBeStoredFailsTheCall) {
  Script script;
  script.request = RequestOf("");
  script.stored = absl::AlreadyExistsError("taken");
  {
    FakeRpc rpc(script, requests_, context());
    WaitForJobs();
    EXPECT_TRUE(rpc.stream().closed());
  }
  EXPECT_THAT(script.Events(),
              ElementsAre("resolve", "claim", "run 0", "describe", "store 0", "failure ALREADY_EXISTS", "gone"));
}

TEST_P(WorkCallTest, ACallThatIsCancelledInTheQueueNeverRuns) {
  Script script;
  script.request = RequestOf("r");
  {
    JobBlocker blocker(context().jobs);
    FakeRpc rpc(script, requests_, context());
    rpc.stream().OnCancel();
    ASSERT_TRUE(Eventually([&] { return requests_.size() == 0; }));
    blocker.Release();
    WaitForJobs();
  }
  EXPECT_THAT(script.Events(), ElementsAre("resolve", "claim", "failure CANCELLED", "release", "gone"));
}

TEST_P(WorkCallTest, AnOperationIsDoneWithTheNameOfTheResult) {
  Script script;
  script.request = RequestOf("op", /*detach=*/true);
  {
    JobBlocker blocker(context().jobs);
    FakeRpc rpc(script, requests_, context());
    rpc.stream().OnCancel();  // the caller goes away, the work does not
    blocker.Release();
    WaitForJobs();
  }
  EXPECT_THAT(script.Events(),
              ElementsAre("resolve", "claim", "run 1", "describe", "store 1", "success", "encode 0", "gone"));
  const absl::StatusOr<Operation> operation = FindOperation("op");
  ASSERT_TRUE(operation.ok()) << operation.status();
  EXPECT_EQ(operation->state, OperationState::kDone);
  EXPECT_THAT(operation->results, ElementsAre("made"));
}

TEST_P(WorkCallTest, AnOperationWhoseJobFailsHasFailed) {
  Script script;
  script.request = RequestOf("op", /*detach=*/true);
  script.ran = absl::InternalError("broken");
  {
    FakeRpc rpc(script, requests_, context());
    WaitForJobs();
  }
  const absl::StatusOr<Operation> operation = FindOperation("op");
  ASSERT_TRUE(operation.ok()) << operation.status();
  EXPECT_EQ(operation->state, OperationState::kFailed);
  EXPECT_THAT(operation->results, IsEmpty());
}

TEST_P(WorkCallTest, AnOperationThatIsRefusedBeforeItsCallLearnsOfItIsForgotten) {
  Script script;
  script.request = RequestOf("op", /*detach=*/true);
  script.claimed = absl::ResourceExhaustedError("full");
  {
    FakeRpc rpc(script, requests_, context());
    EXPECT_TRUE(rpc.stream().closed());
  }
  EXPECT_THAT(script.Events(), ElementsAre("resolve", "claim", "failure RESOURCE_EXHAUSTED", "release", "gone"));
  EXPECT_EQ(FindOperation("op").status().code(), absl::StatusCode::kNotFound);
}

TEST_P(WorkCallTest, AnOperationThatIsUnderWayIsAnsweredWithItself) {
  Script first, second;
  first.request = second.request = RequestOf("op", /*detach=*/true);
  JobBlocker blocker(context().jobs);
  FakeRpc rpc(first, requests_, context());
  { FakeRpc again(second, requests_, context()); }
  EXPECT_THAT(second.Events(), ElementsAre("repetition", "gone"));
  blocker.Release();
  WaitForJobs();
}

TEST_P(WorkCallTest, AnOperationWhoseResultIsThereBeginsDone) {
  Script script;
  script.request = RequestOf("op", /*detach=*/true);
  script.earlier =
      EarlierResult{RequestKey{"op", WithInputs(script.request.print, {InputPrint::OfText("input")})}, "made before"};
  { FakeRpc rpc(script, requests_, context()); }
  EXPECT_THAT(script.Events(), ElementsAre("repetition", "gone"));
  const absl::StatusOr<Operation> operation = FindOperation("op");
  ASSERT_TRUE(operation.ok()) << operation.status();
  EXPECT_EQ(operation->state, OperationState::kDone);
  EXPECT_THAT(operation->results, ElementsAre("made before"));
}

TEST_P(WorkCallTest, AnOperationNeedsAnIdAndARequestThatAllowsIt) {
  Script nameless, undetachable;
  nameless.request = RequestOf("", /*detach=*/true);
  undetachable.request = RequestOf("op", /*detach=*/true);
  undetachable.request.detachable = absl::InvalidArgumentError("field");
  { FakeRpc rpc(nameless, requests_, context()); }
  { FakeRpc rpc(undetachable, requests_, context()); }
  EXPECT_THAT(nameless.Events(), ElementsAre("failure INVALID_ARGUMENT", "release", "gone"));
  EXPECT_THAT(undetachable.Events(), ElementsAre("failure INVALID_ARGUMENT", "release", "gone"));
}

}  // namespace
}  // namespace intrawarp::server
