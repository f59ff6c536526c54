// SPDX-License-Identifier: Apache-2.0
// Pairs of images for verdict_fields.cc: unrelated ones, and ones that a known map relates. A pair is a function of its
// number alone, so that equal numbers give equal pairs.
#ifndef INTRAWARP_TESTS_ACCURACY_FIELD_SCENES_H_
#define INTRAWARP_TESTS_ACCURACY_FIELD_SCENES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/geometry/geometry.h"
#include "engine/geometry/vec.h"

namespace intrawarp::fields {

struct Image {
  Geometry grid;
  std::vector<float> voxels;
};

// The images of the data folder that are cropped, by what they show.
struct Source {
  std::string anatomy;
  Image image;
};
std::vector<Source> ReadSources(const std::string& data);

struct Pair {
  std::string family;
  double field_mm = 0;
  Image fixed, moving;
  // Places of the fixed image that the answer is judged at, and where they lie in the moving one, LPS mm: of the body,
  // where both images show it, or landmarks. Empty where the images have nothing in common.
  std::vector<Vec3d> places, mapped;
};

// 15 to 400 mm.
extern const std::vector<double> kFieldsMm;

// The families of each side, in the order in which numbers go through them.
std::vector<std::string> UnrelatedFamilies();
std::vector<std::string> KnownFamilies();

Pair MakeUnrelated(const std::vector<Source>& sources, int number);
Pair MakeKnown(const std::vector<Source>& sources, int number);

// Breathing states of two livers in every order, with landmarks.
inline constexpr int kLiverPairs = 12;
Pair ReadLivers(const std::string& data, int number);

}  // namespace intrawarp::fields

#endif  // INTRAWARP_TESTS_ACCURACY_FIELD_SCENES_H_
