// SPDX-License-Identifier: Apache-2.0
// What ThreadSanitizer cannot see of gRPC, told to it. Debian's gRPC and Abseil are not instrumented, so the order that
// they give to the work they hand from thread to thread is invisible, and everything handed over looks like a race.
// These definitions stand before those of the libraries in every program of the tsan preset, call them, and add:
//   - absl::Mutex and absl::CondVar: an unlock comes before the next lock of the same mutex;
//   - an operation of a completion queue: its start comes before its completion, tag by tag;
//   - client and server of one process: what the caller of a synchronous stub did before an operation comes before
//     what the server completes later, and the other way round. The network is not followed message by message, so
//     this edge is wider than the true one; it runs between client and server alone, never straight from one thread
//     of the server (whose queues are the callback ones) to another. A child process may be the client;
//   - the count of what a call of the callback server waits for, where gRPC's library takes the last of it: everything
//     that the reactor's methods did comes before its OnDone;
//   - the count of calls that a server's shutdown waits for: all of a call comes before the end of the shutdown.
// Built without instrumentation. Names and signatures: Abseil 20220623 and gRPC 1.51 as Debian 12 has them.
#include <dlfcn.h>
#include <grpc/grpc.h>
#include <grpcpp/support/server_callback.h>
#include <sanitizer/tsan_interface.h>
#include <spawn.h>
#include <sys/wait.h>

#include <atomic>

#include "absl/time/time.h"

namespace {

template <typename Function>
Function* Next(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
// The definition that the one of this file stands before.
#define NEXT(function)                                   \
  ([] {                                                  \
    static const auto next = Next(&function, #function); \
    return next;                                         \
  }())

constexpr int kCallbackQueue = 2;  // grpc_cq_completion_type: GRPC_CQ_CALLBACK

char to_server, to_client;  // their addresses stand for the network

// The members of grpc::internal::ServerCallbackCall, all of them private.
struct CallCounts {
  void* vtable;
  std::atomic_int on_cancel_conditions_remaining;
  std::atomic_int callbacks_outstanding;
};

// Stands for a reactor while gRPC calls its OnCancel, after which the library counts `callbacks_outstanding` down.
class CancelledReactor final : public grpc::internal::ServerReactor {
 public:
  CancelledReactor(CallCounts* call, ServerReactor* reactor) : call_(call), reactor_(reactor) {}
  bool InternalInlineable() override { return reactor_->InternalInlineable(); }
  void OnDone() override {}
  void OnCancel() override {
    reactor_->OnCancel();
    __tsan_release(&call_->callbacks_outstanding);
    delete this;
  }

 private:
  CallCounts* const call_;
  ServerReactor* const reactor_;
};

}  // namespace

extern "C" {

void _ZN4absl7debian35Mutex4LockEv(void* mutex) {
  NEXT(_ZN4absl7debian35Mutex4LockEv)(mutex);
  __tsan_acquire(mutex);
}

bool _ZN4absl7debian35Mutex7TryLockEv(void* mutex) {
  const bool locked = NEXT(_ZN4absl7debian35Mutex7TryLockEv)(mutex);
  if (locked) __tsan_acquire(mutex);
  return locked;
}

void _ZN4absl7debian35Mutex6UnlockEv(void* mutex) {
  __tsan_release(mutex);
  NEXT(_ZN4absl7debian35Mutex6UnlockEv)(mutex);
}

void _ZN4absl7debian37CondVar4WaitEPNS0_5MutexE(void* condition, void* mutex) {
  __tsan_release(mutex);
  NEXT(_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE)(condition, mutex);
  __tsan_acquire(mutex);
}

bool _ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE(void* condition, void* mutex,
                                                                          absl::Duration timeout) {
  __tsan_release(mutex);
  const bool expired =
      NEXT(_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE)(condition, mutex, timeout);
  __tsan_acquire(mutex);
  return expired;
}

bool _ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE(void* condition, void* mutex,
                                                                       absl::Time deadline) {
  __tsan_release(mutex);
  const bool expired =
      NEXT(_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE)(condition, mutex, deadline);
  __tsan_acquire(mutex);
  return expired;
}

int _Z27grpc_get_cq_completion_typeP21grpc_completion_queue(grpc_completion_queue* queue);

bool _Z16grpc_cq_begin_opP21grpc_completion_queuePv(grpc_completion_queue* queue, void* tag) {
  const bool callback = _Z27grpc_get_cq_completion_typeP21grpc_completion_queue(queue) == kCallbackQueue;
  if (tag != nullptr) __tsan_release(tag);
  if (!callback) __tsan_release(&to_server);
  __tsan_release(&to_client);
  return NEXT(_Z16grpc_cq_begin_opP21grpc_completion_queuePv)(queue, tag);
}

// `error` is an absl::Status by value, which the ABI passes by address.
void _Z14grpc_cq_end_opP21grpc_completion_queuePvN4absl7debian36StatusEPFvS1_P18grpc_cq_completionES1_S6_b(
    grpc_completion_queue* queue, void* tag, void* error, void* done, void* done_argument, void* storage,
    bool internal) {
  if (tag != nullptr) {
    __tsan_acquire(tag);
    __tsan_release(tag);
  }
  __tsan_acquire(&to_server);
  NEXT(_Z14grpc_cq_end_opP21grpc_completion_queuePvN4absl7debian36StatusEPFvS1_P18grpc_cq_completionES1_S6_b)
  (queue, tag, error, done, done_argument, storage, internal);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline, void* reserved) {
  const grpc_event event = NEXT(grpc_completion_queue_next)(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE && event.tag != nullptr) __tsan_acquire(event.tag);
  __tsan_acquire(&to_client);
  return event;
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag, gpr_timespec deadline, void* reserved) {
  const grpc_event event = NEXT(grpc_completion_queue_pluck)(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE && tag != nullptr) __tsan_acquire(tag);
  __tsan_acquire(&to_client);
  return event;
}

void _ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb(CallCounts* call, bool inline_ondone) {
  __tsan_acquire(&call->callbacks_outstanding);
  NEXT(_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb)(call, inline_ondone);
}

void _ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_13ServerReactorE(CallCounts* call,
                                                                               grpc::internal::ServerReactor* reactor) {
  __tsan_acquire(&call->on_cancel_conditions_remaining);
  NEXT(_ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_13ServerReactorE)
  (call, new CancelledReactor(call, reactor));
}

void _ZN4grpc6Server23UnrefWithPossibleNotifyEv(void* server) {
  __tsan_release(server);
  NEXT(_ZN4grpc6Server23UnrefWithPossibleNotifyEv)(server);
}

void _ZN4grpc6Server18UnrefAndWaitLockedEv(void* server) {
  NEXT(_ZN4grpc6Server18UnrefAndWaitLockedEv)(server);
  __tsan_acquire(server);
}

int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const arguments[], char* const environment[]) {
  __tsan_release(&to_server);
  return NEXT(posix_spawn)(pid, path, actions, attributes, arguments, environment);
}

pid_t waitpid(pid_t pid, int* status, int options) {
  const pid_t waited = NEXT(waitpid)(pid, status, options);
  __tsan_acquire(&to_client);
  return waited;
}

}  // extern "C"
