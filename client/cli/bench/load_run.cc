// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/load_run.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/phantom/anatomy.h"
#include "engine/base/status_macros.h"

namespace intrawarp::cli::bench {
namespace {

using Clock = LoadClock::Clock;

constexpr std::chrono::milliseconds kPoll(10);
// Between the last preparation and the first call.
constexpr std::chrono::milliseconds kHeadStart(50);
// How long calls that are not cancelled at once may go on after Ctrl-C: an upload that is cut off would stay,
// unfinished.
constexpr double kInterruptSeconds = 10;
constexpr int64_t kMaxCalls = 2000000;

// For uploads that prepare the load: Ctrl-C waits for the one under way, since an unfinished one cannot be deleted.
const client::CallOptions kToItsEnd;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

template <typename T>
bool AllFinished(const std::vector<std::unique_ptr<T>>& all) {
  return std::all_of(all.begin(), all.end(), [](const auto& one) { return one->finished(); });
}

template <typename T>
void CancelAll(const std::vector<std::unique_ptr<T>>& all) {
  for (const auto& one : all) one->Cancel();
}

}  // namespace

LoadRun::LoadRun(const BenchOptions& options, CommandContext& context, Holdings* holdings)
    : options_(options), context_(context), holdings_(holdings) {}

bool LoadRun::needs_fixed() const {
  return options_.load.kind == LoadKind::kRegister || options_.floods.registrations > 0;
}

absl::Status LoadRun::PrepareImages(int size, int clients) {
  if (size != size_) {
    for (const auto& images : images_) {
      for (const std::string& name : {images->rest, images->fixed}) {
        if (!name.empty()) INTRAWARP_RETURN_IF_ERROR(holdings_->Delete(name, context_.client()));
      }
    }
    images_.clear();
    size_ = size;
  }
  const int wanted = std::max(clients, options_.floods.registrations > 0 ? 1 : 0);
  ProgressLine progress;
  while (static_cast<int>(images_.size()) < wanted) {
    progress.Show(absl::StrFormat("images of client %d of %d", images_.size() + 1, wanted));
    INTRAWARP_RETURN_IF_ERROR(context_.CheckInterrupt());
    INTRAWARP_RETURN_IF_ERROR(AddImages(size));
  }
  return absl::OkStatus();
}

absl::Status LoadRun::AddImages(int size) {
  INTRAWARP_ASSIGN_OR_RETURN(Breath breath, Breath::Make(size, options_.seed + static_cast<uint32_t>(images_.size())));
  auto images = std::make_unique<ClientImages>();
  images->breath = std::move(breath);
  images->rest = holdings_->NewVolume();
  INTRAWARP_RETURN_IF_ERROR(UploadVolumeAs(images->rest, images->breath.rest(), context_.client(), kToItsEnd));
  if (needs_fixed()) {
    images->fixed = holdings_->NewVolume();
    INTRAWARP_RETURN_IF_ERROR(UploadVolumeAs(images->fixed, images->breath.deepest(), context_.client(), kToItsEnd));
  }
  images_.push_back(std::move(images));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::unique_ptr<Flood>>> LoadRun::StartFloods(Clock::time_point begin) {
  if (!is_ground_ready_) {
    INTRAWARP_ASSIGN_OR_RETURN(ground_,
                               PrepareFloods(options_.floods, options_.seed, holdings_, context_.client(), kToItsEnd));
    is_ground_ready_ = true;
  }
  std::vector<std::unique_ptr<Flood>> floods =
      MakeFloods(options_.floods, ground_, images_.empty() ? nullptr : images_.front().get(), holdings_);
  for (const auto& flood : floods) {
    INTRAWARP_RETURN_IF_ERROR(flood->Start([this] { return context_.ConnectAnother(); }, begin));
  }
  return floods;
}

absl::Status LoadRun::OpenClients(const LoadContext& context, int clients,
                                  std::vector<std::unique_ptr<LoadClient>>* opened, std::vector<ClientLog>* refused) {
  // Clients that do not know each other have different phases.
  phantom::UniformRandom random(options_.seed);
  for (int i = 0; i < clients; ++i) {
    std::unique_ptr<LoadClient> client = MakeLoadClient(context, *images_[static_cast<size_t>(i)], random(0, 1));
    const absl::Status status = client->Open();
    INTRAWARP_RETURN_IF_ERROR(context_.CheckInterrupt());
    if (FateOf(status) == Fate::kFailed) return Annotate(status, absl::StrFormat("client %d", i + 1));
    if (status.ok()) {
      opened->push_back(std::move(client));
    } else {
      refused->emplace_back().opening = status;
    }
  }
  return absl::OkStatus();
}

void LoadRun::Await(const LoadClock& clock, const std::vector<std::unique_ptr<LoadClient>>& clients) {
  double limit = options_.seconds + options_.grace;
  bool interrupted = false;
  const auto is_over = [&] {
    if (options_.load.kind == LoadKind::kNone) return interrupted || clock.Now() >= options_.seconds;
    return AllFinished(clients);
  };
  while (!is_over() && clock.Now() < limit) {
    if (!interrupted && !context_.CheckInterrupt().ok()) {
      interrupted = true;
      limit = std::min(limit, clock.Now() + kInterruptSeconds);
      CancelAll(clients);
    }
    std::this_thread::sleep_for(kPoll);
  }
  CancelAll(clients);
}

std::vector<FloodResult> LoadRun::EndFloods(const std::vector<std::unique_ptr<Flood>>& floods, double from, double to) {
  const double grace = context_.CheckInterrupt().ok() ? options_.grace : std::min(options_.grace, kInterruptSeconds);
  for (const auto& flood : floods) flood->Stop();
  const Clock::time_point begin = Clock::now();
  while (!AllFinished(floods) && Seconds(Clock::now() - begin) < grace) std::this_thread::sleep_for(kPoll);
  CancelAll(floods);
  std::vector<FloodResult> results;
  for (const auto& flood : floods) results.push_back(flood->Finish(from, to));
  return results;
}

absl::StatusOr<LoadResult> LoadRun::Run(const Task& task, int clients) {
  LoadContext context;
  context.load = options_.load;
  context.task = task;
  context.seconds = options_.seconds;
  context.connect = [this] { return context_.ConnectAnother(); };
  context.holdings = holdings_;
  context.interrupt = context_.call().cancellation;
  context.max_calls = kMaxCalls / std::max(clients, 1);

  INTRAWARP_RETURN_IF_ERROR(PrepareImages(task.size, clients));
  LoadResult result;
  std::vector<std::unique_ptr<LoadClient>> opened;
  INTRAWARP_RETURN_IF_ERROR(OpenClients(context, clients, &opened, &result.clients));
  const Clock::time_point flood_begin = Clock::now();
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<Flood>> floods, StartFloods(flood_begin));
  if (!floods.empty()) {
    (void)context.interrupt->WaitFor(std::chrono::milliseconds(static_cast<int64_t>(1e3 * options_.warmup)));
  }

  const Clock::time_point begin = Clock::now() + kHeadStart;
  const LoadClock clock(begin, context.interrupt);
  for (const auto& client : opened) client->Start(clock);
  Await(clock, opened);
  const double from = Seconds(begin - flood_begin);
  const double to = from + std::max(0.0, std::min(options_.seconds, clock.Now()));
  result.floods = EndFloods(floods, from, to);
  for (const auto& client : opened) result.clients.push_back(client->Finish());
  result.interrupted = !context_.CheckInterrupt().ok();
  result.summary = Summarise(result.clients, options_.load.limit_ms, options_.seconds);
  return result;
}

}  // namespace intrawarp::cli::bench
