// SPDX-License-Identifier: Apache-2.0
#include "engine/base/memory_end.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

namespace intrawarp {
namespace {

constexpr int kFailed = 1;
// A library that aborts while not even so much can be had has aborted for want of memory.
constexpr size_t kProbeBytes = size_t{64} << 20;

const char* the_program = "";

void Write(const char* text) {
  const ssize_t written = write(STDERR_FILENO, text, strlen(text));
  (void)written;
}

// Allocates nothing.
void Tell() {
  Write(the_program);
  Write(": RESOURCE_EXHAUSTED: memory: there is not enough of it\n");
}

bool IsShort(const std::exception_ptr& exception) {
  if (exception == nullptr) return false;
  try {
    std::rethrow_exception(exception);
  } catch (const std::bad_alloc&) {
    return true;
  } catch (const std::system_error& error) {  // a thread that cannot start
    return error.code() == std::errc::resource_unavailable_try_again || error.code() == std::errc::not_enough_memory;
  } catch (...) {
    return false;
  }
}

void Terminate() {
  if (!IsShort(std::current_exception())) std::abort();
  Tell();
  _exit(kFailed);
}

// System calls only.
void OnAbort(int) {
  void* const probe = mmap(nullptr, kProbeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe == MAP_FAILED) {
    Tell();
    _exit(kFailed);
  }
  signal(SIGABRT, SIG_DFL);
  raise(SIGABRT);
}

}  // namespace

int RunWithinMemory(const char* program, const std::function<int()>& run) {
  the_program = program;
  std::set_terminate(Terminate);
  signal(SIGABRT, OnAbort);
  try {
    return run();
  } catch (const std::exception&) {
    if (!IsShort(std::current_exception())) throw;
  }
  Tell();
  return kFailed;
}

}  // namespace intrawarp
