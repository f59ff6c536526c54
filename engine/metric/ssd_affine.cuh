// SPDX-License-Identifier: Apache-2.0
// The term of SSD (ssd.h) in the affine objective on CUDA.
#ifndef INTRAWARP_ENGINE_METRIC_SSD_AFFINE_CUH_
#define INTRAWARP_ENGINE_METRIC_SSD_AFFINE_CUH_

#include "engine/metric/affine_moments.cuh"

namespace intrawarp::cuda {

struct SsdTerm {
  static constexpr bool kIsSquare = true;
  static __device__ float Scale(const ObjectiveArgs& args) { return args.intensity_scale; }
  static __device__ SampleTerm At(const ObjectiveArgs& args, size_t offset, float value) {
    return {args.intensity_scale * (value - args.fixed[offset]), 0};
  }
};

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_METRIC_SSD_AFFINE_CUH_
