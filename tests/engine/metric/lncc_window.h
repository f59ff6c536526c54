// SPDX-License-Identifier: Apache-2.0
// The window of LNCC (engine/metric/lncc.h) for references: boxes of 2 x 2 x 2 voxels, and a Gaussian over boxes.
#ifndef INTRAWARP_TESTS_ENGINE_METRIC_LNCC_WINDOW_H_
#define INTRAWARP_TESTS_ENGINE_METRIC_LNCC_WINDOW_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/geometry/vec.h"

namespace intrawarp {

inline Int3 BoxesOf(Int3 n) { return {(n.x + 1) / 2, (n.y + 1) / 2, (n.z + 1) / 2}; }

// The box of each voxel of an image of n voxels.
inline std::vector<int64_t> BoxOfVoxels(Int3 n) {
  const Int3 boxes = BoxesOf(n);
  std::vector<int64_t> of;
  for (int z = 0; z < n.z; ++z)
    for (int y = 0; y < n.y; ++y)
      for (int x = 0; x < n.x; ++x) of.push_back((int64_t{z / 2} * boxes.y + y / 2) * boxes.x + x / 2);
  return of;
}

// The sum over the voxels of each box.
inline std::vector<double> SumBoxes(const std::vector<double>& voxels, Int3 n) {
  const Int3 boxes = BoxesOf(n);
  const std::vector<int64_t> of = BoxOfVoxels(n);
  std::vector<double> sums(int64_t{boxes.x} * boxes.y * boxes.z, 0.0);
  for (size_t i = 0; i < voxels.size(); ++i) sums[of[i]] += voxels[i];
  return sums;
}

// The standard deviation, in boxes, of the Gaussian that with a box of two voxels has the variance sigma^2 of voxels.
inline double SigmaOverBoxes(double sigma) { return std::sqrt((sigma * sigma - 0.25) / 4); }

// Sums over the window around every box, axis by axis; the window is symmetric: its own transpose.
inline std::vector<double> SumWindows(const std::vector<double>& in, Int3 n, double sigma) {
  const Int3 boxes = BoxesOf(n);
  const double s = SigmaOverBoxes(sigma);
  const int r = static_cast<int>(std::ceil(3 * s));
  const int64_t stride[3] = {1, boxes.x, int64_t{boxes.x} * boxes.y};
  std::vector<double> from = in, to(in.size());
  for (int axis = 0; axis < 3; ++axis) {
    for (int64_t i = 0; i < static_cast<int64_t>(in.size()); ++i) {
      const int at = static_cast<int>(i / stride[axis] % boxes[axis]);
      double sum = 0;
      for (int k = std::max(-r, -at); k <= std::min(r, boxes[axis] - 1 - at); ++k) {
        sum += std::exp(-0.5 * k * k / (s * s)) * from[i + k * stride[axis]];
      }
      to[i] = sum;
    }
    std::swap(from, to);
  }
  return from;
}

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_ENGINE_METRIC_LNCC_WINDOW_H_
