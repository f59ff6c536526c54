// SPDX-License-Identifier: Apache-2.0
// How a program ends that has no memory left: with a sentence, and not by a signal.
#ifndef INTRAWARP_ENGINE_BASE_MEMORY_END_H_
#define INTRAWARP_ENGINE_BASE_MEMORY_END_H_

#include <functional>

namespace intrawarp {

// Runs a program's work on the calling thread, once, before any other thread. Returns its status. Where an allocation
// or the start of a thread fails, on this thread, on another one or in a library that aborts then, the line "PROGRAM:
// RESOURCE_EXHAUSTED: memory: there is not enough of it" goes to stderr, and the exit status is 1. On this thread,
// objects are destroyed first; elsewhere the process ends at once. `program` is a literal.
int RunWithinMemory(const char* program, const std::function<int()>& run);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_BASE_MEMORY_END_H_
