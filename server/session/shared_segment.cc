// SPDX-License-Identifier: Apache-2.0
#include "server/session/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/device/host_loop.h"
#include "io/file/crc32c.h"
#include "server/session/session_metrics.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

// From Linux 6.3 on a system may refuse memory files that could be executed.
constexpr unsigned kNoExecSeal = 0x0008;

// A client must be able neither to shrink the memory nor to seal it against being punched out.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::Status Unavailable(absl::string_view what, int error) {
  return WithReason(absl::FailedPreconditionError(absl::StrCat("shared memory: ", what, ": ", std::strerror(error))),
                    v1::SHARED_MEMORY_UNAVAILABLE);
}

absl::StatusOr<Fd> MakeFile(int64_t bytes) {
  Fd fd(memfd_create("intrawarp", MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal));
  if (!fd && errno == EINVAL) fd = Fd(memfd_create("intrawarp", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return Unavailable("memfd_create", errno);
  if (ftruncate(fd.get(), bytes) != 0) return Unavailable("ftruncate", errno);
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return Unavailable("sealing", errno);
  int error = 0;
  do {
    error = posix_fallocate(fd.get(), 0, bytes);
  } while (error == EINTR);
  if (error != 0) return Unavailable("no memory for the segment", error);
  return fd;
}

// Answers the checksum of the copy. One core copies and sums a fraction of what the memory gives.
uint32_t CopyInPieces(char* to, const char* from, int64_t bytes) {
  constexpr int64_t kPiece = 1 << 20;
  const auto size = [&](int64_t i) { return static_cast<size_t>(std::min(kPiece, bytes - i * kPiece)); };
  std::vector<uint32_t> checksums((bytes + kPiece - 1) / kPiece);
  HostLoop(std::ssize(checksums),
           [&](int64_t i) { checksums[i] = io::CopyWithCrc32c(to + i * kPiece, from + i * kPiece, size(i)); });
  uint32_t checksum = 0;
  for (int64_t i = 0; i < std::ssize(checksums); ++i) checksum = io::JoinCrc32c(checksum, checksums[i], size(i));
  return checksum;
}

}  // namespace

absl::Status CheckSharedMemory() { return MakeFile(wire::kSharedPage).status(); }

absl::StatusOr<std::shared_ptr<SharedSegment>> SharedSegment::Create(const wire::SegmentLayout& layout,
                                                                     std::string nonce, Grant grant,
                                                                     const SessionMetrics& metrics) {
  std::shared_ptr<SharedSegment> segment(new SharedSegment(layout, std::move(nonce), std::move(grant), metrics));
  INTRAWARP_RETURN_IF_ERROR(segment->Make());
  return segment;
}

absl::Status SharedSegment::Make() {
  INTRAWARP_ASSIGN_OR_RETURN(fd_, MakeFile(layout_.total_bytes()));
  const int64_t frames = layout_.fields_offset() - wire::kSharedPage;
  const int64_t fields = layout_.total_bytes() - layout_.fields_offset();
  const auto map = [this](int64_t offset, int64_t bytes, bool writable) -> absl::StatusOr<wire::Mapping> {
    absl::StatusOr<wire::Mapping> mapping = wire::Mapping::Map(fd_.get(), offset, bytes, writable);
    if (mapping.ok()) return mapping;
    return WithReason(absl::FailedPreconditionError(mapping.status().message()), v1::SHARED_MEMORY_UNAVAILABLE);
  };
  INTRAWARP_ASSIGN_OR_RETURN(header_, map(0, wire::kSharedPage, true));
  INTRAWARP_ASSIGN_OR_RETURN(frames_, map(wire::kSharedPage, frames, false));
  INTRAWARP_ASSIGN_OR_RETURN(fields_, map(layout_.fields_offset(), fields, true));
  wire::SegmentHeader& to = *new (header_.data()) wire::SegmentHeader{};
  to.magic = wire::kSharedMagic;
  std::memcpy(to.nonce, nonce_.data(), wire::kSharedNonceBytes);
  for (int slot = 0; slot < layout_.frame_slots; ++slot) to.frame_generation[slot] = frame_generation_[slot] = 1;
  return absl::OkStatus();
}

SharedSegment::~SharedSegment() {
  if (header_.data() != nullptr) {
    // Marks the slots before the pages are released, so that a reading client notices.
    for (int slot = 0; slot < layout_.field_slots; ++slot) header().field_generation[slot] = 0;
  }
  if (fd_) {
    (void)fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, layout_.total_bytes());
  }
}

absl::Status SharedSegment::CheckFrame(const v1::SharedSlot& slot) const {
  if (slot.slot() < 0 || slot.slot() >= layout_.frame_slots) {
    return InvalidField("frame.slot.slot",
                        absl::StrCat("is ", slot.slot(), ", the segment has ", layout_.frame_slots, " frame slots"));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t generation = frame_generation_[slot.slot()];
  if (slot.generation() == generation) return absl::OkStatus();
  return InvalidField("frame.slot.generation",
                      absl::StrCat("is ", slot.generation(), ", the slot has generation ", generation));
}

absl::StatusOr<uint32_t> SharedSegment::CopyFrame(const v1::SharedSlot& slot, int64_t bytes, void* to) const {
  if (bytes > layout_.frame_slot_bytes) {
    return InvalidField("frame.slot.slot",
                        absl::StrCat("the frame has ", bytes, " bytes, the slot ", layout_.frame_slot_bytes));
  }
  const char* const from = frames_.data() + slot.slot() * layout_.frame_slot_bytes;
  const uint32_t checksum = CopyInPieces(static_cast<char*>(to), from, bytes);
  metrics_.CountFrame(bytes);
  if (!slot.has_crc32c() || slot.crc32c() == checksum) return checksum;
  return WithReason(
      FieldError(absl::StatusCode::kDataLoss, "frame.slot.crc32c", "is not that of the bytes in the slot"),
      v1::CHUNK_CHECKSUM, {{"offset", "0"}});
}

void SharedSegment::FrameTaken(int slot) {
  uint64_t next = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    next = ++frame_generation_[slot];
  }
  wire::StoreAndWake(header().frame_generation[slot], next);
}

bool SharedSegment::IsFree(int slot) const {
  const FieldSlot& field = field_slots_[slot];
  if (field.holder != Holder::kClient) return field.holder == Holder::kNobody;
  return header().field_released[slot].load(std::memory_order_acquire) == field.generation;
}

std::shared_ptr<SharedSegment::Field> SharedSegment::TakeField(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  int slot = 0;
  while (slot < layout_.field_slots && !IsFree(slot)) ++slot;
  if (slot == layout_.field_slots || bytes > layout_.field_slot_bytes) {
    if (layout_.field_slots > 0) metrics_.CountFieldInChunks();
    return nullptr;
  }
  field_slots_[slot].holder = Holder::kServer;
  const uint64_t generation = ++field_slots_[slot].generation;
  header().field_generation[slot] = 0;
  char* const memory = fields_.data() + slot * layout_.field_slot_bytes;
  auto field = std::make_shared<Field>();
  field->memory = std::shared_ptr<char>(
      memory, [self = shared_from_this(), slot, generation](char*) { self->GiveBack(slot, generation); });
  field->slot = slot;
  field->generation = generation;
  return field;
}

// A slot that was published may be another field's by now.
void SharedSegment::GiveBack(int slot, uint64_t generation) {
  std::lock_guard<std::mutex> lock(mutex_);
  FieldSlot& field = field_slots_[slot];
  if (field.holder == Holder::kServer && field.generation == generation) field.holder = Holder::kNobody;
}

v1::SharedSlot SharedSegment::Publish(const Field& field, int64_t bytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    field_slots_[field.slot].holder = Holder::kClient;
    header().field_generation[field.slot].store(field.generation, std::memory_order_release);
  }
  metrics_.CountField(bytes);
  v1::SharedSlot slot;
  slot.set_slot(field.slot);
  slot.set_generation(field.generation);
  return slot;
}

SharedSegment::Use SharedSegment::use() const {
  std::lock_guard<std::mutex> lock(mutex_);
  Use use{.bytes = layout_.total_bytes(), .field_slots = layout_.field_slots};
  for (int slot = 0; slot < layout_.field_slots; ++slot) use.field_slots_in_use += IsFree(slot) ? 0 : 1;
  return use;
}

}  // namespace intrawarp::server
