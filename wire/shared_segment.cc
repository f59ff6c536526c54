// SPDX-License-Identifier: Apache-2.0
#include "wire/shared_segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace intrawarp::wire {

static_assert(std::endian::native == std::endian::little, "the futex is the first half of a word");

namespace {

constexpr int64_t kMostBytes = int64_t{1} << 46;
constexpr time_t kFetchSeconds = 5;

absl::Status Failed(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("shared memory: ", what, ": ", std::strerror(errno)));
}

absl::StatusOr<int64_t> RoundSlot(int slots, int64_t bytes) {
  if (slots < 0 || slots > kMaxSharedSlots) return absl::InvalidArgumentError("shared memory: too many slots");
  if (slots == 0) return 0;
  if (bytes < 1 || bytes > kMostBytes / (2 * kMaxSharedSlots + 1)) {
    return absl::InvalidArgumentError("shared memory: slots of a size that none can have");
  }
  return (bytes + kSharedPage - 1) / kSharedPage * kSharedPage;
}

union ControlBuffer {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

absl::Status Connect(int fd, const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InternalError("shared memory: the server named a socket that cannot be one");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const timeval patience{kFetchSeconds, 0};
  (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return absl::OkStatus();
  if (errno == ENOENT || errno == ECONNREFUSED || errno == ENOTDIR) {
    return absl::NotFoundError(
        absl::StrCat("shared memory: the server's socket ", path, " is not here: is the server on another host?"));
  }
  if (errno == EACCES || errno == EPERM) {
    return absl::PermissionDeniedError(
        absl::StrCat("shared memory: ", path, " is for other users (intrawarpd --shared_memory_uids)"));
  }
  return Failed("connect");
}

// The one message of the server.
absl::StatusOr<int> ReceiveDescriptor(int connection) {
  uint8_t answer = 0xff;
  iovec part{&answer, sizeof(answer)};
  ControlBuffer control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  ssize_t got = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
  // A server that answers without having read the token resets the connection, and the answer comes after that news.
  if (got < 0 && errno == ECONNRESET) got = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return Failed("the server's socket did not answer");
  int fd = -1;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  }
  if (got == 1 && answer == static_cast<uint8_t>(FetchAnswer::kGiven) && fd >= 0) return fd;
  if (fd >= 0) close(fd);
  if (got == 1 && answer == static_cast<uint8_t>(FetchAnswer::kUserRefused)) {
    return absl::PermissionDeniedError(absl::StrCat("shared memory: the server does not give it to user ", geteuid(),
                                                    " (intrawarpd --shared_memory_uids)"));
  }
  if (got == 1 && answer == static_cast<uint8_t>(FetchAnswer::kUnknownToken)) {
    return absl::FailedPreconditionError("shared memory: the server does not know the segment any more");
  }
  return absl::UnavailableError("shared memory: the server closed its socket");
}

long Futex(const std::atomic<uint64_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

absl::StatusOr<SegmentLayout> RoundLayout(SegmentLayout layout) {
  absl::StatusOr<int64_t> frame = RoundSlot(layout.frame_slots, layout.frame_slot_bytes);
  absl::StatusOr<int64_t> field = RoundSlot(layout.field_slots, layout.field_slot_bytes);
  if (!frame.ok()) return frame.status();
  if (!field.ok()) return field.status();
  layout.frame_slot_bytes = *frame;
  layout.field_slot_bytes = *field;
  return layout;
}

absl::StatusOr<Mapping> Mapping::Map(int fd, int64_t offset, int64_t bytes, bool writable) {
  Mapping mapping;
  if (bytes == 0) return mapping;
  const int access = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const data = mmap(nullptr, static_cast<size_t>(bytes), access, MAP_SHARED | MAP_POPULATE, fd, offset);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("shared memory: cannot be mapped: ", std::strerror(errno)));
  }
  mapping.data_ = static_cast<char*>(data);
  mapping.bytes_ = bytes;
  return mapping;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

bool AnswerFetch(int connection, FetchAnswer answer, int fd) {
  auto word = static_cast<uint8_t>(answer);
  iovec part{&word, sizeof(word)};
  ControlBuffer control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (answer == FetchAnswer::kGiven) {
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  return sendmsg(connection, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
}

absl::StatusOr<int> FetchSegment(const std::string& socket_path, absl::string_view token) {
  const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (connection < 0) return Failed("socket");
  const auto closes = absl::MakeCleanup([connection] { close(connection); });
  if (absl::Status connected = Connect(connection, socket_path); !connected.ok()) return connected;
  if (send(connection, token.data(), token.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(token.size())) {
    // A server that refuses the user answers at once and closes.
    if (errno != EPIPE && errno != ECONNRESET) return Failed("the server's socket takes nothing");
  }
  return ReceiveDescriptor(connection);
}

absl::Status CheckSegment(int fd, const SegmentLayout& layout) {
  struct stat is {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &is) != 0 || is.st_size != layout.total_bytes()) {
    return absl::InternalError("shared memory: the server gave a descriptor that is not the segment it announced");
  }
  return absl::OkStatus();
}

void WaitForChange(const std::atomic<uint64_t>& word, uint64_t seen) {
  const timespec most{0, 50'000'000};
  (void)Futex(word, FUTEX_WAIT, static_cast<uint32_t>(seen), &most);
}

void StoreAndWake(std::atomic<uint64_t>& word, uint64_t value) {
  word.store(value, std::memory_order_seq_cst);
  (void)Futex(word, FUTEX_WAKE, static_cast<uint32_t>(std::numeric_limits<int32_t>::max()), nullptr);
}

}  // namespace intrawarp::wire
