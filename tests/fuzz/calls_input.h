// SPDX-License-Identifier: Apache-2.0
// Inputs of calls_fuzz: messages, each a part (parts.h) whose first byte names a method of the services, and says
// whether the message goes on with the call of the part before.
#ifndef INTRAWARP_TESTS_FUZZ_CALLS_INPUT_H_
#define INTRAWARP_TESTS_FUZZ_CALLS_INPUT_H_

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "intrawarp/v1/bulk.pb.h"
#include "intrawarp/v1/registration.pb.h"
#include "intrawarp/v1/server.pb.h"
#include "intrawarp/v1/sparse_matrix.pb.h"
#include "intrawarp/v1/transform.pb.h"
#include "intrawarp/v1/volume.pb.h"

namespace intrawarp::fuzz {

inline constexpr uint8_t kGoesOn = 0x80;
inline constexpr uint8_t kMethodBits = 0x3f;
inline constexpr size_t kMostMessages = 12;

// All methods of the contract, in an order of their own: the corpus names them by their places, so that a method which
// came after it stands last.
inline const std::vector<const google::protobuf::MethodDescriptor*>& Methods() {
  static const auto* const methods = [] {
    auto* all = new std::vector<const google::protobuf::MethodDescriptor*>;
    for (const google::protobuf::Descriptor* of :
         {v1::UploadRequest::descriptor(), v1::RegisterRequest::descriptor(), v1::MultiplyRequest::descriptor(),
          v1::WarpVolumeRequest::descriptor(), v1::GetVolumeRequest::descriptor(),
          v1::GetServerInfoRequest::descriptor()}) {
      const google::protobuf::FileDescriptor& file = *of->file();
      for (int i = 0; i < file.service_count(); ++i) {
        for (int k = 0; k < file.service(i)->method_count(); ++k) all->push_back(file.service(i)->method(k));
      }
    }
    std::stable_partition(all->begin(), all->end(),
                          [](const auto* method) { return method->name() != "MultiplyTriple"; });
    return all;
  }();
  return *methods;
}

inline const google::protobuf::MethodDescriptor& MethodOf(uint8_t first) {
  return *Methods()[(first & kMethodBits) % Methods().size()];
}

}  // namespace intrawarp::fuzz

#endif  // INTRAWARP_TESTS_FUZZ_CALLS_INPUT_H_
