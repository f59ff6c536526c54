// SPDX-License-Identifier: Apache-2.0
// Stages of any method for tests: the options that all methods share, by reflection.
#ifndef INTRAWARP_TESTS_SERVER_STAGES_H_
#define INTRAWARP_TESTS_SERVER_STAGES_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "intrawarp/v1/registration.pb.h"

namespace intrawarp::server {

enum class StageKind {
  kRigid = v1::Stage::kRigid,
  kAffine = v1::Stage::kAffine,
  kFfd = v1::Stage::kFfd,
  kLogDemons = v1::Stage::kLogDemons
};

// The options of the stage's method, which is set.
inline google::protobuf::Message& OptionsOf(v1::Stage& stage) {
  return *stage.GetReflection()->MutableMessage(&stage,
                                                v1::Stage::descriptor()->FindFieldByNumber(stage.method_case()));
}

inline void SetMethod(v1::Stage& stage, StageKind kind) {
  stage.GetReflection()->MutableMessage(&stage, v1::Stage::descriptor()->FindFieldByNumber(static_cast<int>(kind)));
}
inline void SetMetric(v1::Stage& stage, v1::Metric metric) {
  google::protobuf::Message& options = OptionsOf(stage);
  options.GetReflection()->SetEnumValue(&options, options.GetDescriptor()->FindFieldByName("metric"), metric);
}
inline void SetCount(v1::Stage& stage, const char* field, int count) {
  google::protobuf::Message& options = OptionsOf(stage);
  options.GetReflection()->SetInt32(&options, options.GetDescriptor()->FindFieldByName(field), count);
}
inline void SetLevels(v1::Stage& stage, int levels) { SetCount(stage, "levels", levels); }
inline void SetIterations(v1::Stage& stage, int iterations) { SetCount(stage, "iterations", iterations); }

inline v1::Metric MetricOf(v1::Stage stage) {
  google::protobuf::Message& options = OptionsOf(stage);
  return static_cast<v1::Metric>(
      options.GetReflection()->GetEnumValue(options, options.GetDescriptor()->FindFieldByName("metric")));
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_STAGES_H_
