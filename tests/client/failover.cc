// SPDX-License-Identifier: Apache-2.0
#include "tests/client/failover.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/cpp/routed_session.h"
#include "engine/base/status_macros.h"
#include "tests/client/process.h"
#include "tests/support/eventually.h"
#include "tests/support/free_port.h"
#include "wire/convert.h"

namespace intrawarp::client {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kServers = 3;
constexpr double kSpacingMm = 2;
// A machine that is busy with other tests is not a silent one.
constexpr std::chrono::seconds kProbeTimeout(20);
// An upload is tried so often.
constexpr int kUploadAttempts = 20;

double Milliseconds(Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

// Three servers with state directories, on ports that they keep.
class Servers {
 public:
  explicit Servers(const FailoverPlan& plan) : plan_(plan) {
    for (int i = 0; i < kServers; ++i) addresses_.push_back(absl::StrCat("127.0.0.1:", FreePort()));
    processes_.resize(kServers);
    for (size_t i = 0; i < kServers; ++i) std::filesystem::create_directory(StateDir(i));
  }
  ~Servers() {
    for (const auto& process : processes_) {
      if (process != nullptr) process->Signal(SIGTERM);
    }
  }

  absl::Status Start(size_t i) {
    processes_[i] = std::make_unique<Process>(
        std::vector<std::string>{plan_.intrawarpd, "--listen=" + addresses_[i], "--http=127.0.0.1:0", "--device=cpu",
                                 "--state_dir=" + StateDir(i), "--drain_timeout=1s"});
    const bool ready = !processes_[i]->WaitForLine("ready ").empty();
    return ready ? absl::OkStatus() : absl::UnavailableError("a server does not start: " + processes_[i]->Wait().err);
  }
  absl::Status StartAll() {
    for (size_t i = 0; i < kServers; ++i) INTRAWARP_RETURN_IF_ERROR(Start(i));
    return absl::OkStatus();
  }
  void Kill(size_t i) { processes_[i].reset(); }  // SIGKILL

  const std::vector<std::string>& addresses() const { return addresses_; }

  absl::StatusOr<size_t> WithMostStreams() const {
    size_t most = 0;
    int64_t streams = -1;
    for (size_t i = 0; i < kServers; ++i) {
      INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Client::Connect(addresses_[i]));
      INTRAWARP_ASSIGN_OR_RETURN(const v1::ServerInfo info, client->GetServerInfo());
      if (info.usage().streams() <= streams) continue;
      streams = info.usage().streams();
      most = i;
    }
    return most;
  }

 private:
  std::string StateDir(size_t i) const { return folder_ / absl::StrCat("state", i); }

  const FailoverPlan& plan_;
  TemporaryFolder folder_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<Process>> processes_;
};

// nginx with deploy's configuration, for these servers and a port of its own.
class Nginx {
 public:
  Nginx(const FailoverPlan& plan, const std::vector<std::string>& servers)
      : address_(absl::StrCat("127.0.0.1:", FreePort())) {
    std::string site = absl::StrReplaceAll(plan.nginx_conf, {{"listen 127.0.0.1:50050", "listen " + address_}});
    for (size_t i = 0; i < servers.size(); ++i) {
      site = absl::StrReplaceAll(site, {{absl::StrCat("192.0.2.", 11 + i, ":50051"), servers[i]}});
    }
    std::ofstream(folder_ / "site.conf") << site;
    std::string temporary;
    for (const char* kind : {"client_body", "proxy", "fastcgi", "uwsgi", "scgi"}) {
      absl::StrAppend(&temporary, kind, "_temp_path ", folder_.path(), "/", kind, ";\n");
    }
    std::ofstream(folder_ / "nginx.conf")
        << absl::StrCat("daemon off;\nmaster_process off;\npid ", folder_.path(), "/pid;\nerror_log ", folder_.path(),
                        "/error.log;\nevents { worker_connections 1024; }\nhttp {\naccess_log off;\n", temporary,
                        "include ", folder_.path(), "/site.conf;\n}\n");
    arguments_ = {plan.nginx, "-p", folder_.path(), "-c", folder_ / "nginx.conf", "-e", folder_ / "error.log"};
  }

  absl::Status Start() {
    std::vector<std::string> check = arguments_;
    check.push_back("-t");
    const ProcessResult checked = RunProcess(check);
    if (checked.exit_status != 0) return absl::InvalidArgumentError("nginx -t: " + checked.err);
    process_ = std::make_unique<Process>(arguments_);
    INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Client::Connect(address_));
    if (Eventually([&] { return client->IsServing("").ok(); })) return absl::OkStatus();
    return absl::UnavailableError("nginx does not answer: " + FileContents(folder_ / "error.log"));
  }
  const std::string& address() const { return address_; }

 private:
  TemporaryFolder folder_;
  const std::string address_;
  std::vector<std::string> arguments_;
  std::unique_ptr<Process> process_;
};

// A few soft balls; other seeds give other volumes.
class Balls {
 public:
  Balls(int side, uint32_t seed) {
    geometry_.size = {side, side, side};
    geometry_.spacing = {kSpacingMm, kSpacingMm, kSpacingMm};
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> place(0.3 * side * kSpacingMm, 0.7 * side * kSpacingMm);
    for (int i = 0; i < 5; ++i) centers_.push_back({place(random), place(random), place(random)});
  }

  const Geometry& geometry() const { return geometry_; }
  Vec3d Middle() const {
    const double half = 0.5 * kSpacingMm * (geometry_.size.x - 1);
    return {half, half, half};
  }
  // What lies at p in the volume lies at p + shift here.
  std::vector<float> Shifted(Vec3d shift) const {
    std::vector<float> voxels;
    voxels.reserve(static_cast<size_t>(geometry_.voxels()));
    const double width = 0.12 * kSpacingMm * geometry_.size.x;
    for (int z = 0; z < geometry_.size.z; ++z) {
      for (int y = 0; y < geometry_.size.y; ++y) {
        for (int x = 0; x < geometry_.size.x; ++x) {
          const Vec3d p{kSpacingMm * x, kSpacingMm * y, kSpacingMm * z};
          double sum = 0;
          for (const Vec3d& center : centers_) {
            const Vec3d d = p - center - shift;
            sum += std::exp(-Dot(d, d) / (2 * width * width));
          }
          voxels.push_back(static_cast<float>(1000 * sum));
        }
      }
    }
    return voxels;
  }

 private:
  Geometry geometry_;
  std::vector<Vec3d> centers_;
};

absl::string_view BytesOf(const std::vector<float>& voxels) {
  return {reinterpret_cast<const char*>(voxels.data()), voxels.size() * sizeof(float)};
}

// What all clients share.
struct Scene {
  const FailoverPlan& plan;
  std::string target;
  std::atomic<bool> ending{false};
  std::atomic<bool> killed{false};
  std::atomic<Clock::time_point> kill_time{Clock::time_point()};
};

// One client with one session: a frame is sent, its answer waited for, the next one sent at its turn.
class SessionLoad {
 public:
  SessionLoad(Scene* scene, uint32_t seed, bool is_ffd) : scene_(*scene), balls_(scene->plan.side, seed) {
    outcome_.is_ffd = is_ffd;
  }

  void Run() {
    outcome_.end = Navigate();
    if (frame_ms_.empty()) return;
    std::sort(frame_ms_.begin(), frame_ms_.end());
    outcome_.frame_ms = frame_ms_[frame_ms_.size() / 2];
  }
  const SessionOutcome& outcome() const { return outcome_; }
  // An ffd session is ready once another server can start from one of its answers. The images of some sessions never
  // give a rigid answer with verdict ok.
  bool is_ready() const { return outcome_.is_ffd ? has_ok_ : open_; }

 private:
  absl::Status Navigate() {
    INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<RoutedClient> servers,
                               RoutedClient::Connect(scene_.target, {}, {kProbeTimeout}));
    const std::vector<float> volume = balls_.Shifted({0, 0, 0});
    v1::NavigateConfig config;
    v1::RigidStage& rigid = *config.mutable_options()->add_stages()->mutable_rigid();
    rigid.set_levels(2);
    rigid.set_iterations(10);
    if (outcome_.is_ffd) {
      v1::FfdStage& ffd = *config.mutable_options()->add_stages()->mutable_ffd();
      ffd.set_levels(1);
      ffd.set_iterations(2);
      config.mutable_field()->set_encoding(v1::FIELD_ENCODING_CONTROL_POINTS);
    }
    const CallOptions options{.routing_key = VolumeDigest(BytesOf(volume))};
    RoutedSession session(
        servers.get(), {options.routing_key}, config,
        [&](Client& client, const std::string&, v1::NavigateConfig& to) -> absl::Status {
          VolumeUpload upload;
          upload.geometry = balls_.geometry();
          upload.bytes = BytesOf(volume);
          INTRAWARP_ASSIGN_OR_RETURN(const v1::UploadResponse response, client.UploadVolume(upload, options));
          to.set_fixed(response.volume().name());
          return absl::OkStatus();
        },
        options);
    INTRAWARP_RETURN_IF_ERROR(session.Open());
    outcome_.from = session.address();
    last_good_ = Clock::now();
    open_ = true;
    Clock::time_point turn = Clock::now();
    for (int64_t frame = 1; !scene_.ending; ++frame) {
      INTRAWARP_RETURN_IF_ERROR(RegisterFrame(session, frame));
      turn += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1 / scene_.plan.rate_hz));
      turn = std::max(turn, Clock::now());
      std::this_thread::sleep_until(turn);
    }
    outcome_.to = session.address();
    (void)session.CloseSend();
    return absl::OkStatus();
  }

  absl::Status RegisterFrame(RoutedSession& session, int64_t number) {
    const Vec3d shift{4 * std::sin(0.1 * static_cast<double>(number)), 2, -3};
    const std::vector<float> voxels = balls_.Shifted(shift);
    Frame frame;
    frame.number = number;
    frame.geometry = balls_.geometry();
    frame.bytes = BytesOf(voxels);
    while (true) {
      const Clock::time_point sent = Clock::now();
      (void)session.Send(frame);  // Receive says why it failed
      const absl::StatusOr<std::optional<FrameAnswer>> answer = session.Receive(outcome_.is_ffd ? &grid_ : nullptr);
      if (answer.ok() && !answer->has_value()) return absl::InternalError("the stream ended by itself");
      if (answer.ok()) {
        if (!scene_.killed) frame_ms_.push_back(Milliseconds(Clock::now() - sent));
        return Note(**answer, shift);
      }
      INTRAWARP_RETURN_IF_ERROR(Recover(session, answer.status()));
    }
  }

  double SinceKill() const { return Milliseconds(Clock::now() - scene_.kill_time.load()); }

  absl::Status Recover(RoutedSession& session, const absl::Status& cause) {
    outcome_.causes.push_back(cause.ToString(absl::StatusToStringMode::kWithNoExtraData));
    if (!session.is_broken()) return cause;
    if (!was_broken_) outcome_.noticed_ms = SinceKill();
    INTRAWARP_ASSIGN_OR_RETURN(const RoutedSession::Recovery recovery, session.Recover());
    ++(recovery.resumed ? outcome_.resumed : outcome_.reopened);
    if (!recovery.resumed && has_ok_) ++outcome_.reopened_after_ok;
    if (recovery.start == RoutedSession::Recovery::Start::kWhole) ++outcome_.whole_starts;
    ++outcome_.resent;
    if (!was_broken_) outcome_.open_ms = SinceKill();
    was_broken_ = true;
    return absl::OkStatus();
  }

  absl::Status Note(const FrameAnswer& answer, Vec3d shift) {
    if (answer.result.status().code() != 0) {
      ++outcome_.failed;
      return absl::OkStatus();
    }
    if (answer.result.report().verdict() == v1::VERDICT_OK) has_ok_ = true;
    const Clock::time_point now = Clock::now();
    ++outcome_.frames;
    double& gap = scene_.killed ? outcome_.gap_after_ms : outcome_.gap_before_ms;
    gap = std::max(gap, Milliseconds(now - last_good_));
    last_good_ = now;
    if (was_broken_ && outcome_.whole_again_ms < 0) {
      outcome_.whole_again_ms = SinceKill();
    }
    INTRAWARP_ASSIGN_OR_RETURN(const AffineMap map, AffineMapFromProto(answer.result.report().affine()));
    const Vec3d apart = map(balls_.Middle()) - balls_.Middle() - shift;
    outcome_.worst_mm = std::max(outcome_.worst_mm, std::sqrt(Dot(apart, apart)));
    return absl::OkStatus();
  }

  Scene& scene_;
  const Balls balls_;
  SessionOutcome outcome_;
  Clock::time_point last_good_;
  bool was_broken_ = false;
  GridData grid_;
  std::vector<double> frame_ms_;
  std::atomic<bool> open_{false};
  std::atomic<bool> has_ok_{false};  // an answer with verdict ok
};

// One client that uploads small volumes, one after the other.
class UploadLoad {
 public:
  struct Acknowledged {
    std::string name;
    std::string digest;
  };

  explicit UploadLoad(Scene* scene) : scene_(*scene), random_(scene->plan.seed) {}

  void Run() {
    const auto servers = RoutedClient::Connect(scene_.target, {}, {kProbeTimeout});
    if (!servers.ok()) return;
    for (int i = 0; !scene_.ending; ++i) {
      Upload(**servers, absl::StrCat("kept-", i));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  const std::vector<Acknowledged>& acknowledged() const { return acknowledged_; }
  const std::map<std::string, int>& errors() const { return errors_; }
  int given_up() const { return given_up_; }

 private:
  void Upload(RoutedClient& servers, const std::string& id) {
    VolumeUpload upload;
    upload.id = id;
    upload.geometry.size = {8, 8, 8};
    std::vector<float> voxels(512);
    for (float& voxel : voxels) voxel = static_cast<float>(random_() % 1000);
    upload.bytes = BytesOf(voxels);
    const std::string digest = VolumeDigest(upload.bytes);
    const CallOptions options{.routing_key = digest};
    for (int attempt = 0; attempt < kUploadAttempts; ++attempt) {
      const absl::Status status = servers.Run({digest}, options, [&](Client& client, const std::string&) {
        const absl::Status uploaded = client.UploadVolume(upload, options).status();
        if (!uploaded.ok()) ++errors_[absl::StatusCodeToString(uploaded.code())];
        return uploaded;
      });
      if (status.ok()) {
        acknowledged_.push_back({"volumes/" + id, digest});
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    ++given_up_;
  }

  Scene& scene_;
  std::mt19937 random_;
  std::vector<Acknowledged> acknowledged_;
  std::map<std::string, int> errors_;
  int given_up_ = 0;
};

absl::StatusOr<int> CountLost(const std::vector<UploadLoad::Acknowledged>& volumes,
                              const std::vector<std::string>& addresses) {
  std::map<std::string, std::vector<std::string>> digests;
  for (const std::string& address : addresses) {
    INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Client::Connect(address));
    INTRAWARP_ASSIGN_OR_RETURN(const std::vector<v1::Volume> found, client->ListVolumes());
    for (const v1::Volume& volume : found) {
      digests[volume.name()].push_back(absl::BytesToHexString(volume.digest()));
    }
  }
  return static_cast<int>(std::count_if(volumes.begin(), volumes.end(), [&](const auto& volume) {
    const std::vector<std::string>& found = digests[volume.name];
    return std::find(found.begin(), found.end(), volume.digest) == found.end();
  }));
}

// Joins them whatever happens.
class Threads {
 public:
  explicit Threads(Scene* scene) : scene_(*scene) {}
  ~Threads() { Join(); }
  template <typename Load>
  void Start(Load* load) {
    threads_.emplace_back([load] { load->Run(); });
  }
  void Join() {
    scene_.ending = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  Scene& scene_;
  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<FailoverOutcome> RunFailover(const FailoverPlan& plan) {
  Servers servers(plan);
  INTRAWARP_RETURN_IF_ERROR(servers.StartAll());
  Scene scene{plan, absl::StrJoin(servers.addresses(), ",")};
  std::unique_ptr<Nginx> nginx;
  if (!plan.nginx.empty()) {
    nginx = std::make_unique<Nginx>(plan, servers.addresses());
    INTRAWARP_RETURN_IF_ERROR(nginx->Start());
    scene.target = nginx->address();
  }

  std::vector<std::unique_ptr<SessionLoad>> sessions;
  UploadLoad uploads(&scene);
  Threads threads(&scene);
  threads.Start(&uploads);
  for (int i = 0; i < plan.sessions; ++i) {
    sessions.push_back(std::make_unique<SessionLoad>(&scene, plan.seed + static_cast<uint32_t>(i), i % 2 == 1));
    threads.Start(sessions.back().get());
  }
  const auto is_ready = [](const auto& session) { return session->is_ready(); };
  (void)Eventually([&] { return std::all_of(sessions.begin(), sessions.end(), is_ready); });
  std::this_thread::sleep_for(plan.before);

  FailoverOutcome outcome;
  INTRAWARP_ASSIGN_OR_RETURN(const size_t victim, servers.WithMostStreams());
  outcome.killed = servers.addresses()[victim];
  scene.kill_time = Clock::now();
  scene.killed = true;
  servers.Kill(victim);
  std::this_thread::sleep_for(plan.without);
  const Clock::time_point restart = Clock::now();
  INTRAWARP_RETURN_IF_ERROR(servers.Start(victim));
  outcome.restart_ms = Milliseconds(Clock::now() - restart);
  std::this_thread::sleep_for(plan.after);
  threads.Join();

  for (const auto& session : sessions) outcome.sessions.push_back(session->outcome());
  outcome.acknowledged = static_cast<int>(uploads.acknowledged().size());
  outcome.upload_errors = uploads.errors();
  outcome.given_up = uploads.given_up();
  INTRAWARP_ASSIGN_OR_RETURN(outcome.lost, CountLost(uploads.acknowledged(), servers.addresses()));
  return outcome;
}

}  // namespace intrawarp::client
