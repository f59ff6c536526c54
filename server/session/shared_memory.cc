// SPDX-License-Identifier: Apache-2.0
#include "server/session/shared_memory.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/base/seams.h"
#include "server/job/job_support.h"

namespace intrawarp::server {
namespace {

using std::chrono::steady_clock;

constexpr size_t kMostConnections = 128;
constexpr std::chrono::seconds kPatience{1};
// In a loop of connects, whoever comes waits instead of being told to come again.
constexpr int kBacklog = 1024;
constexpr int kAcceptsAtOnce = 64;
// How long a full table of descriptors keeps the listener from being polled.
constexpr std::chrono::milliseconds kNoDescriptorPause{50};
constexpr size_t kMostLingering = 64;

absl::Status BadFlag(absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat("--shared_memory: ", why));
}

absl::Status CannotListen(const char* what) {
  return absl::UnavailableError(absl::StrCat("--shared_memory: ", what, ": ", std::strerror(errno)));
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof(address.sun_path) - 1));
  return address;
}

// Whether the file is a socket that nobody listens on.
bool IsLeftBehind(const std::string& path) {
  struct stat is {};
  if (lstat(path.c_str(), &is) != 0 || !S_ISSOCK(is.st_mode)) return false;
  const Fd probe(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un address = AddressOf(path);
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
         errno == ECONNREFUSED;
}

absl::StatusOr<Fd> Listen(const SharedMemoryOptions& options) {
  Fd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return CannotListen("socket");
  // Before it has a name, so that nobody else can connect meanwhile.
  if (fchmod(listener.get(), S_IRUSR | S_IWUSR) != 0) return CannotListen("fchmod");
  if (IsLeftBehind(options.socket)) unlink(options.socket.c_str());
  const sockaddr_un address = AddressOf(options.socket);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return CannotListen("bind");
  }
  const bool is_open = options.users.empty() || chmod(options.socket.c_str(), 0666) == 0;
  if (is_open && listen(listener.get(), kBacklog) == 0) return listener;
  const absl::Status status = CannotListen("listen");
  unlink(options.socket.c_str());
  return status;
}

std::string RandomBytes(const Seams& seams, size_t bytes) {
  std::string random;
  while (random.size() < bytes) {
    const uint32_t word = seams.random();
    random.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  random.resize(bytes);
  return random;
}

}  // namespace

absl::Status CheckSharedMemoryOptions(const SharedMemoryOptions& options) {
  if (options.socket.empty()) {
    return options.users.empty() ? absl::OkStatus()
                                 : absl::InvalidArgumentError("--shared_memory_uids: needs --shared_memory");
  }
  if (options.socket.front() != '/') return BadFlag("must be an absolute path, which clients on this host use");
  if (options.socket.size() >= sizeof(sockaddr_un::sun_path)) {
    return BadFlag(absl::StrCat("must be a path of fewer than ", sizeof(sockaddr_un::sun_path), " bytes"));
  }
  const std::string folder = std::filesystem::path(options.socket).parent_path().string();
  if (access(folder.c_str(), W_OK | X_OK) != 0) return BadFlag("its folder must exist and be writable");
  const absl::Status system = CheckSharedMemory();
  return system.ok() ? system : BadFlag(system.message());
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Start(const SharedMemoryOptions& options,
                                                                  Registry& registry) {
  INTRAWARP_RETURN_IF_ERROR(CheckSharedMemoryOptions(options));
  INTRAWARP_ASSIGN_OR_RETURN(Fd listener, Listen(options));
  std::unique_ptr<SharedMemory> memory(new SharedMemory(options, std::move(listener), registry));
  memory->thread_ = std::thread([memory = memory.get()] { memory->Loop(); });
  return memory;
}

SharedMemory::SharedMemory(SharedMemoryOptions options, Fd listener, Registry& registry)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      metrics_(registry),
      hook_(registry.OnScrape([this] { SetMetrics(); })) {}

SharedMemory::~SharedMemory() {
  stop_.Raise();
  if (thread_.joinable()) thread_.join();
  unlink(options_.socket.c_str());
}

absl::StatusOr<std::shared_ptr<SharedSegment>> SharedMemory::NewSegment(ServerContext& context,
                                                                        const wire::SegmentLayout& layout,
                                                                        const std::string& owner) {
  Expire(context.seams.steady_now());
  Claim claim;
  claim.pinned_bytes = layout.total_bytes();
  claim.owner = owner;
  INTRAWARP_ASSIGN_OR_RETURN(Grant grant, Admit(context, claim, Share::kSession));
  INTRAWARP_ASSIGN_OR_RETURN(
      std::shared_ptr<SharedSegment> segment,
      SharedSegment::Create(layout, RandomBytes(context.seams, wire::kSharedNonceBytes), std::move(grant), metrics_));
  std::lock_guard<std::mutex> lock(mutex_);
  segments_.remove_if([](const std::weak_ptr<SharedSegment>& gone) { return gone.expired(); });
  segments_.push_back(segment);
  return segment;
}

std::string SharedMemory::Offer(const Seams& seams, const std::shared_ptr<SharedSegment>& segment) {
  const std::string token = RandomBytes(seams, wire::kSharedTokenBytes);
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(offers_, [](const auto& offer) { return offer.second.expired(); });
  offers_[token] = segment;
  return token;
}

std::shared_ptr<SharedSegment> SharedMemory::Take(const std::string& token) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = offers_.find(token);
  if (found == offers_.end()) return nullptr;
  std::shared_ptr<SharedSegment> segment = found->second.lock();
  offers_.erase(found);
  return segment;
}

void SharedMemory::KeepWhileRead(std::shared_ptr<SharedSegment> segment, Time now) {
  if (segment->use().field_slots_in_use == 0) return;
  Lingering oldest;  // freed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  if (lingering_.size() >= kMostLingering) {
    oldest = std::move(lingering_.front());
    lingering_.erase(lingering_.begin());
  }
  lingering_.push_back({std::move(segment), now + options_.reading_time});
}

void SharedMemory::Expire(Time now) {
  std::vector<Lingering> over;  // freed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  const auto first = std::stable_partition(lingering_.begin(), lingering_.end(), [now](const Lingering& segment) {
    return now < segment.until && segment.segment->use().field_slots_in_use > 0;
  });
  over.assign(std::make_move_iterator(first), std::make_move_iterator(lingering_.end()));
  lingering_.erase(first, lingering_.end());
}

std::vector<std::shared_ptr<SharedSegment>> SharedMemory::Segments() const {
  std::vector<std::shared_ptr<SharedSegment>> segments;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const std::weak_ptr<SharedSegment>& each : segments_) {
    if (std::shared_ptr<SharedSegment> segment = each.lock()) segments.push_back(std::move(segment));
  }
  return segments;
}

SharedSegment::Use SharedMemory::use() const {
  SharedSegment::Use all;
  for (const std::shared_ptr<SharedSegment>& segment : Segments()) {
    const SharedSegment::Use use = segment->use();
    all.bytes += use.bytes;
    all.field_slots += use.field_slots;
    all.field_slots_in_use += use.field_slots_in_use;
  }
  return all;
}

void SharedMemory::SetMetrics() const {
  const SharedSegment::Use all = use();
  metrics_.Set({static_cast<int64_t>(Segments().size()), all.bytes, all.field_slots, all.field_slots_in_use});
}

void SharedMemory::Loop() {
  Connections open;
  std::vector<pollfd> polled;
  while (true) {
    const auto now = steady_clock::now();
    Expire(open, now);
    Time wake = open.empty() ? Time::max() : open.begin()->second.until;
    if (accept_after_ > now) wake = std::min(wake, accept_after_);
    const int wait =
        wake == Time::max() ? -1 : static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wake - now).count());
    polled = {{stop_.fd(), POLLIN, 0}, {accept_after_ > now ? -1 : listener_.get(), POLLIN, 0}};
    for (const auto& [id, connection] : open) polled.push_back({connection.fd.get(), POLLIN, 0});
    (void)poll(polled.data(), polled.size(), wait);
    if (polled[0].revents != 0) return;
    size_t place = 2;
    for (auto it = open.begin(); it != open.end();) {
      const auto next = std::next(it);
      if (polled[place++].revents != 0 && Serve(it->second.fd.get())) Drop(open, it);
      it = next;
    }
    if (polled[1].revents != 0) AcceptSome(open);
  }
}

void SharedMemory::Expire(Connections& open, Time now) {
  while (!open.empty() && now >= open.begin()->second.until) Drop(open, open.begin());
}

void SharedMemory::Drop(Connections& open, Connections::iterator it) {
  places_.Leave(it->second.user, it->first);
  open.erase(it);
}

void SharedMemory::AcceptSome(Connections& open) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      Accept(std::move(fd), open);
      continue;
    }
    // No descriptor is left: the connection stays in the backlog, and the listener ready.
    if (errno == EMFILE || errno == ENFILE) accept_after_ = steady_clock::now() + kNoDescriptorPause;
    return;
  }
}

void SharedMemory::Accept(Fd fd, Connections& open) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return;
  if (!MayFetch(peer.uid)) {
    metrics_.CountFetch(Fetch::kUserRefused);
    wire::AnswerFetch(fd.get(), wire::FetchAnswer::kUserRefused, -1);
    return;
  }
  // As a rule a client has asked by now.
  if (Serve(fd.get())) return;
  std::string user = absl::StrCat(peer.uid);
  if (open.size() >= kMostConnections) Drop(open, open.find(*places_.GivesWayFor(user)));
  places_.Enter(user, next_id_);
  open.emplace(next_id_++, Connection{std::move(fd), std::move(user), steady_clock::now() + kPatience});
}

bool SharedMemory::MayFetch(uid_t user) const {
  return user == geteuid() || std::find(options_.users.begin(), options_.users.end(), user) != options_.users.end();
}

bool SharedMemory::Serve(int connection) {
  // One byte more than a token has, so that a longer message is none.
  std::array<char, wire::kSharedTokenBytes + 1> message;
  const ssize_t got = recv(connection, message.data(), message.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) return true;
  const std::shared_ptr<SharedSegment> segment = Take(std::string(message.data(), static_cast<size_t>(got)));
  if (segment == nullptr) {
    metrics_.CountFetch(Fetch::kUnknownToken);
    wire::AnswerFetch(connection, wire::FetchAnswer::kUnknownToken, -1);
    return true;
  }
  metrics_.CountFetch(Fetch::kGiven);
  wire::AnswerFetch(connection, wire::FetchAnswer::kGiven, segment->fd());
  return true;
}

}  // namespace intrawarp::server
