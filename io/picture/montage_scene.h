// SPDX-License-Identifier: Apache-2.0
// What a montage shows, before it is drawn: slices of the fixed grid with the data of each pixel, and the windows that
// make intensities grey. Internal to montage.h. Plain values; thread-safe functions.
#ifndef INTRAWARP_IO_PICTURE_MONTAGE_SCENE_H_
#define INTRAWARP_IO_PICTURE_MONTAGE_SCENE_H_

#include <string>
#include <vector>

#include "engine/geometry/geometry.h"
#include "io/picture/montage.h"

namespace intrawarp::io {

// A slice of the fixed grid as it is shown.
struct Plane {
  std::string name;
  int across = 0, down = 0, normal = 0;               // index axes
  bool across_flipped = false, down_flipped = false;  // against the index axes
  char left = 0, right = 0, top = 0, bottom = 0;      // sides of the patient; 0: not known
  int width = 0, height = 0;                          // pixels
  double mm = 1;                                      // a pixel's side, where nothing is stretched
  double stretch_across = 1, stretch_down = 1;        // of a slice that would be too thin to be seen
  int index = 0;                                      // of the slice, along `normal`
};

// The data of one pixel of a slice. Intensities are in 0..1, NaN where there are none.
struct ScenePixel {
  float fixed = 0, warped = 0, before = 0;
  float error = 0;             // predicted, mm; NaN where it was not judged
  bool is_missing = false;     // it has no counterpart in the moving image
  float length = 0;            // the displacement's, mm
  float across = 0, down = 0;  // T(x) along the slice's axes, mm from the middle of the fixed image
};

struct Slice {
  Plane plane;
  std::vector<ScenePixel> pixels;
  const ScenePixel& at(int x, int y) const { return pixels[size_t(y) * plane.width + x]; }
  // The part of the pixel that a contour of the fixed image covers, for each pixel.
  std::vector<float> contours;
};

struct MontageScene {
  IntensityRelation relation = IntensityRelation::kOther;
  IntensityWindow fixed_window, moving_window;
  double extent_mm = 0;  // the longest side of the fixed image
  bool goes_through_error = false;
  std::vector<Slice> slices;
};

// The arguments of RenderMontage, which has checked them.
MontageScene MakeScene(const HostImage& fixed, const HostImage& moving, const HostImage& warped, const HostField& field,
                       const MontageOptions& options);

// Where in a slice, as pixels, another slice of the same grid cuts it: the column of one whose normal is `across`, the
// row of one whose normal is `down`.
int CutAt(const Geometry& fixed, const Plane& plane, const Plane& other);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_PICTURE_MONTAGE_SCENE_H_
