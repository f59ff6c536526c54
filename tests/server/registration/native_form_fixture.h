// SPDX-License-Identifier: Apache-2.0
// What the tests of the deformable methods share, whose transforms travel in a form of their own: ffd's as control
// points, log-demons' as a velocity.
#ifndef INTRAWARP_TESTS_SERVER_REGISTRATION_NATIVE_FORM_FIXTURE_H_
#define INTRAWARP_TESTS_SERVER_REGISTRATION_NATIVE_FORM_FIXTURE_H_

#include <functional>
#include <string>
#include <vector>

#include "tests/server/deformed_pair.h"
#include "tests/server/stages.h"

namespace intrawarp::server {

class NativeFormTest : public DeformedPairTest {
 protected:
  // `stage`: the field of v1::Stage that holds the method's options.
  NativeFormTest(std::string stage, v1::FieldEncoding native, const ServerLimits& limits = ServerLimits())
      : DeformedPairTest(limits), stage_(std::move(stage)), native_(native) {}

  // The id of the transform of a registration of the pair.
  std::string RegisteredId(const v1::RegisterRequest& request);
  Download GetNative(const std::string& id) { return GetEncoded(id, native_); }
  // The header of an upload in the native form, with the identity as the affine part.
  v1::FieldHeader NativeHeader(Int3 size) const;

  // The values at every stride-th voxel of the fixed grid from `start` on are those of the whole field or velocity.
  static void ExpectPart(const std::vector<float>& part, const std::vector<float>& whole, Int3 start, Int3 stride,
                         Int3 size);

  // The transform comes back by an upload, as "transforms/again": the same message, bits, fields and warped volumes.
  // Returns the native form.
  Download ExpectTheSameBroughtBack(const std::string& id);
  // One level from the identity, and then from its result, as it is stored and as a client brings it.
  void ExpectToStartFromAnEarlierOne(v1::RegisterRequest request);
  // 2-D images; the native form comes back by an upload. Returns the answer.
  RegisterAnswer ExpectImagesOfOnePlaneRegistered(v1::RegisterRequest request);
  // A registration whose budget ends at once is refused, or gives a transform that moves nothing. Returns that answer.
  RegisterAnswer ExpectABudgetThatEndsAtOnce(v1::RegisterRequest request);

  // The request is refused for one field of its second stage.
  void ExpectStageError(v1::RegisterRequest request, const std::function<void(v1::Stage&)>& change,
                        const std::string& field);
  // An upload whose header is changed is refused for one of its fields.
  void ExpectHeaderError(const v1::FieldHeader& good, const std::vector<float>& values,
                         const std::function<void(v1::FieldHeader&)>& change, const std::string& field);

 private:
  const std::string stage_;
  const v1::FieldEncoding native_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_REGISTRATION_NATIVE_FORM_FIXTURE_H_
