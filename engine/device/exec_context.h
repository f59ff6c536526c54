// SPDX-License-Identifier: Apache-2.0
// ExecContext: where an operator runs (device, stream), where its workspace comes from (arena), and how a long
// computation learns that it should stop (Checkpoint). Passed first, by const reference, to every operator.
#ifndef INTRAWARP_ENGINE_DEVICE_EXEC_CONTEXT_H_
#define INTRAWARP_ENGINE_DEVICE_EXEC_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/device.h"

namespace intrawarp {

// Workspace of one job: one block of device memory handed out from the front, given back in one piece or by ArenaScope.
// Stream-ordered like the memory in it: what was given back may be handed out again to later work of the same stream.
// Not thread-safe: one job, one arena.
class Arena {
 public:
  static constexpr size_t kAlignment = 256;

  // Bytes that Allocate takes for a request of `bytes`; for workspace estimates.
  static constexpr size_t Rounded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  Arena() = default;
  explicit Arena(Buffer buffer) : buffer_(std::move(buffer)) {}

  // RESOURCE_EXHAUSTED when the block is used up, which is a mistake in the estimate that sized it.
  absl::StatusOr<void*> AllocateBytes(size_t bytes);
  template <typename T>
  absl::StatusOr<T*> Allocate(size_t count) {
    absl::StatusOr<void*> p = AllocateBytes(count > SIZE_MAX / sizeof(T) ? SIZE_MAX : count * sizeof(T));
    if (!p.ok()) return p.status();
    return static_cast<T*>(*p);
  }
  size_t used() const { return used_; }
  size_t capacity() const { return buffer_.bytes(); }

 private:
  friend class ArenaScope;
  Buffer buffer_;
  size_t used_ = 0;
};

// Gives back, at the end of a scope, what was allocated in it.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.used_) {}
  ArenaScope(const ArenaScope&) = delete;
  ~ArenaScope() { arena_.used_ = mark_; }

 private:
  Arena& arena_;
  size_t mark_;
};

// Where a long computation stands. Stages and levels are counted from 0; a stage below 0 is the work before the first,
// and level 0 is the coarsest.
struct Progress {
  int stage = 0;
  int level = 0;
  int levels = 0;
  int iteration = 0;
  double value = 0;
};

// What a computation is told at a checkpoint.
enum class Decision {
  kContinue,
  kStop,    // the time budget is used up: return the best so far, marked as such
  kCancel,  // nobody waits for it any more: return CANCELLED
};

// May block (a scheduler may hold a job there), and may drain the context's stream and exchange it for another. Called
// by the thread that runs the job.
using CheckpointFn = std::function<Decision(const Progress&)>;

class ExecContext {
 public:
  ExecContext(Device& device, StreamView stream, Arena& arena, CheckpointFn checkpoint = nullptr)
      : device_(device), stream_(stream), arena_(arena), checkpoint_(std::move(checkpoint)) {}
  // The stream is always that of `lane`, which must outlive the context and changes only inside a checkpoint.
  ExecContext(Device& device, const StreamView* lane, Arena& arena, CheckpointFn checkpoint)
      : device_(device), stream_(*lane), lane_(lane), arena_(arena), checkpoint_(std::move(checkpoint)) {}

  // The same device, stream and checkpoint with another arena.
  ExecContext WithArena(Arena& arena) const {
    return lane_ != nullptr ? ExecContext(device_, lane_, arena, checkpoint_)
                            : ExecContext(device_, stream_, arena, checkpoint_);
  }

  Device& device() const { return device_; }
  // Operators ask for it at every use and do not keep the view across a checkpoint, which may exchange the stream.
  StreamView stream() const { return lane_ != nullptr ? *lane_ : stream_; }
  Arena& arena() const { return arena_; }
  bool is_cuda() const { return device_.kind() == DeviceKind::kCuda; }
  Decision Checkpoint(const Progress& progress) const {
    return checkpoint_ ? checkpoint_(progress) : Decision::kContinue;
  }

 private:
  Device& device_;
  StreamView stream_;
  const StreamView* lane_ = nullptr;
  Arena& arena_;
  CheckpointFn checkpoint_;
};

// A device, a stream of a partition and an arena of `workspace_bytes`, for tests and benches.
class OwnedContext {
 public:
  static absl::StatusOr<OwnedContext> Create(Device& device, size_t workspace_bytes,
                                             Partition partition = Partition::kWhole);
  ExecContext context(CheckpointFn checkpoint = nullptr) {
    return ExecContext(*device_, stream_.view(), arena_, std::move(checkpoint));
  }

 private:
  OwnedContext(Device& device, Stream stream, Arena arena)
      : device_(&device), stream_(std::move(stream)), arena_(std::move(arena)) {}
  Device* device_;
  Stream stream_;
  Arena arena_;
};

// Calls cuda::Fn or cpu::Fn by the context's device; both take the same arguments.
#if INTRAWARP_WITH_CUDA
#define INTRAWARP_DISPATCH(ctx, Fn, ...) ((ctx).is_cuda() ? cuda::Fn(ctx, __VA_ARGS__) : cpu::Fn(ctx, __VA_ARGS__))
#else
#define INTRAWARP_DISPATCH(ctx, Fn, ...) cpu::Fn(ctx, __VA_ARGS__)
#endif

// Declares functions once for both devices, in cpu and in cuda; to be used in namespace intrawarp.
#define INTRAWARP_DECLARE_ON_DEVICES(...) \
  namespace cpu {                         \
  __VA_ARGS__                             \
  }                                       \
  namespace cuda {                        \
  __VA_ARGS__                             \
  }

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_DEVICE_EXEC_CONTEXT_H_
