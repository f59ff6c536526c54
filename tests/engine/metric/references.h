// SPDX-License-Identifier: Apache-2.0
// The parts that the objectives' float64 references share: volumes on the host, samples, the cubic B-spline, NMI.
#ifndef INTRAWARP_TESTS_ENGINE_METRIC_REFERENCES_H_
#define INTRAWARP_TESTS_ENGINE_METRIC_REFERENCES_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/geometry/geometry.h"
#include "engine/geometry/vec.h"

namespace intrawarp {

struct HostVolume {
  Geometry geometry;
  std::vector<float> data;
  std::vector<uint8_t> mask;  // empty: everything counts
  float weight_per_unit = 1;

  size_t Offset(Int3 p) const { return (static_cast<size_t>(p.z) * geometry.size.y + p.y) * geometry.size.x + p.x; }
  double At(Int3 p) const { return data[Offset(p)]; }
  bool InMask(Int3 p) const { return mask.empty() || mask[Offset(p)] != 0; }
  double Weight(Int3 p) const { return mask.empty() ? 1 : std::min(1.0, mask[Offset(p)] * double{weight_per_unit}); }
};

// The byte of a soft mask at a voxel, 0 to 255: a wave that hardly changes from voxel to voxel, so that a sample may be
// given the weight beside its own.
uint8_t SlowWeight(Int3 voxel, uint32_t seed);

struct Sample {
  bool counts = false;
  // Closer to a neighbouring cell than rounding allows: float32 may take that cell's derivative. Or as close to where a
  // neighbouring voxel of a soft mask becomes the nearest.
  bool ambiguous = false;
  // The weight of the nearest voxel.
  double weight = 1;
  double value = 0;
  Vec3d gradient;  // by the index
};

// The volume at an index, linear between voxels. A sample counts within half a voxel of the grid and where the nearest
// voxel is in the mask. `cell_rounding` is in voxels.
Sample SampleReference(const HostVolume& v, Vec3d index, double cell_rounding);

// The centred cubic B-spline.
double CubicSpline(double x);

// About the axes x, y and z, in this order.
AffineMap Rotation(Vec3d degrees);

// Where a sample lies in the joint histogram: its fixed bin, and the moving position cell + t, t from 0 to 1.
struct NmiPlace {
  int bin = 0, cell = 0;
  double t = 0;
  double weight = 1;
};

// D = 2 - (H(F) + H(M)) / H(F, M) of the joint histogram of samples, by Parzen windows of cubic B-splines.
class NmiReference {
 public:
  static constexpr int kBins = 64;

  // `unit`: weights of windows times those of samples are counted in multiples of it, as the operator does; 0: exactly.
  NmiReference(const std::vector<NmiPlace>& places, double unit);

  // NaN without samples.
  double value() const { return value_; }
  double samples() const { return samples_; }
  // The sum of the samples' weights.
  double weight() const { return weight_; }
  double joint_entropy() const { return joint_entropy_; }
  double fixed(int bin) const { return fixed_[bin]; }
  double joint(int bin, int k) const { return joint_[kBins * bin + k]; }

  // dD/dp of an entry of the histogram, up to a constant. Bins that rounding left empty count as half a unit.
  double Slope(int bin, int k) const;

  struct Derivative {
    double value = 0;
    // The largest of the four slopes that it is made of.
    double largest_slope = 0;
  };
  // dD by the moving position of one sample, in bins.
  Derivative DerivativeAt(const NmiPlace& place) const;

 private:
  double samples_;
  double weight_ = 0;
  double value_ = std::numeric_limits<double>::quiet_NaN();
  double floor_ = 0;
  double marginal_entropies_ = 0, joint_entropy_ = 0;
  std::array<double, kBins> fixed_ = {}, moving_ = {};
  std::vector<double> joint_ = std::vector<double>(kBins * kBins);
};

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_ENGINE_METRIC_REFERENCES_H_
