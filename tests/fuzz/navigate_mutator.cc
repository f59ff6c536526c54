// SPDX-License-Identifier: Apache-2.0
// Mutations of navigate_fuzz's inputs step by step: messages are mutated field by field, steps are added, removed,
// repeated and exchanged.
#include <cstring>
#include <string>
#include <vector>

#include "intrawarp/v1/registration.pb.h"
#include "tests/fuzz/message_mutator.h"
#include "tests/fuzz/navigate_input.h"
#include "tests/fuzz/parts.h"

namespace {

using intrawarp::fuzz::Below;
using intrawarp::fuzz::kMostSteps;
using intrawarp::fuzz::MutateBytes;
using intrawarp::fuzz::NavigateStep;
using intrawarp::fuzz::Random;
namespace v1 = intrawarp::v1;

constexpr const char* kWords[] = {"volumes/resident", "s0", "s1",      "sessions/s0", "transforms/x",
                                  "volumes/absent",   "",   "resident"};

std::string MutateMessage(Random& random, const std::string& bytes) {
  v1::NavigateRequest request;
  if (Below(random, 10) == 0 || !request.ParseFromString(bytes)) return MutateBytes(bytes, 64);
  intrawarp::fuzz::MessageMutator mutator(random, kWords);
  for (size_t i = 0; i <= Below(random, 3); ++i) mutator.Mutate(request);
  return request.SerializeAsString();
}

std::string SomeStep(Random& random) {
  std::string step(1, static_cast<char>(1 + Below(random, static_cast<size_t>(NavigateStep::kSteps) - 1)));
  // Mostly a frame as it should be.
  if (Below(random, 2) == 0) return std::string("\1\1\0\0\0", 5);
  for (int i = 0; i < 4; ++i) step.push_back(static_cast<char>(Below(random, 8)));
  return step;
}

void Mutate(Random& random, std::vector<std::string>& steps) {
  const size_t chosen = Below(random, steps.size());
  const auto at = steps.begin() + static_cast<ptrdiff_t>(chosen);
  switch (Below(random, 8)) {
    case 0:
      if (steps.size() < kMostSteps) steps.insert(at, SomeStep(random));
      break;
    case 1:
      if (steps.size() < kMostSteps) steps.insert(at, std::string(steps[Below(random, steps.size())]));
      break;
    case 2:
      if (steps.size() > 1) steps.erase(at);
      break;
    case 3:
      std::swap(steps[chosen], steps[Below(random, steps.size())]);
      break;
    case 4:
      if (!at->empty()) (*at)[0] = static_cast<char>((*at)[0] ^ 0x80);
      break;
    default: {
      const bool is_message = !at->empty() && ((*at)[0] & 0x7f) == static_cast<char>(NavigateStep::kMessage);
      *at = is_message ? (*at)[0] + MutateMessage(random, at->substr(1)) : MutateBytes(*at, 4);
    }
  }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  Random random(seed);
  std::vector<std::string> steps = intrawarp::fuzz::SplitParts(data, size, kMostSteps);
  if (steps.empty()) steps.push_back(SomeStep(random));
  for (size_t i = 0; i <= Below(random, 4); ++i) Mutate(random, steps);
  const std::string input = intrawarp::fuzz::JoinParts(steps);
  if (input.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, input.data(), input.size());
  return input.size();
}
