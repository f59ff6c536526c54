// SPDX-License-Identifier: Apache-2.0
// A pair sampled from functions of position: what every kind of phantom is made through.
#ifndef INTRAWARP_CLIENT_PHANTOM_PAIR_H_
#define INTRAWARP_CLIENT_PHANTOM_PAIR_H_

#include <functional>

#include "absl/status/statusor.h"
#include "client/phantom/phantom.h"

namespace intrawarp::phantom {

// Points and distances in LPS mm, intensities in HU without noise or inversion. All are called from several threads.
struct PairFunctions {
  std::function<Vec3d(Vec3d fixed)> transform;  // fixed -> moving
  // `moving` is transform(fixed).
  std::function<double(Vec3d fixed, Vec3d moving)> fixed_hounsfield;
  std::function<double(Vec3d moving)> moving_hounsfield;
  // True where a landmark may lie. Null: everywhere in the body.
  std::function<bool(Vec3d fixed, Vec3d moving)> has_counterpart;
};

// `options` gives noise, inversion and the seed of landmarks, `model` the grids and distances.
// INVALID_ARGUMENT where too little of the body is in the images for the landmarks.
absl::StatusOr<Phantom> SamplePair(const PhantomOptions& options, const PhantomModel& model,
                                   const PairFunctions& functions);

// An intensity in HU after inversion.
double InvertedIntensity(double hounsfield);

}  // namespace intrawarp::phantom

#endif  // INTRAWARP_CLIENT_PHANTOM_PAIR_H_
