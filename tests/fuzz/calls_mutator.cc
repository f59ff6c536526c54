// SPDX-License-Identifier: Apache-2.0
// Mutations of calls_fuzz's inputs message by message, each by the type that its method takes.
#include <google/protobuf/dynamic_message.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/fuzz/calls_input.h"
#include "tests/fuzz/message_mutator.h"
#include "tests/fuzz/parts.h"

namespace {

using intrawarp::fuzz::Below;
using intrawarp::fuzz::kGoesOn;
using intrawarp::fuzz::kMostMessages;
using intrawarp::fuzz::MutateBytes;
using intrawarp::fuzz::Random;

constexpr const char* kWords[] = {"volumes/resident",
                                  "volumes/up",
                                  "transforms/t",
                                  "sparseMatrices/m",
                                  "sessions/s",
                                  "resident",
                                  "up",
                                  "t",
                                  "m",
                                  "s",
                                  "volumes/-",
                                  "volumes/a/b",
                                  "",
                                  "request-1",
                                  "*"};

std::string MutateMessage(Random& random, const std::string& part) {
  const google::protobuf::Descriptor& type = *intrawarp::fuzz::MethodOf(static_cast<uint8_t>(part[0])).input_type();
  const std::unique_ptr<google::protobuf::Message> message(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type)->New());
  if (Below(random, 20) == 0 || !message->ParseFromString(part.substr(1)))
    return part[0] + MutateBytes(part.substr(1), 64);
  intrawarp::fuzz::MessageMutator mutator(random, kWords);
  for (size_t i = 0; i <= Below(random, 3); ++i) mutator.Mutate(*message);
  std::string bytes;
  if (!message->SerializePartialToString(&bytes)) return part;
  return part[0] + bytes;
}

void Mutate(Random& random, std::vector<std::string>& parts) {
  const size_t chosen = Below(random, parts.size());
  const auto at = parts.begin() + static_cast<ptrdiff_t>(chosen);
  switch (Below(random, 12)) {
    case 0:
      if (parts.size() < kMostMessages) {
        parts.insert(at, std::string(1, static_cast<char>(Below(random, intrawarp::fuzz::Methods().size()))));
      }
      break;
    case 1:
      if (parts.size() < kMostMessages) parts.insert(at, std::string(parts[Below(random, parts.size())]));
      break;
    case 2:
      if (parts.size() > 1) parts.erase(at);
      break;
    case 3:
      std::swap(parts[chosen], parts[Below(random, parts.size())]);
      break;
    case 4:
      if (!at->empty()) (*at)[0] = static_cast<char>((*at)[0] ^ kGoesOn);
      break;
    default:
      if (!at->empty()) *at = MutateMessage(random, *at);
  }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  Random random(seed);
  std::vector<std::string> parts = intrawarp::fuzz::SplitParts(data, size, kMostMessages);
  if (parts.empty()) parts.emplace_back(1, '\0');
  for (size_t i = 0; i <= Below(random, 3); ++i) Mutate(random, parts);
  const std::string input = intrawarp::fuzz::JoinParts(parts);
  if (input.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, input.data(), input.size());
  return input.size();
}
