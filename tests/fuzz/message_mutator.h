// SPDX-License-Identifier: Apache-2.0
// Mutations of protobuf messages field by field, so that what comes out is a message again, with values that break
// arithmetic and names that a fuzz target's server knows. For custom mutators of libFuzzer.
#ifndef INTRAWARP_TESTS_FUZZ_MESSAGE_MUTATOR_H_
#define INTRAWARP_TESTS_FUZZ_MESSAGE_MUTATOR_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/types/span.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace intrawarp::fuzz {

using Random = std::minstd_rand;

inline size_t Below(Random& random, size_t n) { return n == 0 ? 0 : random() % n; }

inline std::string MutateBytes(std::string bytes, size_t room) {
  const size_t size = bytes.size();
  bytes.resize(size + std::max<size_t>(room, 1));
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(bytes.data()), size, bytes.size()));
  return bytes;
}

class MessageMutator {
 public:
  // `words`: values for fields of text. They outlive the mutator.
  MessageMutator(Random& random, absl::Span<const char* const> words) : random_(random), words_(words) {}

  // Changes one field, of the message or of one below it.
  void Mutate(google::protobuf::Message& message, int depth = 0) {
    const google::protobuf::Descriptor& type = *message.GetDescriptor();
    if (type.field_count() == 0) return;
    std::vector<const google::protobuf::FieldDescriptor*> set;
    message.GetReflection()->ListFields(message, &set);
    const bool of_set = !set.empty() && Below(random_, 10) < 7;
    const google::protobuf::FieldDescriptor& field =
        of_set ? *set[Below(random_, set.size())]
               : *type.field(static_cast<int>(Below(random_, static_cast<size_t>(type.field_count()))));
    if (field.is_repeated()) return MutateList(message, field, depth);
    MutateOne(message, field, depth);
  }

 private:
  using Message = google::protobuf::Message;
  using Field = google::protobuf::FieldDescriptor;
  static constexpr int kMostDepth = 8;

  void MutateOne(Message& message, const Field& field, int depth) {
    const auto& reflection = *message.GetReflection();
    if (Below(random_, 8) == 0) return reflection.ClearField(&message, &field);
    switch (field.cpp_type()) {
      case Field::CPPTYPE_INT32:
        return reflection.SetInt32(&message, &field,
                                   static_cast<int32_t>(Integer(reflection.GetInt32(message, &field))));
      case Field::CPPTYPE_INT64:
        return reflection.SetInt64(&message, &field, Integer(reflection.GetInt64(message, &field)));
      case Field::CPPTYPE_UINT32:
        return reflection.SetUInt32(&message, &field,
                                    static_cast<uint32_t>(Integer(reflection.GetUInt32(message, &field))));
      case Field::CPPTYPE_UINT64:
        return reflection.SetUInt64(
            &message, &field,
            static_cast<uint64_t>(Integer(static_cast<int64_t>(reflection.GetUInt64(message, &field)))));
      case Field::CPPTYPE_DOUBLE:
        return reflection.SetDouble(&message, &field, Real(reflection.GetDouble(message, &field)));
      case Field::CPPTYPE_FLOAT:
        return reflection.SetFloat(&message, &field, static_cast<float>(Real(reflection.GetFloat(message, &field))));
      case Field::CPPTYPE_BOOL:
        return reflection.SetBool(&message, &field, Below(random_, 2) == 0);
      case Field::CPPTYPE_ENUM:
        return reflection.SetEnumValue(&message, &field, Enum(field));
      case Field::CPPTYPE_STRING:
        return reflection.SetString(&message, &field, Text(reflection.GetString(message, &field)));
      case Field::CPPTYPE_MESSAGE:
        if (depth < kMostDepth) Mutate(*reflection.MutableMessage(&message, &field), depth + 1);
    }
  }

  void MutateList(Message& message, const Field& field, int depth) {
    const auto& reflection = *message.GetReflection();
    const int size = reflection.FieldSize(message, &field);
    if (size > 0 && Below(random_, 6) == 0) return reflection.RemoveLast(&message, &field);
    const bool adds = size == 0 || Below(random_, 4) == 0;
    const int at = static_cast<int>(Below(random_, static_cast<size_t>(std::max(size, 1))));
    switch (field.cpp_type()) {
      case Field::CPPTYPE_MESSAGE:
        if (depth >= kMostDepth) return;
        return Mutate(
            adds ? *reflection.AddMessage(&message, &field) : *reflection.MutableRepeatedMessage(&message, &field, at),
            depth + 1);
      case Field::CPPTYPE_DOUBLE:
        if (adds) return reflection.AddDouble(&message, &field, Real(0));
        return reflection.SetRepeatedDouble(&message, &field, at,
                                            Real(reflection.GetRepeatedDouble(message, &field, at)));
      case Field::CPPTYPE_FLOAT:
        if (adds) return reflection.AddFloat(&message, &field, static_cast<float>(Real(0)));
        return reflection.SetRepeatedFloat(&message, &field, at, static_cast<float>(Real(1)));
      case Field::CPPTYPE_INT32:
        if (adds) return reflection.AddInt32(&message, &field, static_cast<int32_t>(Integer(0)));
        return reflection.SetRepeatedInt32(&message, &field, at, static_cast<int32_t>(Integer(1)));
      case Field::CPPTYPE_INT64:
        if (adds) return reflection.AddInt64(&message, &field, Integer(0));
        return reflection.SetRepeatedInt64(&message, &field, at, Integer(1));
      case Field::CPPTYPE_STRING:
        if (adds) return reflection.AddString(&message, &field, Text(""));
        return reflection.SetRepeatedString(&message, &field, at, Text(""));
      default:
        return;
    }
  }

  int64_t Integer(int64_t old) {
    static constexpr int64_t kEdges[] = {0,
                                         1,
                                         2,
                                         3,
                                         4,
                                         5,
                                         6,
                                         8,
                                         16,
                                         100,
                                         144,
                                         255,
                                         4096,
                                         65536,
                                         1 << 20,
                                         int64_t{1} << 31,
                                         int64_t{1} << 32,
                                         int64_t{1} << 40,
                                         std::numeric_limits<int64_t>::max(),
                                         std::numeric_limits<int64_t>::min(),
                                         std::numeric_limits<int32_t>::max(),
                                         std::numeric_limits<int32_t>::min(),
                                         -1};
    switch (Below(random_, 4)) {
      case 0:
        return static_cast<int64_t>(static_cast<uint64_t>(old) + Below(random_, 5) - 2);
      case 1:
        return static_cast<int64_t>(static_cast<uint64_t>(old) ^ uint64_t{1} << Below(random_, 64));
      default:
        return kEdges[Below(random_, std::size(kEdges))];
    }
  }

  double Real(double old) {
    static const double kEdges[] = {0.0,
                                    -0.0,
                                    1,
                                    -1,
                                    0.5,
                                    2,
                                    4,
                                    1e-9,
                                    1e9,
                                    1e30,
                                    -1e30,
                                    1e300,
                                    1e-300,
                                    1e-45,
                                    65536,
                                    std::numeric_limits<double>::max(),
                                    std::numeric_limits<double>::infinity(),
                                    -std::numeric_limits<double>::infinity(),
                                    std::nan("")};
    if (Below(random_, 4) == 0) return old * (1 + 1e-6 * static_cast<double>(Below(random_, 10)));
    return kEdges[Below(random_, std::size(kEdges))];
  }

  int Enum(const Field& field) {
    if (Below(random_, 10) == 0) return static_cast<int>(random_());
    const auto& type = *field.enum_type();
    return type.value(static_cast<int>(Below(random_, static_cast<size_t>(type.value_count()))))->number();
  }

  std::string Text(const std::string& old) {
    if (!words_.empty() && Below(random_, 3) != 0) return words_[Below(random_, words_.size())];
    return MutateBytes(old, 32);
  }

  Random& random_;
  const absl::Span<const char* const> words_;
};

}  // namespace intrawarp::fuzz

#endif  // INTRAWARP_TESTS_FUZZ_MESSAGE_MUTATOR_H_
