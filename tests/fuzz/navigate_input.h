// SPDX-License-Identifier: Apache-2.0
// Inputs of navigate_fuzz: steps, each a part (parts.h) whose first byte says what happens, and on which of two streams
// where bit 7 says so.
#ifndef INTRAWARP_TESTS_FUZZ_NAVIGATE_INPUT_H_
#define INTRAWARP_TESTS_FUZZ_NAVIGATE_INPUT_H_

#include <cstddef>
#include <cstdint>

namespace intrawarp::fuzz {

enum class NavigateStep : uint8_t {
  kMessage,  // the rest: a NavigateRequest's bytes
  kFrame,    // a frame that fits: by how much its number grows, its side, its chunks, what is spoilt (kSpoils)
  kEnd,      // the client ends its side
  kBreak,    // the connection breaks
  kWait,     // milliseconds, two bytes
  kClose,    // the session is closed by its name; 1: all are
  kSteps,
};
inline constexpr uint8_t kSecondStream = 0x80;
inline constexpr size_t kMostSteps = 40;

enum class Spoil : uint8_t { kNothing, kChecksum, kOffset, kMissing, kTwice, kSpoils };

}  // namespace intrawarp::fuzz

#endif  // INTRAWARP_TESTS_FUZZ_NAVIGATE_INPUT_H_
